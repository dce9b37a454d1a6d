"""The kit on the log in memory, eager and lazy; and the kit itself on injected bugs, which it must catch.

Another connector is run the same way, in its own file alongside this one: subclass `SourceConformance`, give it an
`ExternalContext` (for Kafka: a topic with a random name on the broker of the session, whose `create_split` adds a partition
and returns its split id), `poll_timeout_s` above 0, and mark the class with `pytest.mark.broker`. Another runner: override
`create_run`.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.hybrid import HybridSplit
from headrace.enumerator import Boundedness, EagerEnumerator, LazyEnumerator, SharingEnumerator
from headrace.sources import Hybrid, SourceEnd
from headrace.testing import ExternalContext, SourceConformance
from headrace.testing.memory import MemoryLog, MemoryPieces, MemorySource, MemorySplit
from tests.simulation.bugs import core


class MemoryContext(ExternalContext):
    def __init__(self) -> None:
        self.log = MemoryLog()

    def create_source(self, boundedness: Boundedness) -> MemorySource:
        return MemorySource(self.log, bounded=boundedness is Boundedness.BOUNDED)

    def create_split(self) -> str:
        split_id = f"split-{len(self.log.split_ids())}"
        self.log.create(split_id)
        return split_id

    def write(self, split_id: str, values: Sequence[str]) -> None:
        self.log.append(split_id, values)

    def values(self, batch: pa.RecordBatch) -> list[str]:
        return batch.column("value").to_pylist()

    def golden_splits(self) -> Sequence[tuple[int, str, Any]]:
        return [
            (1, '{"id":"a","next":3,"stop":null}', MemorySplit("a", 3)),
            (1, '{"id":"b","next":0,"stop":9}', MemorySplit("b", 0, 9)),
        ]

    def remove_split(self, split_id: str) -> None:
        self.log.hide(split_id)


class TestEager(SourceConformance):
    assignment = EagerEnumerator

    def create_external_context(self) -> MemoryContext:
        return MemoryContext()


class TestLazy(TestEager):
    assignment = LazyEnumerator


class PiecesContext(MemoryContext):
    """What one `write` adds is a piece. The first of a split has its name."""

    splits_grow = False

    def __init__(self) -> None:
        super().__init__()
        self._named: list[str] = []

    def create_source(self, boundedness: Boundedness) -> MemoryPieces:
        return MemoryPieces(self.log, bounded=boundedness is Boundedness.BOUNDED, found_at_once=2)

    def create_split(self) -> str:
        self._named.append(f"split-{len(self._named)}")
        return self._named[-1]

    def write(self, split_id: str, values: Sequence[str]) -> None:
        number = sum(each.partition("+")[0] == split_id for each in self.log.split_ids())
        self.log.create(f"{split_id}+{number}" if number else split_id, values)

    def remove_split(self, split_id: str) -> None:
        pytest.skip("a piece that is found is not looked for again")


class TestPieces(TestEager):
    assignment = SharingEnumerator

    def create_external_context(self) -> PiecesContext:
        return PiecesContext()


class TestLazyPieces(TestPieces):
    assignment = LazyEnumerator


class HybridContext(PiecesContext):
    """What is written before the first source is made is pieces of an old log; all that follows is in a new one.

    A bounded source reads what is in the old one, then one that has nothing. So ids are those of the first stage.
    """

    def __init__(self) -> None:
        super().__init__()
        self.new = MemoryLog()
        self._is_old = True

    def create_source(self, boundedness: Boundedness) -> Hybrid:
        self._is_old = False
        old = MemoryPieces(self.log, bounded=True, found_at_once=2)
        if boundedness is Boundedness.BOUNDED:
            return Hybrid(old, then=MemoryPieces(NOTHING, bounded=True))
        return Hybrid(old, then=partial(source_after, self.new))

    def create_split(self) -> str:
        split_id = super().create_split()
        self.new.create(split_id)
        return f"0:{split_id}"

    def write(self, split_id: str, values: Sequence[str]) -> None:
        if self._is_old:
            super().write(split_id[2:], values)
        else:
            self.new.append(split_id[2:], values)

    def golden_splits(self) -> Sequence[tuple[int, str, Any]]:
        end = {"cursor": {"found": 3, "stop": 3}}
        inner = '"source":"memory","version":1,"split":{"id":"a","next":3,"stop":null}'
        return [
            (1, f'{{"stage":1,"end":{json.dumps(end)},{inner}}}', HybridSplit(1, end, MemorySplit("a", 3))),
            (
                1,
                f'{{"stage":0,"end":null,{inner.replace("memory", "memory-pieces")}}}',
                HybridSplit(0, None, MemorySplit("a", 3)),
            ),
        ]


NOTHING = MemoryLog()
SERVED_INTERVAL_S = 0.1


class ServedPieces(PiecesContext):
    """For runners whose readers are other processes."""

    def __init__(self) -> None:
        super().__init__()
        self.log.serve()

    def create_source(self, boundedness: Boundedness) -> MemoryPieces:
        source = super().create_source(boundedness)
        source.discovery_interval_s = SERVED_INTERVAL_S
        return source


class ServedHybrid(HybridContext):
    """The same of two sources."""

    def __init__(self) -> None:
        super().__init__()
        for log in (self.log, self.new, NOTHING):
            log.serve()

    def create_source(self, boundedness: Boundedness) -> Hybrid:
        source = super().create_source(boundedness)
        source.discovery_interval_s = SERVED_INTERVAL_S
        return source


def source_after(log: MemoryLog, end: SourceEnd) -> MemorySource:
    """Every piece is found, at the end."""
    assert end.cursor["found"] == end.cursor["stop"] >= 0
    return MemorySource(log)


class TestHybrid(TestEager):
    assignment = SharingEnumerator

    def create_external_context(self) -> HybridContext:
        return HybridContext()


class TestEagerHybrid(TestHybrid):
    assignment = EagerEnumerator


def failing_cases(kit: SourceConformance) -> Iterator[str]:
    """The kit's cases that fail just now. Those with further arguments are left out."""
    for name in sorted(dir(kit)):
        if name.startswith("test_") and name not in ("test_reader_failure", "test_constructor_contacts_no_process"):
            try:
                getattr(kit, name)(kit.create_external_context())
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 - however it fails
                yield name


def test_nothing_fails_without_a_bug():
    assert list(failing_cases(TestEager())) == []
    assert list(failing_cases(TestLazy())) == []


CAUGHT_BY = {
    core.reinitialise_on_restore: "test_savepoint", core.initial_discovery_on_restore: "test_restored_never_initialises",
    core.splits_of_lost_reader_dropped: "test_reader_failure_before_any_checkpoint",
    core.checkpoint_without_positions: "test_restart_after_every_batch",
    core.end_of_input_sent_once: "test_finished_source_restored",
    core.exhaustion_not_stored: "test_bounded_source_restored_midway",
    core.last_read_offset_stored: "test_restart_after_every_batch", core.extra_slots_planned: "test_multiple_splits",
    core.later_splits_at_latest: "test_split_added_while_running",
    core.removed_splits_not_reported: "test_removed_split_is_reported", core.stop_offset_ignored: "test_bounded_ends_by_itself",
    core.split_version_ignored: "test_damaged_splits_are_refused",
}  # fmt: skip


@pytest.mark.parametrize("bug", CAUGHT_BY, ids=lambda bug: bug.__name__)
def test_the_kit_catches(bug):
    with bug():
        failed = list(failing_cases(TestEager()))
    assert CAUGHT_BY[bug] in failed
