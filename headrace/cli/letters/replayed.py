"""Which dead letters were replayed: a bit for each offset, in pages that are the records of a compacted topic.

A page is written in the transaction that writes the letters back, so both happen or neither. The key names the topic by its id
too, so that a topic that is recreated starts over. A page has so many bits as 4,096 offsets: what is written with a transaction
does not grow with what was replayed before.

Two replays shut each other out by the names of their transactions, which the user's prefix and commit topic make. So before the
first letter of a topic is written, the topic is claimed: by its own record, outside of transactions. The first claim in
the log counts, whoever wrote at the same time; and as each has its own key, compaction leaves it the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID, uuid4

from headrace.enumerator.envelope import stored_text
from headrace.enumerator.errors import StateError

REPLAYS_TOPIC = "headrace-replays"
PAGE = 4096
FORMAT, VERSION = "headrace-replayed", 1
CLAIM_FORMAT, CLAIM_VERSION = "headrace-replay-claim", 1

Position = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True)
class Replayed:
    """Of one topic of dead letters. `pages`: (partition, number of the page) to its bits.

    `by`: the prefix and the commit topic of who replays, which make the names by which one replay shuts out another.
    `noted_by`: those that have written pages. `claims`: those that have claimed the topic, in the order of the log. `open_at`:
    the offset of the first page that a transaction is still to decide. `end`: the offset after the last record that was read.
    """

    topic: str
    topic_id: UUID | None
    by: str
    pages: dict[Position, int] = field(default_factory=dict)
    noted_by: set[str] = field(default_factory=set)
    claims: list[str] = field(default_factory=list)
    open_at: int | None = None
    end: int = 0

    @classmethod
    def parse(cls, topic: str, topic_id: UUID | None, by: str, records: Mapping[str, bytes]) -> Replayed:
        """From the records of the compacted topic, by key, in the order of the log.

        Raises StateError for a damaged one, or one of a newer version.
        """
        found = cls(topic, topic_id, by)
        for key, data in records.items():
            if key.startswith(found._beginning):
                partition, _, number = key.removeprefix(found._beginning).partition(".")
                page = _noted(key, data, FORMAT, VERSION)
                found.pages[int(partition), int(number)] = page.bits
                found.noted_by.add(page.by)
            elif key.startswith(f"{_CLAIM}{found._beginning}"):
                found.claims.append(_noted(key, data, CLAIM_FORMAT, CLAIM_VERSION).by)
        return found

    def is_page(self, key: str) -> bool:
        """Whether a record of this key is one of its pages."""
        return key.startswith(self._beginning)

    @property
    def others(self) -> set[str]:
        """Who may be running on the topic, and is not shut out by who replays now.

        The first who claimed it. Versions without claims left pages alone: whoever has written one may claim it now.
        """
        if self.claims:
            return {self.claims[0]} - {self.by}
        return set() if self.by in self.noted_by else self.noted_by

    def refuse_unfenced(self) -> None:
        """Raise StateError where a replay may be running that the one of now does not shut out."""
        if others := self.others:
            prefix, _, commit_topic = min(others).partition(" ")
            raise StateError(
                f"dead letters of {self.topic!r} are replayed with --prefix {prefix} --commit-topic {commit_topic}: give the "
                "same, so that two replays at a time are never both written"
            )

    @property
    def _beginning(self) -> str:
        """Of the keys of this topic's pages: ids hold no dot, and what follows them holds no other topic's name."""
        return f"{'-' if self.topic_id is None else self.topic_id.hex}.{self.topic.encode().hex()}."

    def has(self, partition: int, offset: int) -> bool:
        """Whether the letter there was replayed."""
        return bool(self.pages.get((partition, offset // PAGE), 0) >> offset % PAGE & 1)

    def with_these(self, positions: Iterable[Position]) -> dict[Position, int]:
        """The pages that change when these are replayed, as they are then. Changes nothing here."""
        changed: dict[Position, int] = {}
        for partition, offset in positions:
            page = (partition, offset // PAGE)
            changed[page] = changed.get(page, self.pages.get(page, 0)) | 1 << offset % PAGE
        return changed

    def record(self, page: Position, bits: int) -> tuple[bytes, bytes]:
        """Key and value of a page."""
        value = {"format": FORMAT, "version": VERSION, "by": self.by, "bits": bits.to_bytes(PAGE // 8, "little").hex()}
        return f"{self._beginning}{page[0]}.{page[1]}".encode(), json.dumps(value, separators=(",", ":")).encode()

    def claim(self) -> tuple[bytes, bytes]:
        """Key and value of a claim on the topic."""
        value = {"format": CLAIM_FORMAT, "version": CLAIM_VERSION, "by": self.by}
        return f"{_CLAIM}{self._beginning}{uuid4().hex}".encode(), json.dumps(value, separators=(",", ":")).encode()


_CLAIM = "claim."  # no id of a topic starts so


class _Noted(NamedTuple):
    """What a record says: by whom it is, and of a page the bits."""

    by: str
    bits: int


def _noted(key: str, data: bytes, its_format: str, its_version: int) -> _Noted:
    where = f"{REPLAYS_TOPIC}, key {key!r}"
    try:
        value = json.loads(data)
        if value["format"] != its_format or value["version"] != its_version:
            raise StateError(
                f"{where}: a newer headrace wrote this: format {value['format']!r}, version {value['version']!r}; this one "
                f"reads version {its_version}"
            )
        bits = bytes.fromhex(stored_text(value["bits"])) if its_format == FORMAT else b""
        return _Noted(stored_text(value["by"]), int.from_bytes(bits, "little"))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"{where} is damaged: {type(error).__name__}: {error}; which letters were replayed is not known"
        ) from error
