"""Tables as sinks of `headrace run`: a checkpoint of all workers is one commit of the table, the process that dies where."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.base.capabilities import SingleCommit
from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.handles import TableHandleSerializer
from headrace.connectors.tables.vacuum import MarkState, TableUpkeep
from headrace.delta import DeltaSink
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import DataLossError, FencedError, PeerError
from headrace.enumerator.ledger import SplitState
from headrace.iceberg import IcebergSink
from headrace.kafka import KafkaSource, Latest
from headrace.run import Pipeline
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpointSerializer
from headrace.runners.local.commit.committer import CLEAN_UP_AGAIN_S, RunCommitter
from headrace.runners.local.commit.state import first_attempt
from headrace.runners.local.events import WorkerHandle
from headrace.sinks import TwoPhaseSink
from headrace.testing import FakeKafka, MemorySplit
from headrace.testing.memory import MemorySplitSerializer
from tests.helpers import table_rig
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_values

SERIALIZER = RunCheckpointSerializer(CheckpointSerializer("memory", MemorySplitSerializer()), TableHandleSerializer())


STEP = 4
"""Deaths that are tried: at each fourth thing that is done. All of them (1) take half a minute."""


class Folder:
    """A run's folder and its table. `around` and `calling` are notified of what its coordinators do, as `WatchedLog` has it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sink = DeltaSink(str(root / "table"))
        self.sink.create_table(table_rig.VALUES)
        self.now_s = 0.0
        self.drawn = 0
        self.store = self.opened("checkpoints")
        self.store.add_worker(0)

    def opened(self, name: str) -> CheckpointStore[Any, Any]:
        return CheckpointStore(str(self.root / name), SERIALIZER, 1)

    def coordinator(
        self,
        store: CheckpointStore[Any, Any] | None = None,
        around: Callable[[int, Callable[[], None]], None] = lambda number, commit: commit(),
        calling: Callable[[], None] = lambda: None,
    ) -> tuple[RunCommitter[Any, Any], JobCommitter[Any]]:
        """A new lifetime, which has recovered nothing yet."""
        store = store or self.store
        sink = Watched(self.sink, around, calling)
        run = RunCommitter(
            store, sink, store.latest(), 0, lambda number: None, self.check_readable, lambda: self.now_s, self.draw
        )
        return run, JobCommitter("x", run)

    def living(self) -> tuple[RunCommitter[Any, Any], JobCommitter[Any]]:
        """A coordinator that has recovered."""
        run, job = self.coordinator()
        job.recover()
        return run, job

    def check_readable(self, splits: Any) -> None:
        """Of the source: all is there."""

    def draw(self) -> int:
        self.drawn += 1
        return self.drawn

    def prepared(self, number: int, epoch: int, value: str) -> WorkerHandle[Any]:
        return WorkerHandle(number, self.started(number, epoch, value).prepare())

    def enlisted(self, number: int, value: str) -> WorkerHandle[Any]:
        """What a new worker has prepared."""
        self.store.add_worker(number)
        return self.prepared(number, 0, value)

    def started(self, number: int, epoch: int, value: str) -> Any:
        first = first_attempt(self.sink, self.store.registry, number)
        transaction = self.sink.begin(Attempt(first.job, epoch, first.task, first.number))
        transaction.write(table_rig.batch_of([value]))
        return transaction

    def left_open(self) -> set[str]:
        run = self.store.registry.run
        lists = {path.name for path in (Path(self.sink.uri) / "_headrace" / run).glob("*.json")}
        return table_rig.open_marks(self.sink.uri, run) | table_rig.unadded_transactions(self.sink.uri, run) | lists

    def values(self) -> list[str]:
        return table_rig.delta_values(self.sink.uri)

    def adding_commits(self) -> int:
        """Versions that have added anything."""
        logs = (Path(self.sink.uri) / "_delta_log").glob("*.json")
        return sum(any("add" in json.loads(line) for line in log.read_text().splitlines()) for log in logs)


class Watched(TwoPhaseSink[Any], SingleCommit):
    def __init__(self, inner: DeltaSink, around: Any, calling: Any) -> None:
        self.inner, self.around, self.calling = inner, around, calling

    @property
    def handles(self) -> Any:
        return self.inner.handles

    def begin(self, attempt: Attempt) -> Any:
        return self.inner.begin(attempt)

    def committer(self, job: str) -> TableCommitter:
        return TableCommitter(table_rig.WatchedLog(self.inner.log(), self.around, self.calling), job, self.inner.uri)

    def recorded(self) -> Any:
        return self.inner.recorded()

    @property
    def refuses_epochs_by_their_rows(self) -> bool:
        return self.inner.refuses_epochs_by_their_rows


def positions(number: int) -> Checkpoint[MemorySplit]:
    return Checkpoint(number, (SplitState(MemorySplit("a", number), False),), False)


def commit(run: RunCommitter[Any, Any], job: JobCommitter[Any], number: int, *handles: WorkerHandle[Any]) -> None:
    run.propose(positions(number))
    job.commit(number, handles)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def test_a_checkpoint_of_all_workers_is_one_version_of_the_table(folder):
    run, job = folder.living()
    commit(run, job, 1, folder.prepared(1, 0, "a"), folder.prepared(2, 0, "b"))
    commit(run, job, 2, folder.prepared(2, 1, "c"))
    assert folder.values() == ["a", "b", "c"]
    assert folder.adding_commits() == 2
    assert folder.left_open() == set()


