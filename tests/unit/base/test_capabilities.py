"""What a sink can do beyond the contract: who has it, what is done without it, and that wrappers pass it on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base import capabilities
from headrace.connectors.base.sink import Attempt, Committer, HandleSerializer, RecordedEpoch, Transaction, TwoPhaseSink
from headrace.connectors.kafka.write.accept_loss import LossAccepting
from headrace.connectors.sql.upsert import UpsertSink
from headrace.delta import DeltaSink
from headrace.enumerator.errors import UsageError
from headrace.files import FileSink
from headrace.kafka import KafkaSink
from headrace.sinks import FunctionSink, Outcome
from headrace.sql import SqlSink
from headrace.testing import DyingCommitter, MemorySink, MemoryTransactionLog
from headrace.testing.memory_sink import MemoryCommitter, MemoryHandle
from tests.simulation.bugs.in_sinks import CAUGHT_BY, PassingSink

ROOT = Path(__file__).parents[3]
OURS = [each for each in vars(capabilities).values() if isinstance(each, type) and each.__module__ == capabilities.__name__]
PROTOCOLS = {each.__name__: each for each in OURS}
ROWS = pa.record_batch({"value": ["a", "b"], "topic": ["x", "y"]})


def sinks(folder: Path) -> Iterator[tuple[TwoPhaseSink[Any], set[str]]]:
    yield MemorySink(MemoryTransactionLog()), set()
    yield FunctionSink(print), set()
    yield KafkaSink("127.0.0.1:1"), {
        "RowRouting", "RowSharding", "PromptLookup", "OutageRetry", "ExpiringTransactions", "Warmable",
    }  # fmt: skip
    yield SqlSink("postgresql://127.0.0.1:1/none", "t"), {"EpochRecord", "WriterCommit", "LeftoverCleanup"}
    yield UpsertSink("sqlite:///none", "t", key=("id",)), {"EpochRecord"}
    yield FileSink(str(folder)), {"EpochRecord", "WriterCommit"}
    yield DeltaSink(str(folder)), {"SingleCommit"}


def capabilities_of(each: object) -> set[str]:
    return {name for name, protocol in PROTOCOLS.items() if isinstance(each, protocol)}


def test_a_sink_has_the_capabilities_that_it_declares(tmp_path):
    for sink, expected in sinks(tmp_path):
        assert capabilities_of(sink) == expected, sink
        assert capabilities_of(sink) <= {base.__name__ for base in type(sink).__mro__}, sink


def test_every_sink_needs_17_methods():
    contract: tuple[type, ...] = (TwoPhaseSink, Transaction, Committer, HandleSerializer)
    assert sum(len(each.__abstractmethods__) for each in contract) == 17  # type: ignore[attr-defined]


def test_every_method_of_a_capability_has_a_function_but_that_of_a_single_commit_and_of_its_committers():
    methods = {name for protocol in PROTOCOLS.values() for name in protocol.__abstractmethods__}
    assert methods - vars(capabilities).keys() == {"refuses_epochs_by_their_rows", "clean_up_tasks", "open_tasks"}


def test_the_page_about_writing_a_sink_lists_every_capability_and_its_methods():
    page = (ROOT / "docs/how-to/write-a-sink.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.M))
    for name, protocol in PROTOCOLS.items():
        assert set(re.findall(r"`(\w+)`", listed[name])) == set(protocol.__abstractmethods__), name


def test_the_contracts_of_sources_and_sinks_name_each_other():
    assert "headrace.connectors.base.sink" in (ROOT / "enumerator/source.py").read_text().split('"""')[1]
    assert "headrace.enumerator.source" in (ROOT / "connectors/base/sink.py").read_text().split('"""')[1]


class TestWithout:
    """A sink with no capability at all."""

    def test_of_a_sink(self):
        sink = MemorySink(MemoryTransactionLog())
        assert capabilities.bounded(sink) is sink
        assert [capabilities.records_all_epochs(sink), capabilities.rows_name_targets(sink)] == [False, False]
        assert capabilities.recorded_now(sink) == sink.recorded() == {}
        assert capabilities.targets_of(sink, ROWS) == frozenset()
        assert capabilities.shards_of(sink, ROWS, 3).to_pylist() == [None, None]
        assert capabilities.left_over(sink) == frozenset()
        assert capabilities.transaction_timeout_s(sink) == math.inf
        capabilities.end_left_over(sink, "job", frozenset({"x"}))
        for call in (capabilities.reached, capabilities.warm, capabilities.warm_driver):
            call(sink)
        assert isinstance(capabilities.committer_of_writer(sink, "writer", sink.committer("job")), MemoryCommitter)

    def test_of_a_committer(self):
        sink = MemorySink(MemoryTransactionLog())
        handles = [prepared(sink, task) for task in (0, 1)]
        committer = sink.committer("job")
        capabilities.confirm(committer, handles)
        assert capabilities.end_all(committer, handles) == [Outcome.COMMITTED] * 2
        assert capabilities.copy_all(committer, handles) == (MemoryHandle(2),)

    def test_a_sink_that_commits_in_one_step_and_has_no_clean_up_by_task_is_an_error(self):
        with pytest.raises(UsageError, match=r"MemoryCommitter .* no clean_up_tasks and open_tasks"):
            capabilities.task_cleanup(MemorySink(MemoryTransactionLog()).committer("job"))


