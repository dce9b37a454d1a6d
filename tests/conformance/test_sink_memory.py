"""The kit of sinks on the sink in memory; and the kit itself on injected bugs, which it must catch."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.testing import MemoryHandle, MemorySink, MemoryTransactionLog, SinkConformance, SinkContext
from tests.simulation.bugs.in_sinks import CAUGHT_BY, PassingSink, assert_caught


class MemoryContext(SinkContext):
    def __init__(self) -> None:
        self.log = MemoryTransactionLog()

    def create_sink(self) -> MemorySink:
        return MemorySink(self.log)

    def batch(self, values: Sequence[str]) -> pa.RecordBatch:
        return pa.record_batch({"value": pa.array(values, pa.string())})

    def visible(self) -> list[str]:
        return [row["value"] for row in self.log.rows()]

    def unended(self, job: str) -> int:
        return len(self.log.unended(job))

    def golden_handles(self) -> Sequence[tuple[int, str, Any]]:
        return [(1, '{"number":3}', MemoryHandle(3))]

    def abort_prepared(self, handle: MemoryHandle) -> None:
        self.log.expire(handle.number)


class TestMemorySink(SinkConformance):
    def create_external_context(self) -> MemoryContext:
        return MemoryContext()


@pytest.mark.parametrize("bug", CAUGHT_BY, ids=lambda bug: bug.__name__)
def test_the_kit_catches(bug: type[PassingSink]):
    assert_caught(TestMemorySink(), bug)
