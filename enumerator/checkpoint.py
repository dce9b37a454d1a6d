"""Checkpoints, and the form in which they are stored (`headrace.enumerator.envelope`), version 1:

{"source": "kafka", "checkpoint_id": 7, "exhausted": false, "cursor": null, "stage": null, "split_version": 1,
 "splits": [{"finished": false, "split": {...}}, ...]}

A stage is {"number": 1, "source": "kafka", "end": {...}, "in_pieces": false, "is_found": false}, and "needs_ends":
true where it does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Generic

from headrace.enumerator.envelope import Envelope, readable_version, stored_number, stored_object, stored_text, stored_truth
from headrace.enumerator.errors import StateError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import JsonObject, SplitSerializer, Stage
from headrace.enumerator.split import SplitT

CHECKPOINT = Envelope("headrace-checkpoint", "checkpoint")


@dataclass(frozen=True, slots=True)
class Checkpoint(Generic[SplitT]):
    """The whole state of a source: its ledger, and whether discovery had reported that no split will ever be added.

    `cursor`: how far an incremental discovery had come; None of any other. Every split that it has found before is in `splits`,
    or was read to its end. `stage`: where a source of several stages is.
    """

    checkpoint_id: int
    splits: tuple[SplitState[SplitT], ...]
    exhausted: bool
    cursor: JsonObject | None = None
    stage: Stage | None = None


class CheckpointSerializer(Generic[SplitT]):
    """A checkpoint as bytes, and back. Refuses other sources' state."""

    def __init__(self, source_name: str, split_serializer: SplitSerializer[SplitT]) -> None:
        """For checkpoints of the source with this `Source.name`."""
        self._source = source_name
        self._splits = split_serializer

    def serialize(self, checkpoint: Checkpoint[SplitT]) -> bytes:
        """The checkpoint in its envelope."""
        return CHECKPOINT.seal(
            {
                "source": self._source,
                "checkpoint_id": checkpoint.checkpoint_id,
                "exhausted": checkpoint.exhausted,
                "cursor": checkpoint.cursor,
                "stage": None if checkpoint.stage is None else _stored_stage(checkpoint.stage),
                "split_version": self._splits.version,
                "splits": [
                    {"finished": state.finished, "split": self._splits.serialize(state.split)} for state in checkpoint.splits
                ],
            }
        )

    def deserialize(self, data: bytes | str, where: str = "the state to restore") -> Checkpoint[SplitT]:
        """The checkpoint that `serialize` wrote.

        Raises StateError, naming `where`, for anything else: damaged, newer, of another source, not a checkpoint.
        """
        body = CHECKPOINT.open(data, where)
        with CHECKPOINT.reading(where):
            if body["source"] != self._source:
                raise StateError(
                    f"{where}: the checkpoint is of a {body['source']!r} source and cannot restore a {self._source!r} source"
                )
            version, deserialize = readable_version(body["split_version"], self._splits.version), self._splits.deserialize
            splits = tuple(SplitState(deserialize(version, item["split"]), bool(item["finished"])) for item in body["splits"])
            if len({state.split.split_id for state in splits}) < len(splits):
                raise ValueError("it holds a split twice")
            cursor = None if body["cursor"] is None else stored_object(body["cursor"])
            stage = None if body["stage"] is None else _stage(body["stage"])
            return Checkpoint(int(body["checkpoint_id"]), splits, bool(body["exhausted"]), cursor, stage)


def _stored_stage(stage: Stage) -> JsonObject:
    return {name: value for name, value in asdict(stage).items() if name != "needs_ends" or value}


def _stage(data: Any) -> Stage:  # noqa: ANN401 - JSON
    number, source = stored_number(data["number"]), stored_text(data["source"])
    end = None if data["end"] is None else stored_object(data["end"])
    in_pieces, is_found = stored_truth(data["in_pieces"]), stored_truth(data["is_found"])
    return Stage(number, source, end, in_pieces, is_found, stored_truth(data.get("needs_ends", False)))
