"""A plain function as a sink: called with each batch, at least once."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from headrace.enumerator.errors import UsageError
from headrace.run import Pipeline
from headrace.sinks import Attempt, FunctionSink, JobCommitter
from headrace.testing import MemoryLog, MemorySource

ROWS = pa.RecordBatch.from_pydict({"value": ["a", "b"]})
CALLS: list[list[str]] = []


def keep(batch):
    CALLS.append(batch.column("value").to_pylist())


def yielding(batch):
    yield batch


def refusing(batch):
    raise OSError("no space")


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def started(function):
    return pickle.loads(pickle.dumps(FunctionSink(function))).begin(Attempt("job", 0, 0, 0))


def test_the_function_has_each_batch_once_written_and_nothing_is_left_to_commit():
    with started(keep) as transaction:
        transaction.write(ROWS)
        transaction.write(ROWS.slice(0, 0))
        transaction.write(ROWS.slice(1))
        assert transaction.prepare() is None
    assert CALLS == [["a", "b"], ["b"]]
    committer = JobCommitter("job", FunctionSink(keep).committer("job"))
    committer.recover()
    committer.commit(0, ())
    assert len(CALLS) == 2


def test_what_the_function_raises_fails_the_write_and_the_rows_come_again():
    with pytest.raises(OSError, match="no space"), started(refusing) as transaction:
        transaction.write(ROWS)
    with started(keep) as again:
        again.write(ROWS)
    assert CALLS == [["a", "b"]]


def test_a_generator_which_has_written_nothing_is_refused():
    with started(yielding) as transaction, pytest.raises(UsageError, match="returns None; this one has returned generator"):
        transaction.write(ROWS)


def test_a_pipeline_says_how_a_function_is_a_sink_and_what_is_no_function_is_refused():
    source = MemorySource(MemoryLog())
    with pytest.raises(UsageError, match=r"not function; a function is one as headrace.sinks.FunctionSink\(function\)"):
        Pipeline(source, keep)
    assert Pipeline(source, FunctionSink(keep)).sink.function is keep
    with pytest.raises(UsageError, match="made of a function of a batch, not 'file'"):
        FunctionSink("file")