def test_a_commit_leaves_alone_what_living_workers_write_and_removes_what_dead_ones_have_left(folder):
    run, job = folder.living()
    for number in (1, 2, 21):
        folder.store.add_worker(number)
    living, dead = folder.started(21, 0, "later"), folder.started(2, 0, "lost")
    run.retire(2)
    commit(run, job, 1, folder.prepared(1, 0, "a"))
    with pytest.raises(PeerError, match="given up by a driver"):
        dead.prepare()
    commit(run, job, 2, WorkerHandle(21, living.prepare()))
    assert folder.values() == ["a", "later"]
    assert folder.left_open() == set()
    late = folder.started(2, 1, "a request that was under way")
    folder.now_s = CLEAN_UP_AGAIN_S[-1]
    commit(run, job, 3)
    with pytest.raises(PeerError, match="given up by a driver"):
        late.prepare()
    assert 2 not in folder.store.registry.not_cleaned_up


def test_a_coordinator_that_dies_before_anything_that_it_does(tmp_path, monkeypatch):
    """Its successor writes again what no stored checkpoint has, and nothing else; nothing is left."""
    deaths, write = 0, CheckpointStore.write
    for nth in range(1, 200, STEP):
        folder = Folder(tmp_path / str(nth))
        run, job = folder.living()
        commit(run, job, 1, folder.prepared(1, 0, "a"))
        folder.store.add_worker(2)
        folder.prepared(2, 0, "loser")
        death = table_rig.Death(nth)
        with monkeypatch.context() as patched:
            patched.setattr(CheckpointStore, "write", death.storing(write))
            run, job = folder.coordinator(None, death.around, death.step)
            try:
                job.recover()
                commit(run, job, 2, folder.enlisted(3, "b"), folder.enlisted(4, "c"))
            except table_rig.KilledError:
                deaths += 1
        is_stored = folder.store.last_id == 2
        run, job = folder.living()
        assert folder.values() == (["a", "b", "c"] if is_stored else ["a"]), nth
        if not is_stored:
            commit(run, job, 2, folder.enlisted(5, "b"), folder.enlisted(6, "c"))
        commit(run, job, 3, folder.enlisted(7, "d"))
        assert folder.values() == ["a", "b", "c", "d"], nth
        assert folder.left_open() == set(), nth
        folder.store.close()
        if death.left > 0:
            break
    assert deaths > 5


def test_a_coordinator_that_was_replaced_commits_nothing(folder):
    run, job = folder.living()
    (folder.root / "copy").mkdir()
    (folder.root / "copy" / "run.json").write_bytes((folder.root / "checkpoints" / "run.json").read_bytes())
    copy = folder.opened("copy")
    _, newer = folder.coordinator(copy)
    newer.recover()
    with pytest.raises(FencedError):
        commit(run, job, 1, folder.prepared(1, 0, "a"))
    assert folder.values() == []
    copy.close()


def test_files_that_another_process_removes_before_a_stored_checkpoint_is_committed_are_said_to_be_lost(folder):
    def refused(number: int, commit: Callable[[], None]) -> None:
        if number == 2:
            raise PeerError("injected: no rights")
        commit()

    run, job = folder.coordinator(None, refused)
    job.recover()
    handle = folder.prepared(1, 0, "a")
    with pytest.raises(PeerError, match="no rights"):
        commit(run, job, 1, handle)
    (Path(folder.sink.uri) / handle.handle.files[0].path).unlink()
    with pytest.raises(DataLossError, match=r"checkpoint 1 is stored and not committed, and cannot be .* no earlier one"):
        folder.coordinator()[1].recover()
    assert not any("add" in action for action in table_rig.delta_actions(folder.sink.uri))


def test_upkeep_shows_what_a_run_has_open_and_removing_it_fences_the_coordinator(folder):
    run, job = folder.living()
    commit(run, job, 1, folder.prepared(1, 0, "a"))
    handle = folder.prepared(1, 1, "b")
    upkeep = TableUpkeep(folder.sink.log(), folder.sink.uri)
    (found,) = upkeep.transactions()
    assert (found.job, found.place, found.state) == (folder.store.registry.run, handle.handle.place, MarkState.OPEN)
    assert upkeep.remove(found.job, {found.place}) == {found.place}
    with pytest.raises(FencedError, match="claimed it"):
        commit(run, job, 2, handle)
    assert folder.values() == ["a"]


# --- in processes -------------------------------------------------------------------------------------------------------


def topic_of(kafka: FakeKafka, rows: int) -> KafkaSource:
    kafka.create_topic("in", partitions=2)
    for number in range(rows):
        kafka.append("in", b"%d" % number, partition=number % 2)
    return KafkaSource(kafka.bootstrap, topics=["in"], stop=Latest(), columns=["value"])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_topic_becomes_a_table(tmp_path, kind):
    rows = pa.schema([("value", pa.binary())])
    sink = DeltaSink(str(tmp_path / "table")) if kind == "delta" else IcebergSink(TABLE, catalog_of(str(tmp_path)))
    sink.create_table(rows)
    with FakeKafka() as kafka:
        Pipeline(topic_of(kafka, 300), sink).run(checkpoints=str(tmp_path / "checkpoints"), workers=2, interval_s=0.2)
    found = table_rig.delta_values(sink.uri) if isinstance(sink, DeltaSink) else iceberg_values(str(tmp_path))
    assert Counter(map(int, found)) == Counter(range(300))