def prepared(sink: MemorySink, task: int) -> MemoryHandle:
    with sink.begin(Attempt("job", 0, task, 0)) as transaction:
        transaction.write(ROWS)
        handle = transaction.prepare()
    assert handle is not None
    return handle


class Everything(
    MemorySink, capabilities.RowRouting, capabilities.RowSharding, capabilities.PromptLookup, capabilities.OutageRetry,
    capabilities.ExpiringTransactions, capabilities.Warmable, capabilities.LeftoverCleanup, capabilities.WriterCommit,
):  # fmt: skip
    """Answers what no default would."""

    rows_name_targets = True
    transaction_timeout_s = 7.0

    def targets_of(self, rows):
        return frozenset({"there"})

    def shards_of(self, rows, shards):
        return pa.array([shards] * rows.num_rows, pa.int32())

    def recorded_now(self):
        return {"job": RecordedEpoch(7)}

    def bounded(self):
        return MemorySink(self.log)

    def reached(self):
        self.log.called = "reached"

    def warm(self):
        self.log.called = "warm"

    def warm_driver(self):
        self.log.called = "warm_driver"

    def left_over(self):
        return frozenset({"left"})

    def end_left_over(self, *what):
        self.log.called = what

    def committer_of_writer(self, writer, driver):
        return EveryCommitter(self.log, writer)


class EveryCommitter(MemoryCommitter, capabilities.Confirmation[Any], capabilities.TaskCleanup[Any]):
    """Answers what no default would."""

    def confirm(self, handles):
        raise LookupError(handles)

    def clean_up_tasks(self, tasks, keep):
        raise LookupError(tasks, keep)

    def open_tasks(self):
        return frozenset({3})


class TestWrappers:
    def test_a_wrapped_sink_is_asked(self):
        inner = Everything(MemoryTransactionLog())
        sink = PassingSink(inner, [], set())
        assert capabilities.rows_name_targets(sink)
        assert capabilities.targets_of(sink, ROWS) == {"there"}
        assert capabilities.shards_of(sink, ROWS, 3).to_pylist() == [3, 3]
        assert capabilities.recorded_now(sink) == {"job": RecordedEpoch(7)}
        bounded = capabilities.bounded(sink)
        assert isinstance(bounded, PassingSink)
        assert type(bounded.inner) is MemorySink
        assert capabilities.left_over(sink) == {"left"}
        assert capabilities.transaction_timeout_s(sink) == 7.0
        for name in ("reached", "warm", "warm_driver"):
            getattr(capabilities, name)(sink)
            assert inner.log.called == name
        capabilities.end_left_over(sink, "job", frozenset({"left"}), "driver")
        assert inner.log.called == ("job", frozenset({"left"}), "driver")
        of_writer = capabilities.committer_of_writer(sink, "writer", sink.committer("job"))
        assert isinstance(of_writer, sink.committing)
        assert isinstance(of_writer.inner, EveryCommitter)

    @pytest.mark.parametrize("injected", [PassingSink, *CAUGHT_BY])
    def test_a_wrapped_sink_commits_in_one_step_if_the_one_in_it_does(self, tmp_path, injected):
        for inner, _ in sinks(tmp_path):
            sink = injected(inner, [], set())
            assert isinstance(sink, injected)
            assert isinstance(sink, capabilities.SingleCommit) == isinstance(inner, capabilities.SingleCommit)

    @pytest.mark.parametrize("wrapped", [
        lambda inner: PassingSink(MemorySink(MemoryTransactionLog()), [], set()).committing(None, inner, "job"),
        lambda inner: DyingCommitter(inner, "fence", "before"),
    ])  # fmt: skip
    def test_a_wrapped_committer_is_asked(self, wrapped):
        committer = wrapped(EveryCommitter(MemoryTransactionLog(), "job"))
        assert capabilities.task_cleanup(committer).open_tasks() == {3}
        with pytest.raises(LookupError, match="a handle"):
            capabilities.confirm(committer, ["a handle"])
        with pytest.raises(LookupError, match=r"\[1\].*\[2\]"):
            capabilities.task_cleanup(committer).clean_up_tasks([1], [2])

    def test_a_committer_that_accepts_losses_confirms_as_the_one_in_it(self):
        accepting = LossAccepting(EveryCommitter(MemoryTransactionLog(), "job"), None)  # type: ignore[arg-type]
        with pytest.raises(LookupError, match="a handle"):
            capabilities.confirm(accepting, ["a handle"])  # type: ignore[list-item]
