"""A pipeline with several sinks: what goes where, what is stored of it, and that all outputs are committed by one decision."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from headrace.connectors.base.capabilities import SingleCommit
from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.outputs import DEFAULT_OUTPUT, OutputHandle, OutputHandleSerializer, Outputs
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import StateError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.files import FileSource
from headrace.kafka import DeadLetters
from headrace.run import Pipeline
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpoint, RunCheckpointSerializer
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.commit.state import first_attempt
from headrace.runners.local.commit.strategy import EPOCH_BITS
from headrace.runners.local.events import WorkerHandle
from headrace.sinks import FunctionSink
from headrace.sql import SqlSink, UpsertSink
from headrace.testing import MemoryHandle, MemoryLog, MemorySink, MemorySource, MemorySplit, MemoryTransactionLog
from headrace.testing.memory import MemorySplitSerializer
from headrace.testing.memory_sink import MemoryHandleSerializer, State

GOLDEN = Path(__file__).parents[1] / "golden" / "run-checkpoint-outputs-v1.json"
POSITIONS = CheckpointSerializer("memory", MemorySplitSerializer())
BATCH = pa.record_batch({"value": ["x", "y"]})


STEPS = ((CheckpointStore, "write"), (MemoryTransactionLog, "store"), (MemoryTransactionLog, "commit"))


class DiedError(Exception):
    """Nothing catches it."""


def dying_in(owner, name, steps):
    real = getattr(owner, name)

    def dying(self, *arguments):
        if next(steps, None) is None:
            raise DiedError
        return real(self, *arguments)

    return patch.object(owner, name, dying)


@contextmanager
def dying_at_last(steps):
    """What is done here ends with a DiedError, when the steps are used up."""
    with ExitStack() as dying:
        for owner, name in STEPS:
            dying.enter_context(dying_in(owner, name, steps))
        with pytest.raises(DiedError):
            yield


def sinks(*names):
    log = MemoryTransactionLog()
    return {name: MemorySink(log) for name in names}


def serializer(*names):
    handles = OutputHandleSerializer(dict.fromkeys(names, MemoryHandleSerializer())) if names else MemoryHandleSerializer()
    return RunCheckpointSerializer(POSITIONS, handles)


def checkpoint(checkpoint_id, *handles, **facts):
    positions = Checkpoint(checkpoint_id, (SplitState(MemorySplit("a", checkpoint_id), False),), False)
    return RunCheckpoint(positions, handles, False, **facts)


class TestWhatGoesWhere:
    @pytest.mark.parametrize(
        "given",
        [("good", BATCH), {"good": BATCH}, [("good", BATCH)], (pair for pair in [("good", BATCH)])],
        ids=["pair", "dict", "list", "generator"],
    )
    def test_a_transform_gives_pairs_or_a_dict(self, given):
        pipeline = Pipeline(MemorySource(MemoryLog()), sinks("good", "bad"), lambda batch: given)
        assert list(pipeline.routed(BATCH)) == [("good", BATCH)]

    def test_it_may_give_nothing_or_something_for_each_output(self):
        pipeline = Pipeline(MemorySource(MemoryLog()), sinks("good", "bad"), lambda batch: None)
        assert list(pipeline.routed(BATCH)) == []
        both = Pipeline(pipeline.source, pipeline.sink, lambda batch: {"good": batch, "bad": batch.slice(1)})
        assert list(both.routed(BATCH)) == [("good", BATCH), ("bad", BATCH.slice(1))]

    def test_to_one_sink_batches_have_no_output(self):
        pipeline = Pipeline(MemorySource(MemoryLog()), MemorySink(MemoryTransactionLog()), lambda batch: [batch, batch])
        assert list(pipeline.routed(BATCH)) == [(DEFAULT_OUTPUT, BATCH), (DEFAULT_OUTPUT, BATCH)]

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (BATCH, "a batch without an output; the outputs are 'bad', 'good'"),
            (("ugly", BATCH), "a batch for the output 'ugly', which there is not; the outputs are 'bad', 'good'"),
            ([BATCH], "a batch without an output"),
            (("good", "rows"), "must give Arrow record batches, not str"),
            ({"good": pa.table(BATCH.to_pydict())}, "must give Arrow record batches, not Table"),
            (pa.table(BATCH.to_pydict()), "not Table; its method to_batches gives them"),
            (5, "not int"),
            (range(5), "not int, of which it gave a range"),
        ],
    )
    def test_what_has_no_output_is_refused_by_name(self, given, said):
        pipeline = Pipeline(MemorySource(MemoryLog()), sinks("good", "bad"), lambda batch: given)
        with pytest.raises(UsageError, match=said):
            list(pipeline.routed(BATCH))

    def test_a_name_where_there_is_one_sink_is_refused(self):
        pipeline = Pipeline(MemorySource(MemoryLog()), MemorySink(MemoryTransactionLog()), lambda batch: ("good", batch))
        with pytest.raises(UsageError, match="for the output 'good', and the pipeline has one sink"):
            list(pipeline.routed(BATCH))

    def test_several_sinks_need_a_transform(self):
        with pytest.raises(UsageError, match="needs a transform, which says what goes where"):
            Pipeline(MemorySource(MemoryLog()), sinks("good", "bad"))

    @pytest.mark.parametrize("name", ["", "1st", "a-b", "a.b", "x" * 33, 7])
    def test_names_that_cannot_be_part_of_a_jobs_name_are_refused(self, name):
        with pytest.raises(UsageError, match="an output's name has 1 to 32 letters"):
            Pipeline(MemorySource(MemoryLog()), {name: MemorySink(MemoryTransactionLog())}, lambda batch: None)

    def test_what_is_no_sink_is_refused_with_the_name_of_its_output(self):
        with pytest.raises(UsageError, match="sink of the output 'bad' must be a headrace TwoPhaseSink, not type"):
            Outputs({"bad": dict})
        with pytest.raises(UsageError, match="not an empty dict"):
            Outputs({})

    def test_the_pipeline_of_one_output_alone_writes_what_is_for_it(self):
        pipeline = Pipeline(MemorySource(MemoryLog()), sinks("good", "bad"), lambda b: {"good": b, "bad": b.slice(1)})
        only = pipeline.only("bad")
        assert only.sink is pipeline.sink["bad"]
        assert list(only.transformed(BATCH)) == [BATCH.slice(1)]
        with pytest.raises(UsageError, match="no output 'ugly'; the outputs are 'bad', 'good'"):
            pipeline.only("ugly")
        with pytest.raises(UsageError, match="it has one sink, which has no name"):
            only.only("bad")

    def test_dead_letters_go_to_an_output_of_their_own(self):
        letter = pa.array([None, {"reason": "bad"}], pa.struct([("reason", pa.string())]))
        batch = pa.record_batch({"value": ["x", None], "deadLetter": letter})
        with patch("headrace.connectors.base.dead_letters.addressed", lambda dead, topic: dead):
            made = list(DeadLetters("letters", lambda good: {"good": good}, output="bad")(batch))
        assert [name for name, _ in made] == ["good", "bad"]
        assert [rows.num_rows for _, rows in made] == [1, 1]

    def test_a_sink_that_commits_by_list_decides_and_one_that_writes_at_once_comes_last(self):
        class Table(MemorySink, SingleCommit):
            refuses_epochs_by_their_rows = False

        log = MemoryTransactionLog()
        outputs = Outputs({"a": FunctionSink(print), "b": MemorySink(log), "c": Table(log), "d": Table(log)})
        assert outputs.in_order == ("c", "d", "b", "a")


class TestWhatIsStored:
    def test_the_golden_checkpoint_is_read_and_written(self):
        two = serializer("good", "bad")
        handles = [WorkerHandle(3, OutputHandle(name, MemoryHandle(number))) for name, number in (("good", 7), ("bad", 8))]
        wanted = checkpoint(12, *handles, epoch=99, epoch_before=98, by_output={"bad": (98, 99), "good": (97, 99)})
        assert two.deserialize("run-golden", GOLDEN.read_bytes(), "golden") == wanted
        assert two.serialize("run-golden", wanted) == GOLDEN.read_bytes().rstrip(b"\n")

    @pytest.mark.parametrize(
        ("before", "now", "said"),
        [
            ((), ("good",), "this run has one sink, and the pipeline has the outputs 'good'"),
            (("good",), (), "this run has the outputs 'good', and the pipeline has one sink"),
            (("bad", "good"), ("good",), "has the outputs 'bad', 'good', and the pipeline has the outputs 'good'"),
            (("bad",), ("worse",), "has the outputs 'bad', and the pipeline has the outputs 'worse'"),
        ],
    )
    def test_a_folder_of_other_outputs_is_refused_with_the_way_out(self, tmp_path, before, now, said):
        """No process would end what the run has prepared for an output that is gone."""
        store = CheckpointStore(str(tmp_path), serializer(*before), 1)
        store.write(checkpoint(1))
        store.close()
        with pytest.raises(StateError, match=f"{said}. Stop the run as it was with a savepoint"):
            CheckpointStore(str(tmp_path), serializer(*now), 1)
        with pytest.raises(StateError, match=said):
            serializer(*now).deserialize("run-a", serializer(*before).serialize("run-a", checkpoint(1)), "here")

    def test_a_handle_of_no_output_and_a_newer_one_are_refused(self):
        handles = OutputHandleSerializer({"good": MemoryHandleSerializer()})
        with pytest.raises(StateError, match="of the output 'bad', which is not there; the outputs are 'good'"):
            handles.deserialize(1, {"output": "bad", "version": 1, "handle": {"number": 1}})
        with pytest.raises(ValueError, match="a newer headrace wrote it: version 9, and this one reads up to 1"):
            handles.deserialize(1, {"output": "good", "version": 9, "handle": {"number": 1}})


class TestOneDecision:
    """Of all outputs, through the death of the coordinator at each of its steps."""

    @staticmethod
    def lifetime(folder, sink, number):
        store = CheckpointStore(str(folder), RunCheckpointSerializer(POSITIONS, Outputs(sink).handles), 1)
        store.add_worker(number)
        run = RunCommitter(store, sink, store.latest(), number, lambda _: None, lambda _: None, lambda: 0.0, lambda: number)
        return store, run, JobCommitter(store.registry.run, run)

    @staticmethod
    def wrote(store, sink, number):
        handles = []
        for name, each in sink.items():
            transaction = each.begin(first_attempt(each, store.registry, number, name))
            transaction.write(BATCH)
            handles.append(WorkerHandle(number, OutputHandle(name, transaction.prepare())))
        return tuple(handles)

    @pytest.mark.parametrize("dies_after", range(1, 6))
    def test_what_is_listed_is_committed_to_each_output_once_whenever_the_coordinator_dies(self, tmp_path, dies_after):
        log, steps = MemoryTransactionLog(), iter(range(dies_after))
        sink = {"bad": MemorySink(log), "good": MemorySink(log)}
        store, run, job = self.lifetime(tmp_path, sink, 0)
        job.recover()
        store.add_worker(1)
        handles = self.wrote(store, sink, 1)
        run.propose(checkpoint(1).positions)
        with dying_at_last(steps):
            job.commit(1, handles)
        store.close()
        store, run, job = self.lifetime(tmp_path, sink, 2)
        job.recover()
        stored = store.latest()
        assert {entry.state for entry in log.entries} == {State.COMMITTED}
        assert stored is not None
        assert (stored.completed, stored.handles) == (True, ())
        assert stored.by_output == {"bad": (0, stored.epoch), "good": (0, stored.epoch)}
        store.close()

    @pytest.mark.parametrize("dies_after", range(1, 6))
    def test_copies_of_what_was_aborted_are_committed_once_whenever_the_coordinator_dies(self, tmp_path, dies_after):
        """Under an epoch that every sink is informed which knew the previous one, also one whose rows were not aborted."""
        log, steps = MemoryTransactionLog(), iter(range(dies_after))
        sink = {"bad": MemorySink(log), "good": MemorySink(log)}
        store, _run, job = self.lifetime(tmp_path, sink, 0)
        job.recover()
        store.add_worker(1)
        handles = self.wrote(store, sink, 1)
        first = (1 << EPOCH_BITS) + 5
        settings = {"bad": (0, first), "good": (0, first)}
        store.write(RunCheckpoint(checkpoint(1).positions, handles, completed=False, epoch=first, by_output=settings))
        log.abort(handles[1].handle.handle.number)
        store.close()
        store, _run, job = self.lifetime(tmp_path, sink, 2)
        with dying_at_last(steps):
            job.recover()
        store.close()
        store, _run, job = self.lifetime(tmp_path, sink, 3)
        job.recover()
        assert Counter(entry.state for entry in log.entries if entry.rows)[State.COMMITTED] == len(sink)
        stored = store.latest()
        assert stored is not None
        assert (stored.completed, stored.handles, stored.replaced) == (True, (), (first,))
        assert stored.by_output == {"bad": (0, stored.epoch), "good": (0, stored.epoch)}
        assert set(MemorySink(log).recorded_epochs().values()) == {stored.epoch}
        store.close()


class TestOneFile:
    """A transaction in SQLite locks its whole file, and a worker with two of them waited for itself, without end."""

    @pytest.mark.parametrize(
        "other", ["{0}/s.db", "{0}/../{1}/s.db", "{0}/link.db", "file:{0}/s.db?uri=true", "file:{0}/%73.db?mode=rw&uri=true"]
    )
    def test_two_outputs_into_it_are_refused_by_any_spelling(self, tmp_path, other):
        (tmp_path / "link.db").symlink_to(tmp_path / "s.db")
        urls = {"good": f"sqlite:///{tmp_path}/s.db", "bad": f"sqlite:///{other.format(tmp_path, tmp_path.name)}"}
        with pytest.raises(UsageError, match=r"outputs 'bad' and 'good' both write to .*/s.db, .*run a pipeline for each"):
            Outputs({name: UpsertSink(url, name, key=("value",)) for name, url in urls.items()}).check_locks()

    def test_the_run_ends_at_its_start(self, tmp_path):
        into = {name: UpsertSink(f"sqlite:///{tmp_path}/s.db", name, key=("value",)) for name in ("good", "bad")}
        with pytest.raises(UsageError, match=r"outputs 'bad' and 'good' both write to"):
            Pipeline(FileSource(str(tmp_path)), into, by_length).run(checkpoints=str(tmp_path / "run"))

    def test_other_files_and_servers_are_not(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        url = "postgresql://127.0.0.1:1/d"
        into = {"a": UpsertSink("sqlite:///s.db", "t", ("k",)), "b": UpsertSink("sqlite:///t.db", "t", ("k",))}
        Outputs({**into, "c": SqlSink(url, "t"), "d": SqlSink(url, "t"), "e": MemorySink(MemoryTransactionLog())}).check_locks()
        with pytest.raises(UsageError, match="both write to"):
            Outputs({**into, "c": UpsertSink(f"sqlite:///{tmp_path}/s.db", "t", ("k",))}).check_locks()


def by_length(batch):
    return {"good": batch, "bad": batch}
