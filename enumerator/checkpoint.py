"""Checkpoints and their versioned form on disk.

Envelope, version 1, JSON in UTF-8 (readable by people on purpose, for when a restore has failed):

    {"format": "headrace-checkpoint", "version": 1, "crc32": <of the body>, "body": "<JSON text of the body>"}
    body: {"source": "kafka", "checkpoint_id": 7, "exhausted": false, "split_version": 1,
           "splits": [{"finished": false, "split": {...}}, ...]}
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from headrace.enumerator.errors import StateError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import SplitSerializer
from headrace.enumerator.split import SplitT

FORMAT = "headrace-checkpoint"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint(Generic[SplitT]):
    """The whole state of a source: its ledger, and whether discovery had reported that no split will ever be added."""

    checkpoint_id: int
    splits: tuple[SplitState[SplitT], ...]
    exhausted: bool


class CheckpointSerializer(Generic[SplitT]):
    """Writes the newest version, reads every version ever written, refuses newer ones and other sources' state."""

    def __init__(self, source_name: str, split_serializer: SplitSerializer[SplitT]) -> None:
        """For checkpoints of the source with this `Source.name`."""
        self._source = source_name
        self._splits = split_serializer

    def serialize(self, checkpoint: Checkpoint[SplitT]) -> bytes:
        """The checkpoint in the newest version."""
        body = json.dumps(
            {
                "source": self._source,
                "checkpoint_id": checkpoint.checkpoint_id,
                "exhausted": checkpoint.exhausted,
                "split_version": self._splits.version,
                "splits": [
                    {"finished": state.finished, "split": self._splits.serialize(state.split)} for state in checkpoint.splits
                ],
            },
            separators=(",", ":"),
        )
        envelope = {"format": FORMAT, "version": VERSION, "crc32": zlib.crc32(body.encode()), "body": body}
        return json.dumps(envelope, separators=(",", ":")).encode()

    def deserialize(self, data: bytes) -> Checkpoint[SplitT]:
        """The checkpoint that `serialize` of this or an older version wrote.

        Raises StateError for anything else: damaged, newer, of another source, not a checkpoint.
        """
        envelope = _parse(data, "the checkpoint")
        if envelope.get("format") != FORMAT:
            raise StateError(f"this is not a headrace checkpoint: its format is {envelope.get('format')!r}")
        version = envelope.get("version")
        read = self._readers().get(version) if isinstance(version, int) else None
        if read is None:
            raise StateError(
                f"the checkpoint has version {version!r}, and this headrace reads versions {sorted(self._readers())}; "
                "restore it with the headrace that wrote it, or a newer one"
            )
        try:
            return read(envelope)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StateError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error

    def _readers(self) -> Mapping[int, Callable[[Mapping[str, Any]], Checkpoint[SplitT]]]:
        return {1: self._read_v1}

    def _read_v1(self, envelope: Mapping[str, Any]) -> Checkpoint[SplitT]:
        text: str = envelope["body"]
        if zlib.crc32(text.encode()) != envelope["crc32"]:
            raise StateError("the checkpoint is damaged: its checksum does not match")
        body = _parse(text, "the checkpoint's body")
        if body["source"] != self._source:
            raise StateError(f"the checkpoint is of a {body['source']!r} source and cannot restore a {self._source!r} source")
        split_version = body["split_version"]
        if split_version > self._splits.version:
            raise StateError(
                f"the checkpoint's splits have version {split_version}, and this headrace reads up to {self._splits.version}"
            )
        splits = tuple(
            SplitState(self._splits.deserialize(split_version, item["split"]), bool(item["finished"]))
            for item in body["splits"]
        )
        if len({state.split.split_id for state in splits}) < len(splits):
            raise StateError("the checkpoint is damaged: it holds a split twice")
        return Checkpoint(int(body["checkpoint_id"]), splits, bool(body["exhausted"]))


def _parse(data: bytes | str, what: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are both ValueErrors
        raise StateError(f"{what} is damaged: it is not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise StateError(f"{what} is damaged: it is a JSON {type(parsed).__name__}, not an object")
    return parsed
