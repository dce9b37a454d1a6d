"""A run whose sink was restored from an older backup is refused, also where nothing of it is ever prepared."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

from headrace.connectors.base.commit import JobCommitter, StaleEpochError
from headrace.connectors.base.outputs import Outputs
from headrace.connectors.base.sink import Attempt
from headrace.connectors.sql.commits import CommitStore
from headrace.connectors.sql.upsert import UpsertSink
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import RetriableError, StateError
from headrace.enumerator.ledger import SplitState
from headrace.files import FileSink
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpoint, RunCheckpointSerializer
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.events import WorkerHandle
from headrace.testing.memory import MemorySplit, MemorySplitSerializer
from tests.helpers.sql_rig import SqlRig, batch
from tests.helpers.table_rig import KilledError


class Run:
    """A run of one sink, or of several, in lifetimes of its coordinator. Checkpoint n has read n rows, with the ids up to n."""

    def __init__(self, root: Path, sink: Any) -> None:
        self.folder, self.sink, self.outputs = root / "checkpoints", sink, Outputs(sink)
        self._serializer: RunCheckpointSerializer[Any, Any] = RunCheckpointSerializer(
            CheckpointSerializer("memory", MemorySplitSerializer()), self.outputs.handles
        )

    def lifetime(self, *checkpoints: int, folder: Path | None = None) -> RunCheckpoint[Any, Any] | None:
        """Recover, and take these. Gives the last one, as it is stored."""
        with ExitStack() as stack:
            store = stack.enter_context(closing(CheckpointStore(str(folder or self.folder), self._serializer, 1)))
            number = store.registry.next_number
            store.add_worker(number)
            latest = store.latest()
            run: RunCommitter[Any, Any] = RunCommitter(
                store, self.sink, latest, number, lambda _: None, lambda _: None, lambda: 0.0, lambda: 1
            )
            stack.enter_context(closing(run))
            job = JobCommitter("x", run)
            job.recover()
            for each in checkpoints:
                handles = []
                for name, sink in self.outputs.sinks.items():
                    with sink.begin(Attempt(store.registry.job(number, name), each, 0, 0)) as transaction:
                        transaction.write(batch([each]))
                        handle = transaction.prepare()
                    if handle is not None:
                        handles.append(WorkerHandle(number, self.outputs.tagged(name, handle)))
                run.propose(Checkpoint(each, (SplitState(MemorySplit("a", each), finished=False),), False))
                job.commit(each, tuple(handles))
            return store.latest()


@pytest.fixture
def rig(tmp_path) -> SqlRig:
    rig = SqlRig(f"sqlite:///{tmp_path / 'some.db'}")
    rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    return rig


@pytest.fixture
def upsert(rig, tmp_path) -> Run:
    return Run(tmp_path, UpsertSink(rig.url, rig.table, ("id",)))


@pytest.mark.parametrize("backed_up", [0, 1, 2])
def test_a_database_of_upserts_that_is_older_than_the_checkpoint_is_refused(upsert, rig, tmp_path, backed_up):
    """The rows between were left out, silently."""
    upsert.lifetime(*range(1, backed_up + 1))
    shutil.copy(tmp_path / "some.db", tmp_path / "backup")
    upsert.lifetime(*range(backed_up + 1, 4))
    assert rig.ids() == [1, 2, 3]
    shutil.copy(tmp_path / "backup", tmp_path / "some.db")
    known = f"checkpoint {backed_up}" if backed_up else "none of its checkpoints"
    for _ in range(2):
        with pytest.raises(StateError, match=rf"checkpoint is 3, and the sink knows {known}: .* an older state of it"):
            upsert.lifetime(4)
    assert rig.ids() == list(range(1, backed_up + 1))


@pytest.mark.parametrize("backed_up", [0, 1, 2])
def test_a_folder_of_files_that_is_older_than_the_checkpoint_is_said_to_be_so(tmp_path, backed_up):
    """The error said that the checkpoints are the older ones, and that rows would be written twice."""
    run = Run(tmp_path, FileSink(str(tmp_path / "files")))
    run.lifetime(*range(1, backed_up + 1))
    (tmp_path / "files").mkdir(exist_ok=True)
    shutil.copytree(tmp_path / "files", tmp_path / "backup")
    run.lifetime(*range(backed_up + 1, 4))
    shutil.rmtree(tmp_path / "files")
    shutil.move(tmp_path / "backup", tmp_path / "files")
    known = f"checkpoint {backed_up}" if backed_up else "none of its checkpoints"
    for _ in range(2):
        with pytest.raises(StateError, match=rf"checkpoint is 3, and the sink knows {known}: .* an older state of it"):
            run.lifetime(4)


@pytest.mark.parametrize("makes", ["upsert", "files"])
def test_an_older_copy_of_the_checkpoints_is_refused_as_such(upsert, tmp_path, makes):
    run = upsert if makes == "upsert" else Run(tmp_path, FileSink(str(tmp_path / "files")))
    run.lifetime(1)
    shutil.copytree(run.folder, tmp_path / "copy")
    run.lifetime(2)
    with pytest.raises(StaleEpochError, match="is an older copy"):
        run.lifetime(3, folder=tmp_path / "copy")
    run.lifetime(3)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("first", [1, 2])
def test_a_coordinator_that_dies_around_the_record_is_continued(upsert, rig, monkeypatch, first, when):
    upsert.lifetime(*range(1, first))
    record = CommitStore.record

    def dying(self: CommitStore, *arguments: Any) -> None:
        if when == "after":
            record(self, *arguments)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(CommitStore, "record", dying)
        with pytest.raises(KilledError):
            upsert.lifetime(first)
    stored = upsert.lifetime()
    assert stored is not None
    assert (stored.positions.checkpoint_id, stored.completed) == (first, True)
    upsert.lifetime(first + 1)
    assert rig.ids() == list(range(1, first + 2))


def test_a_database_that_is_away_when_it_is_recorded_leaves_a_checkpoint_that_is_completed_later(upsert, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(CommitStore, "record", Mock(side_effect=RetriableError("away")))
        with pytest.raises(RetriableError):
            upsert.lifetime(1)
    assert upsert.lifetime(2).completed


def test_a_checkpoint_that_has_read_nothing_is_not_recorded(upsert, rig, monkeypatch):
    upsert.lifetime(1)
    recorded = []
    record = CommitStore.record
    monkeypatch.setattr(CommitStore, "record", lambda self, *arguments: (recorded.append(1), record(self, *arguments)))
    monkeypatch.setattr(MemorySplit, "__eq__", lambda self, other: self.split_id == other.split_id)
    assert upsert.lifetime(2).positions.checkpoint_id == 2
    assert recorded == []


def test_the_checkpoints_of_an_earlier_version_continue(upsert, rig, monkeypatch):
    """They were recorded in no database."""
    with monkeypatch.context() as patched:
        patched.setattr(UpsertSink, "records_all_epochs", False)
        assert upsert.lifetime(1, 2).epoch == 0
    upsert.lifetime()
    assert upsert.lifetime(3).epoch > 0
    assert rig.ids() == [1, 2, 3]


@pytest.mark.parametrize("restored", ["rows", "files"])
def test_of_two_outputs_the_older_one_is_named(rig, tmp_path, restored):
    sinks = {"rows": UpsertSink(rig.url, rig.table, ("id",)), "files": FileSink(str(tmp_path / "files"))}
    run = Run(tmp_path, sinks)
    run.lifetime(1)
    copies = {"rows": tmp_path / "backup.db", "files": tmp_path / "backup"}
    places = {"rows": tmp_path / "some.db", "files": tmp_path / "files"}
    copied = shutil.copy if restored == "rows" else shutil.copytree
    copied(places[restored], copies[restored])
    run.lifetime(2)
    run.lifetime(3, 4)
    assert rig.ids() == [1, 2, 3, 4]
    assert len(list((tmp_path / "files").glob("*.parquet"))) == 4
    if restored == "files":
        shutil.rmtree(places["files"])
    copied(copies[restored], places[restored])
    with pytest.raises(StateError, match=rf"checkpoint is 4, and the sink of the output '{restored}' knows checkpoint 1"):
        run.lifetime(5)
