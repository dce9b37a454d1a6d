"""Which dead letters were replayed: a bit for each offset, in pages that are the records of a compacted topic.

A page is written in the transaction that writes the letters back, so both happen or neither. The key names the topic by its id
too, so that a topic that is made anew begins anew. A page has so many bits as 4,096 offsets: what is written with a transaction
does not grow with what was replayed before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from headrace.connectors.sink import stored_text
from headrace.enumerator.errors import StateError

REPLAYS_TOPIC = "headrace-replays"
PAGE = 4096
FORMAT, VERSION = "headrace-replayed", 1

Position = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True)
class Replayed:
    """Of one topic of dead letters. `pages`: (partition, number of the page) to its bits.

    `by`: the prefix and the commit topic of who replays, which make the names by which one replay shuts out another. `others`:
    those of earlier ones.
    """

    topic: str
    topic_id: UUID | None
    by: str
    pages: dict[Position, int] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    @classmethod
    def parse(cls, topic: str, topic_id: UUID | None, by: str, records: Mapping[str, bytes]) -> Replayed:
        """From the records of the compacted topic, by key. Raises StateError for a damaged one, or one of a newer version."""
        found = cls(topic, topic_id, by)
        for key, data in records.items():
            if key.startswith(found._beginning):
                partition, _, number = key.removeprefix(found._beginning).partition(".")
                found.pages[int(partition), int(number)], other = _page(key, data)
                found.others |= {other} - {by}
        return found

    def refuse_unfenced(self) -> None:
        """Raise StateError where a replay may be at work that the one of now does not shut out."""
        if self.others:
            prefix, _, commit_topic = min(self.others).partition(" ")
            raise StateError(
                f"dead letters of {self.topic!r} were replayed with --prefix {prefix} --commit-topic {commit_topic}: give the "
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


def _page(key: str, data: bytes) -> tuple[int, str]:
    """The bits, and by whom."""
    where = f"{REPLAYS_TOPIC}, key {key!r}"
    try:
        value = json.loads(data)
        if value["format"] != FORMAT or value["version"] != VERSION:
            raise StateError(
                f"{where}: a newer headrace wrote this: format {value['format']!r}, version {value['version']!r}; this one "
                f"reads version {VERSION}"
            )
        return int.from_bytes(bytes.fromhex(stored_text(value["bits"])), "little"), stored_text(value["by"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"{where} is damaged: {type(error).__name__}: {error}; which letters were replayed is not known"
        ) from error
