"""The folder of a run's checkpoints, the settings by Flink's names, and the messages between the processes."""

from __future__ import annotations

import errno
import fcntl
import inspect
import json
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.connectors.base.capabilities import PromptLookup
from headrace.connectors.base.commit import JobCommitter, StaleEpochError
from headrace.connectors.base.sink import Attempt, RecordedEpoch
from headrace.connectors.files.store import LocalStore
from headrace.connectors.kafka.write.transactions import Transactions
from headrace.connectors.sql.handles import SqlHandle, SqlHandleSerializer
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import (
    AuthenticationError,
    DataLossError,
    DeadlineExceededError,
    FencedError,
    HeadraceError,
    RetriableError,
    RunFailedError,
    StateError,
    UnclassifiedError,
    UsageError,
)
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.resumed import resumed
from headrace.kafka import At, Committed, KafkaSink, KafkaSource, Latest
from headrace.run import ExponentialDelay, FixedDelay, Pipeline, Retention, RunSettings
from headrace.runners.job_file import PipelineFile, load_file
from headrace.runners.local import checkpoints, coordinator, rescale
from headrace.runners.local.checkpoints import (
    CheckpointNotStoredError,
    CheckpointStore,
    RunCheckpoint,
    RunCheckpointSerializer,
    WorkerRegistry,
)
from headrace.runners.local.commit.committer import CLEAN_UP_AGAIN_S, RunCommitter
from headrace.runners.local.commit.strategy import EPOCH_BITS
from headrace.runners.local.coordinator import CoordinatorOrder, RunOutcome
from headrace.runners.local.events import WorkerDied, WorkerHandle, WorkerSnapshotted
from headrace.runners.local.finish import finish
from headrace.runners.local.processes import PROCESS_NAME, children_heed_signals, forked_apart, leave_signals_to_supervisor
from headrace.runners.local.replan import Replanning
from headrace.runners.local.rescale import (
    Rescaling,
    drop_requests,
    finish_request,
    is_requested,
    read_requests,
    request_rescale,
    take_up_request,
    withdraw_request,
)
from headrace.runners.local.savepoints import Savepoint, begin_with, fetch_savepoint, given_savepoint, shown, take_savepoint
from headrace.runners.local.settings import flink_settings
from headrace.runners.local.storage.files import UnusableError
from headrace.runners.local.storage.folder import FolderFiles, local_folder, write_whole
from headrace.runners.local.storage.lock import LOCK
from headrace.runners.local.storage.object_log import ObjectLog
from headrace.runners.local.storage.places import run_files
from headrace.runners.local.supervisor import CoordinatorProcess, _asked_before, supervise
from headrace.runners.local.wire import run_pb2 as pb
from headrace.runners.local.wire.messages import PROTOCOL, RunMessages, check_hello, hello
from headrace.runners.local.worker import described, transform_error
from headrace.runners.pipeline import PickledPipeline
from headrace.runners.restarts import GiveUp, Restarts
from headrace.testing import (
    FakeKafka,
    Killed,
    MemoryHandle,
    MemoryLog,
    MemorySink,
    MemorySource,
    MemorySplit,
    MemoryTransactionLog,
)
from headrace.testing.memory import MemorySplitSerializer
from headrace.testing.memory_sink import MemoryHandleSerializer
from tests.helpers.envelopes import enveloped, resealed, sealed, without
from tests.helpers.generate_grpc import MADE, PROTO, ROOT, generate
from tests.helpers.split_sources import Piece

GOLDEN = Path(__file__).parents[1] / "golden" / "run-checkpoint-v1.json"
SERIALIZER = RunCheckpointSerializer(CheckpointSerializer("memory", MemorySplitSerializer()), MemoryHandleSerializer())


def checkpoint(checkpoint_id=3, handles=(), completed=False, epoch=0, before=0):
    positions = Checkpoint(checkpoint_id, (SplitState(MemorySplit("a", checkpoint_id), False),), False)
    return RunCheckpoint(positions, handles, completed, epoch, before)


STORES = ExitStack()


@pytest.fixture(autouse=True)
def closed():
    with STORES:
        yield


def opened(folder, retained=1):
    """A store that is closed when the test ends, if not before."""
    store = CheckpointStore(str(folder), SERIALIZER, retained)
    store.close = STORES.callback(cache(store.close))
    return store


@pytest.fixture
def store(tmp_path):
    return opened(tmp_path)


def add_workers(store, *numbers):
    for number in numbers:
        store.add_worker(number)


def sent_pipeline():
    return PickledPipeline.of(pipeline_in_memory())


def pipeline_in_memory(*transform):
    return Pipeline(MemorySource(MemoryLog()), MemorySink(MemoryTransactionLog()), *transform)


def part_of_coordination(**attributes):
    """One that is not started, of these attributes."""
    coordination = object.__new__(coordinator._Coordination)
    vars(coordination).update({f"_{name}": value for name, value in attributes.items()})
    return coordination


def test_a_run_whose_lock_was_removed_takes_it_again_and_a_second_run_is_refused(store, tmp_path, caplog):
    """By another process who cleans up. The coordinator looks each second."""
    (tmp_path / "lock").unlink()
    store.keep_lock()
    assert "lock was removed while this run is running" in caplog.text
    with pytest.raises(FencedError, match="another run works with these checkpoints"):
        opened(tmp_path)
    store.keep_lock()
    assert len(caplog.records) == 1
    store.close()
    opened(tmp_path).close()


def test_a_run_whose_files_were_all_removed_leaves_what_the_next_start_takes(store, tmp_path, caplog):
    """Or its checkpoints would be of a run that is not known."""
    store.write(checkpoint(1))
    for path in tmp_path.iterdir():
        path.unlink()
    store.write(checkpoint(2))
    assert "run.json was removed while this run is running" in caplog.text
    store.close()
    with closing(opened(tmp_path)) as again:
        assert (again.registry, again.latest()) == (store.registry, checkpoint(2))


@pytest.mark.parametrize(
    "changes",
    [
        lambda store: store.write(checkpoint(2)),
        lambda store: store.add_worker(7),
        lambda store: store.remove_workers([0]),
        lambda store: store.take_back(1),
        lambda store: store.remove(),
        lambda store: store.keep_lock(),
    ],
    ids=["write", "add", "remove", "take back", "remove", "look"],
)
def test_of_two_runs_that_both_had_the_lock_the_first_changes_nothing_any_more(tmp_path, changes):
    """The second one has come before the first has looked."""
    first = opened(tmp_path)
    first.write(checkpoint(1))
    (tmp_path / "lock").unlink()
    second = opened(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FencedError, match=r"lock was removed .* another run has made it again"):
        changes(first)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    second.write(checkpoint(2))


def test_the_coordinator_looks_after_its_lock():
    looked = Mock(side_effect=FencedError("injected"))
    store = SimpleNamespace(keep_lock=looked)
    coordination = part_of_coordination(
        store=store, asked_s=float("-inf"), pool=SimpleNamespace(silent=lambda _: ()), core=SimpleNamespace(workers={})
    )
    with pytest.raises(FencedError):
        coordination._take(None)
    looked.assert_called_once_with()


def test_a_reason_with_lone_surrogates_reaches_the_coordinator():
    reason = os.fsdecode(b"no file \xff.csv")
    with pytest.raises(UnicodeEncodeError):
        reason.encode()
    said = pb.FromWorker(failed=pb.Failed(error=described(DataLossError(reason)), final=True))
    heard = pb.FromWorker.FromString(said.SerializeToString()).failed
    assert (heard.error, heard.final) == ("DataLossError: no file \\udcff.csv", True)


def ends_what_it_has_started(said):
    leave_signals_to_supervisor()
    children_heed_signals()
    os.kill(os.getpid(), signal.SIGTERM)  # which it outlives
    ends = []
    with subprocess.Popen(["sleep", "60"]) as program:
        program.terminate()
        ends.append(program.wait())
    process = multiprocessing.get_context("fork").Process(target=signal.pause)
    process.start()
    process.terminate()
    process.join()
    ends.append(process.exitcode)
    said.send(ends)


def test_a_function_can_end_the_processes_that_it_has_started_by_sigterm():
    """Which a worker itself leaves to its supervisor."""
    heard, said = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=ends_what_it_has_started, args=(said,))
    worker.start()
    try:
        assert heard.poll(20.0)
        assert heard.recv() == [-signal.SIGTERM, -signal.SIGTERM]
    finally:
        worker.kill()
        worker.join()


def test_a_port_that_is_taken_ends_a_run_that_starts_and_is_tried_again_by_one_that_continues():
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        kinds = []
        for run in (None, "run-a"):
            order = SimpleNamespace(settings=RunSettings("x", metrics_port=port), run=run)
            with pytest.raises((RetriableError, UsageError), match=f"cannot be served at 127.0.0.1:{port}") as caught:
                part_of_coordination(order=order)._serve_metrics()
            kinds.append((type(caught.value), coordinator._failure(caught.value).is_final))
    assert kinds == [(UsageError, True), (RetriableError, False)]


def test_a_metrics_address_that_can_be_no_name_of_a_host_ends_a_run_that_starts():
    """Regression: Python raises a TypeError for it, for which the run was started again some times."""
    pytest.importorskip("prometheus_client")
    order = SimpleNamespace(settings=RunSettings("x", metrics_port=1, metrics_address="\udcff"), run=None)
    with pytest.raises(UsageError, match="metrics cannot be served at"):
        part_of_coordination(order=order)._serve_metrics()


def test_a_login_that_a_store_refuses_ends_a_run_that_starts_and_is_tried_again_by_one_that_continues(monkeypatch):
    monkeypatch.setattr(coordinator, "run_files", Mock(side_effect=AuthenticationError("x: the store refuses the login")))
    pipeline = Pipeline(KafkaSource("127.0.0.1:1", topics=["in"]), KafkaSink("127.0.0.1:1", topic="out"))
    for run, kind in ((None, AuthenticationError), ("run-a", RetriableError)):
        order = SimpleNamespace(settings=RunSettings("x"), run=run, pipeline=SimpleNamespace(load=lambda: pipeline))
        with pytest.raises(HeadraceError, match="refuses the login") as caught:
            coordinator._opened(order, Path("socket"), None, None)
        assert type(caught.value) is kind


@pytest.mark.parametrize("answer", [OSError(errno.EROFS, "injected"), AttributeError("injected")], ids=["no place", "mistake"])
@pytest.mark.parametrize("request_", ["names", "create"])
def test_a_store_that_refuses_at_the_restart_of_a_run_that_has_used_it_is_an_outage(tmp_path, monkeypatch, answer, request_):
    """Regression: an answer that passes, as in a store's maintenance, ended a running job for good at its restart."""
    local = LocalStore(f"{tmp_path}/run")
    for module in (coordinator, checkpoints):
        monkeypatch.setattr(module, "run_files", lambda _: ObjectLog("s3://b/run", local))
    settings = RunSettings(f"{tmp_path}/run")
    with closing(CheckpointStore(settings.checkpoints, SERIALIZER, 1, "command")) as store:
        run = store.registry.run
    monkeypatch.setattr(local, request_, Mock(side_effect=answer))
    order = SimpleNamespace(settings=settings, run=run, command="command", pipeline=SimpleNamespace(load=pipeline_in_memory))
    with pytest.raises(RetriableError, match=r"s3://b/run: no checkpoints can be kept there: .*injected"):
        coordinator._opened(order, Path("socket"), None, None)


def test_a_checkpoint_comes_back_as_it_was_written(tmp_path):
    store = opened(tmp_path / "new" / "folder")
    written = checkpoint(handles=(WorkerHandle(4, MemoryHandle(9)),), epoch=77, before=5)
    store.write(written)
    run = store.registry.run
    store.close()
    again = opened(tmp_path / "new" / "folder")
    assert (again.latest(), again.registry.run, again.last_id) == (written, run, 3)


def test_each_writing_of_a_checkpoint_has_its_own_positions_handles_and_state(tmp_path):
    store = opened(tmp_path)
    prepared = checkpoint(handles=(WorkerHandle(4, MemoryHandle(9)),), epoch=77)
    for written in (prepared, replace(prepared, handles=(), completed=True), checkpoint(4, epoch=78), checkpoint(5, epoch=79)):
        store.write(written)
        assert store.latest() == written


def test_the_golden_checkpoint_is_read_and_written():
    found = SERIALIZER.deserialize("run-golden", GOLDEN.read_bytes(), "golden")
    assert found == checkpoint(12, (WorkerHandle(3, MemoryHandle(7)), WorkerHandle(4, MemoryHandle(8))), False, 99, 98)
    assert SERIALIZER.serialize("run-golden", found) == GOLDEN.read_bytes().rstrip(b"\n")


def test_a_folder_has_one_coordinator_at_a_time(tmp_path):
    first = opened(tmp_path)
    with pytest.raises(FencedError, match="another run works with these checkpoints"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_who_only_looks_whether_a_run_is_running_does_not_end_one_that_starts(tmp_path, monkeypatch):
    """`headrace top` shares the lock for a moment: a coordinator that started just then was informed that another has it."""
    opened(tmp_path).close()
    looker, tries, flock = (tmp_path / LOCK).open(), [], fcntl.flock
    flock(looker, fcntl.LOCK_SH)

    def gone_at_the_second_try(file, operation):
        if operation & fcntl.LOCK_EX:
            tries.append(operation)
            if len(tries) == 2:
                looker.close()
        flock(file, operation)

    monkeypatch.setattr("headrace.runners.local.storage.lock.fcntl.flock", gone_at_the_second_try)
    opened(tmp_path).close()
    assert len(tries) == 2


def test_a_frozen_looker_is_waited_for_only_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.runners.local.storage.lock.LOOKED_AT_S", 0.02)
    opened(tmp_path).close()
    with (tmp_path / LOCK).open() as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        with pytest.raises(FencedError, match="another run works with these checkpoints"):
            opened(tmp_path)


def test_transactions_of_another_kind_of_sink_are_not_taken_for_damage():
    made = RunCheckpointSerializer(SERIALIZER._source, SqlHandleSerializer()).serialize(
        "run-1", replace(checkpoint(1), handles=(WorkerHandle(1, SqlHandle("any", 5)),))
    )
    with pytest.raises(StateError, match="not those of this kind of sink: start the run with the sink that it had"):
        SERIALIZER.deserialize("run-1", made, "here")


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data.replace(b"memory", b"memoru"), lambda data: b""])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(tmp_path, caplog, damage):
    store = opened(tmp_path, retained=2)
    for number in (1, 2):
        store.write(checkpoint(number))
    last = tmp_path / "checkpoint-000000000002.json"
    assert damage(last.read_bytes()) != last.read_bytes()
    last.write_bytes(damage(last.read_bytes()))
    assert store.latest() == checkpoint(1)
    assert str(last) in caplog.text
    assert store.last_id == 2  # so that its number is not used again
    (tmp_path / "checkpoint-000000000001.json").write_bytes(b"{}")
    with pytest.raises(StateError, match="no checkpoint is good"):
        store.latest()


def test_execution_checkpointing_num_retained_keeps_the_newest(tmp_path):
    store = opened(tmp_path, retained=2)
    for number in (1, 2, 3):
        store.write(checkpoint(number, completed=True))
    assert numbers_in(tmp_path) == [2, 3]


def numbers_in(folder):
    return sorted(int(path.name[-7:-5]) for path in folder.glob("checkpoint-*.json"))


def test_a_checkpoint_takes_the_place_of_another_when_it_is_committed(store, tmp_path):
    handles = (WorkerHandle(4, MemoryHandle(9)),)
    store.write(checkpoint(1, completed=True, epoch=7))
    store.write(checkpoint(2, handles, epoch=8, before=7))
    assert numbers_in(tmp_path) == [1, 2]
    store.write(checkpoint(2, completed=True, epoch=8, before=7))
    assert numbers_in(tmp_path) == [2]


def test_a_damaged_checkpoint_does_not_push_out_the_one_that_the_run_may_go_back_to(store, tmp_path):
    """It counts as retained, and an uncommitted one had nothing before it any more."""
    store.write(checkpoint(1, completed=True, epoch=7))
    (tmp_path / "checkpoint-000000000002.json").write_bytes(b"torn")
    third = checkpoint(3, (WorkerHandle(4, MemoryHandle(9)),), epoch=8, before=7)
    store.write(third)
    assert store.before(third) == checkpoint(1, completed=True, epoch=7)
    store.write(replace(third, handles=(), completed=True))
    assert numbers_in(tmp_path) == [3]


def test_a_run_goes_back_to_the_last_good_checkpoint_after_which_nothing_was_committed(tmp_path):
    store = opened(tmp_path, retained=3)
    handles = (WorkerHandle(4, MemoryHandle(9)),)
    first, second = checkpoint(1, completed=True, epoch=7), checkpoint(2, completed=True, epoch=7)
    third = checkpoint(3, handles, epoch=8, before=7)
    for each in (first, second, third):
        store.write(each)
    assert store.before(third) == second
    (tmp_path / "checkpoint-000000000002.json").write_bytes(b"{}")
    assert store.before(third) == first
    assert store.before(replace(third, epoch_before=6)) is None
    assert store.before(first) is None
    store.take_back(3)
    assert numbers_in(tmp_path) == [1, 2]
    assert store.latest() == first


def test_a_checkpoint_that_cannot_be_written_leaves_the_previous_one(store, tmp_path):
    store.write(checkpoint(1))
    (tmp_path / "checkpoint-000000000002.writing").mkdir()  # as a full disk: the file cannot be made
    with pytest.raises(CheckpointNotStoredError, match="checkpoint-000000000002"):
        store.write(checkpoint(2))
    assert store.latest() == checkpoint(1)


def test_what_a_full_disk_took_of_a_checkpoint_does_not_stay_there(store, tmp_path, monkeypatch):
    """Each checkpoint that failed left a part of itself under its own name, which kept the disk full."""
    store.write(checkpoint(1))
    before, refused = sorted(os.listdir(tmp_path)), []

    def full(file):
        refused.append(os.fstat(file).st_size)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as injected:
        injected.setattr("os.fsync", full)
        for number in (2, 3):
            with pytest.raises(CheckpointNotStoredError, match="No space left on device"):
                store.write(checkpoint(number))
        with pytest.raises(OSError, match="No space left on device"):
            write_whole(tmp_path / "savepoint-x.json", b"1")
    assert all(refused)  # it was there
    assert sorted(os.listdir(tmp_path)) == before
    assert store.latest() == checkpoint(1)


@pytest.mark.parametrize("below", ["", "/below/it"])
def test_a_place_that_can_be_no_folder_is_refused_by_name(tmp_path, below):
    """It was a traceback of Python's, or tried again for ever."""
    (tmp_path / "file").touch()
    place = f"{tmp_path}/file{below}"
    with pytest.raises(UsageError, match=f"{place} cannot be used"):
        opened(place)
    assert _asked_before(Path(place)) == ()


@pytest.mark.parametrize(("number", "kind"), [(errno.EROFS, UsageError), (errno.EACCES, UsageError), (errno.ENOSPC, OSError)])
def test_what_the_disk_refuses_for_good_is_an_error_of_use_and_a_full_one_may_have_space_again(
    tmp_path, monkeypatch, number, kind
):
    monkeypatch.setattr("headrace.runners.local.checkpoints.FolderLock", Mock(side_effect=OSError(number, "injected")))
    with pytest.raises(kind, match="injected"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("in_the_way", "use"),
    [
        ("run.writing", lambda store: store.add_worker(1)),
        ("checkpoint-000000000003.json", lambda store: store.latest()),
        ("savepoint.json", lambda store: begin_with(None, store, POSITIONS, as_it_is)),
        ("savepoint.writing", lambda store: begin_with(SAVEPOINT, store, POSITIONS, as_it_is)),
    ],
)
def test_what_a_start_may_not_read_or_write_in_its_folder_is_an_error_of_use(store, tmp_path, in_the_way, use):
    """Regression: a run whose folder was no longer writable, or whose checkpoint could not be read, restarted for ever."""
    (tmp_path / in_the_way).mkdir()
    with pytest.raises(UsageError, match=f"^{tmp_path} cannot be used: .*{in_the_way}"):
        use(store)


@pytest.mark.parametrize("request_", ["names", "claim", "read", "write"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_refuses_ends_a_run_that_starts_and_is_tried_some_times_by_one_that_continues(
    tmp_path, monkeypatch, request_, number
):
    """Regression: a folder that was read-only for a while ended a job for good."""
    with closing(opened(tmp_path / "run")) as store:
        run = store.registry.run
    monkeypatch.setattr(FolderFiles, request_, Mock(side_effect=OSError(number, "injected")))
    for started, kind in ((None, UnusableError), (run, UnclassifiedError)):
        load = SimpleNamespace(load=pipeline_in_memory)
        settings = RunSettings(f"{tmp_path}/{'new' if started is None and request_ == 'write' else 'run'}")
        order = SimpleNamespace(settings=settings, run=started, command="", pipeline=load, passed_over=(), replanned=None)
        with pytest.raises(HeadraceError, match=r"cannot be used: .*injected") as caught:
            coordinator._opened(order, Path("socket"), Mock(), Mock())
        assert type(caught.value) is kind


def test_a_folder_that_refuses_while_a_run_is_running_is_tried_some_times(store, tmp_path, monkeypatch):
    """Regression: a worker that was to be started while the folder was read-only ended the job for good."""
    monkeypatch.setattr(FolderFiles, "write", Mock(side_effect=OSError(errno.EROFS, "injected")))
    running = part_of_coordination(
        serve_metrics=partial(store.add_worker, 1),
        worker_processes=Mock(),
        events=Mock(),
        pool=Mock(),
        driver=Mock(),
        order=SimpleNamespace(settings=RunSettings(str(tmp_path)), run=None),
        outcome=None,
    )
    outcome = running.run()
    assert (outcome.is_final, outcome.kinds[0]) == (False, "UnclassifiedError")
    assert outcome.error.endswith("cannot be used: [Errno 30] injected")


def test_a_checkpoint_of_another_run_or_a_newer_version_is_refused():
    data = SERIALIZER.serialize("run-a", checkpoint())
    with pytest.raises(StateError, match="of the run 'run-a', and the folder is of 'run-b'"):
        SERIALIZER.deserialize("run-b", data, "here")
    for newer in (enveloped(data, version=2), resealed(data, handle_version=2)):
        with pytest.raises(
            StateError, match="here: the checkpoint of a run cannot be read: a newer headrace wrote it: version 2"
        ):
            SERIALIZER.deserialize("run-a", newer, "here")


def test_numbers_of_workers_are_never_given_twice_and_stay_listed_until_they_are_cleaned_up(store, tmp_path):
    add_workers(store, 0, 1)
    store.remove_workers([0])
    store.close()
    again = opened(tmp_path)
    assert (again.registry.next_number, again.registry.not_cleaned_up) == (2, (1,))
    assert again.registry.job(1) == f"{again.registry.run}-1"


def test_checkpoints_without_their_run_are_refused(store, tmp_path):
    store.write(checkpoint(1))
    store.close()
    (tmp_path / "run.json").unlink()
    with pytest.raises(StateError, match="which run they are of is not known"):
        opened(tmp_path)


def test_a_run_whose_checkpoints_are_gone_does_not_start_over_though_its_run_json_is_there(store, tmp_path):
    """A sink that is a function has no epoch by which the run could be refused."""
    store.write(checkpoint(1))
    store.close()
    [path] = tmp_path.glob("checkpoint-*.json")
    moved = path.rename(tmp_path / "aside")
    for _ in range(2):  # who was refused leaves it as it was
        with pytest.raises(StateError, match=r"checkpoints of this run, run-.*, are gone.*Put them back"):
            opened(tmp_path)
    moved.rename(path)
    assert opened(tmp_path).latest() == checkpoint(1)


def test_a_run_that_has_stored_no_checkpoint_yet_starts(store, tmp_path):
    store.add_worker(0)
    store.close()
    again = opened(tmp_path)
    assert (again.latest(), again.registry.next_number) == (None, 1)


def test_a_removal_that_a_crash_cuts_short_leaves_a_folder_that_starts_over(store, tmp_path, monkeypatch):
    store.write(checkpoint(1, completed=True))
    monkeypatch.setattr(store.files, "remove", dies)
    with pytest.raises(Killed):
        store.remove()
    store.close()
    [path] = tmp_path.glob("checkpoint-*.json")
    path.unlink()  # as far as it came
    assert opened(tmp_path).latest() is None


def test_the_golden_run_json_is_read(tmp_path):
    (tmp_path / "run.json").write_bytes((GOLDEN.parent / "run-roster-v1.json").read_bytes())
    (tmp_path / "checkpoint-000000000001.json").write_bytes(b"whatever")
    assert opened(tmp_path).registry == WorkerRegistry("run-golden", 3, (1, 2), (), checkpointed=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-9],
        lambda data: data.replace(b"[1,2]", b"[1,3]"),
        lambda data: enveloped(data, version=2),
        lambda data: enveloped(data, format="headrace-savepoint"),
        lambda data: resealed(data, not_cleaned_up=[-1]),
        lambda data: resealed(data, checkpointed=1),
        lambda data: without(data, "outputs"),
    ],
)
def test_a_damaged_run_json_is_refused_and_named(tmp_path, damage):
    (tmp_path / "run.json").write_bytes(damage((GOLDEN.parent / "run-roster-v1.json").read_bytes()))
    with pytest.raises(StateError, match=r"run\.json: the state of a run cannot be read: "):
        opened(tmp_path)


@pytest.mark.parametrize("url", ["s3://bucket/x", "file://host/x", "file:", "", "hdfs://n/x"])
def test_a_folder_elsewhere_is_refused(url):
    with pytest.raises(UsageError, match=r"a folder('s path or| of this machine)"):
        local_folder(url)


def test_a_url_with_more_than_a_path_is_refused():
    """Two runs had one folder."""
    for url in ("file:///ck#1", "file:///ck?2"):
        with pytest.raises(UsageError, match=r"write \? as %3F and # as %23, or give the folder's path"):
            local_folder(url)


def test_a_folder_is_a_path_or_a_file_url(tmp_path):
    assert local_folder("/ck#1") == Path("/ck#1")
    assert local_folder(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert local_folder("here") == local_folder("file:here") == Path("here").absolute()


# --- commits ----------------------------------------------------------------------------------------------------------


class ShownSink(MemorySink, PromptLookup):
    """A lookup that waits for no write gives what is `shown`, where anything is."""

    shown: ClassVar[Mapping[str, RecordedEpoch] | None] = None

    def recorded_now(self):
        return self.recorded() if self.shown is None else self.shown


def committer(store, log, number=0, draw=lambda: 1, clock=lambda: 0.0):
    return RunCommitter(store, ShownSink(log), store.latest(), number, lambda checkpoint_id: None, lambda _: None, clock, draw)


def recovered(*what, **named):
    run = committer(*what, **named)
    job = JobCommitter("x", run)
    job.recover()
    return run, job


def prepared(log, store, number, row):
    found = log.begin(store.registry.job(number), "x")
    log.append(found, [row])
    log.prepare(found)
    return WorkerHandle(number, MemoryHandle(found))


def stored_and_aborted(log, store):
    """A row that checkpoint 1 lists, whose transaction was aborted before it was committed. Gives the checkpoint's epoch."""
    add_workers(store, 0, 1)
    wanted, epoch = prepared(log, store, 1, "row"), (1 << EPOCH_BITS) + 9
    store.write(checkpoint(1, (wanted,), epoch=epoch))
    log.abort(wanted.handle.number)
    return epoch


def test_a_coordinator_that_died_while_the_sink_recorded_its_checkpoint_is_followed_at_once(tmp_path, monkeypatch):
    """Its successor looked first what was recorded, and waited until that write timed out: 10 to 20 s."""
    with FakeKafka() as kafka:
        kafka.create_topic("out")
        sink = KafkaSink(kafka.bootstrap, topic="out", properties={"default.api.timeout.ms": "3000"})
        store = CheckpointStore(str(tmp_path), RunCheckpointSerializer(SERIALIZER._source, sink.handles), 1)

        def one_lifetime(number):
            made = RunCommitter(store, sink, store.latest(), number, lambda _: None, lambda _: None, lambda: 0.0, lambda: 1)
            JobCommitter(store.registry.run, made).recover()
            return made

        first = one_lifetime(0)
        transaction = sink.begin(Attempt(store.registry.job(1), 0, 0, 0))
        transaction.write(pa.record_batch({"value": pa.array([b"x"])}))
        handles = (WorkerHandle(1, transaction.prepare()),)
        first.propose(checkpoint(1).positions)
        with monkeypatch.context() as patched:
            patched.setattr(Transactions, "end", dies)
            with pytest.raises(Killed):
                JobCommitter(store.registry.run, first).commit(1, handles)
        assert list(kafka.records("out")) == []
        one_lifetime(2)
        assert [record.value for record in kafka.records("out")] == [b"x"]


def dies(*_):
    raise Killed


def test_what_a_checkpoint_lists_is_committed_and_what_it_does_not_is_aborted(tmp_path):
    log, store = MemoryTransactionLog(), opened(tmp_path)
    add_workers(store, 0, 1, 2)
    wanted, unwanted = prepared(log, store, 1, "wanted"), prepared(log, store, 2, "unwanted")
    store.write(checkpoint(1, (wanted,), epoch=9))
    recovered(store, log)
    assert log.rows() == ["wanted"]
    assert not log.unended(store.registry.job(unwanted.number))
    assert store.latest() == checkpoint(1, (), True, epoch=9)


def test_a_living_workers_transaction_outlives_the_commits_of_the_others(tmp_path):
    log, store = MemoryTransactionLog(), opened(tmp_path)
    run, job = recovered(store, log)
    add_workers(store, 1, 2)
    handle, others = prepared(log, store, 1, "row"), prepared(log, store, 2, "later")
    run.propose(checkpoint(1).positions)
    job.commit(1, (handle,))
    assert log.rows() == ["row"]
    assert len(log.unended(store.registry.job(2))) == 1
    run.retire(2)
    run.propose(checkpoint(2).positions)
    job.commit(2, ())
    assert log.unended(store.registry.job(others.number)) == []


def lifetimes(folder, count, each_s, start_s=0.0):
    """A loop of crashes, each lifetime with a coordinator's number and a worker's. Gives the worker registry that is left."""
    log = MemoryTransactionLog()
    for lifetime in range(count):
        now_s = start_s + lifetime * each_s
        store = opened(folder)
        number = store.registry.next_number
        add_workers(store, number, number + 1)
        recovered(store, log, number, clock=lambda now_s=now_s: now_s)
        store.close()
    return store.registry


def test_a_loop_of_short_lives_does_not_pile_up_what_is_to_be_cleaned_up(tmp_path):
    """Each started with all of them again, and none lived for the minute that it takes until they are struck."""
    settles_s, each_s = CLEAN_UP_AGAIN_S[-1], 5.0
    assert len(lifetimes(tmp_path, 100, each_s).not_cleaned_up) <= 2 * (settles_s / each_s + 2)


def test_what_was_cleaned_up_is_struck_a_minute_after_the_first_time_and_not_before(tmp_path):
    first = lifetimes(tmp_path, 1, 5.0)
    assert first.not_cleaned_up == (0, 1)
    assert first.cleaned_up_s == {1: 0.0}
    assert lifetimes(tmp_path, 1, 5.0, CLEAN_UP_AGAIN_S[-1] - 1).not_cleaned_up == (0, 1, 2, 3)
    assert lifetimes(tmp_path, 1, 5.0, CLEAN_UP_AGAIN_S[-1] + 1).not_cleaned_up == (0, 2, 3, 4, 5)


@pytest.mark.parametrize("elsewhere", ["another boot", None])
def test_when_something_was_cleaned_up_by_another_machines_clock_says_nothing(tmp_path, monkeypatch, elsewhere):
    lifetimes(tmp_path, 1, 5.0)
    monkeypatch.setattr(checkpoints, "_clock_of_boot", lambda: elsewhere)
    found = lifetimes(tmp_path, 1, 5.0, 1000.0)
    assert 1 in found.not_cleaned_up
    assert found.cleaned_up_s[1] == 1000.0


def test_a_time_that_is_still_to_come_says_nothing(tmp_path):
    lifetimes(tmp_path, 1, 5.0, 1000.0)
    assert lifetimes(tmp_path, 1, 5.0, 10.0).cleaned_up_s[1] == 10.0


@pytest.mark.parametrize("cleaned_up", [[[1]], [[1, "x"]], [["1", 2.0]], [[1, 1e999]], 7, None])
def test_a_damaged_note_of_what_was_cleaned_up_is_named(tmp_path, cleaned_up):
    lifetimes(tmp_path, 1, 5.0)
    (tmp_path / "run.json").write_bytes(resealed((tmp_path / "run.json").read_bytes(), cleaned_up=cleaned_up))
    with pytest.raises(StateError, match=r"run.json: the state of a run cannot be read: it is damaged"):
        opened(tmp_path)


def test_nothing_of_a_dead_worker_is_cleaned_up_before_the_run_is_taken_over(tmp_path):
    """A worker of who has started an older copy dies before that is refused: its name is that of a worker running elsewhere."""
    log, store = MemoryTransactionLog(), opened(tmp_path)
    store.add_worker(1)
    prepared(log, store, 1, "of the run that continues")
    run = committer(store, log)
    run.retire(1)
    assert len(log.unended(store.registry.job(1))) == 1
    JobCommitter("x", run).recover()
    assert log.unended(store.registry.job(1)) == []


def test_a_look_that_lacks_what_is_decided_and_not_marked_yet_makes_no_folder_an_older_copy(tmp_path, monkeypatch):
    """The sink's log leaves out what is decided and not marked in it: that says nothing, and the fence says it all."""
    log, store = MemoryTransactionLog(), opened(tmp_path)
    (run, job), looks = recovered(store, log), []
    for number in (1, 2, 3):
        run.propose(checkpoint(number).positions)
        job.commit(number, (prepared(log, store, 1, f"row {number}"),))
        looks.append(MemorySink(log).recorded())
    monkeypatch.setattr(ShownSink, "shown", looks[0])
    again, job = recovered(store, log)
    again.propose(checkpoint(4).positions)
    job.commit(4, (prepared(log, store, 1, "row 4"),))
    assert log.rows() == [f"row {number}" for number in (1, 2, 3, 4)]


def test_a_look_that_shows_what_copies_have_replaced_makes_no_folder_an_older_copy(tmp_path, monkeypatch):
    """Both epochs are of one checkpoint, and the folder has moved on by another one since."""
    log, store = MemoryTransactionLog(), opened(tmp_path)
    first = stored_and_aborted(log, store)
    run, job = recovered(store, log)
    monkeypatch.setattr(ShownSink, "shown", {store.registry.run: RecordedEpoch(first)})
    for number in (2, 3):
        run.propose(checkpoint(number).positions)
        job.commit(number, () if number == 2 else (prepared(log, store, 1, "later"),))
        run, job = recovered(store, log)
    assert log.rows() == ["row", "later"]
    assert store.latest().replaced == (first,)
    run.propose(checkpoint(4).positions)
    job.commit(4, ())
    assert store.latest().replaced == ()  # they do not pile up


def test_a_checkpoint_whose_rows_were_copied_comes_back_as_it_was_written():
    made = replace(checkpoint(7, (), True, 9, 4), replaced=(5, 6))
    assert SERIALIZER.deserialize("run-1", SERIALIZER.serialize("run-1", made), "here") == made
    for damaged in ([5, True], [-1], [5.5], "5", 5):
        data = resealed(SERIALIZER.serialize("run-1", made), replaced=damaged)
        with pytest.raises(StateError, match="here: the checkpoint of a run cannot be read: it is damaged"):
            SERIALIZER.deserialize("run-1", data, "here")


def test_an_older_copy_of_a_folder_and_another_branch_are_refused(tmp_path):
    log, store = MemoryTransactionLog(), opened(tmp_path)
    run, job = recovered(store, log)
    older = (tmp_path / "run.json").read_bytes()
    run.propose(checkpoint(1).positions)
    job.commit(1, (prepared(log, store, 1, "row"),))
    store.close()
    for name, has_number_1 in (("older", False), ("branch", True)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.json").write_bytes(older)
        copy = opened(folder)
        if has_number_1:
            copy.write(checkpoint(1))
        with pytest.raises(StaleEpochError, match="Continuing would write rows twice"):
            recovered(copy, log)
        copy.close()


def test_a_coordinator_that_was_replaced_commits_nothing(tmp_path):
    log, store = MemoryTransactionLog(), opened(tmp_path / "first")
    stale, job = recovered(store, log)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "run.json").write_bytes((tmp_path / "first" / "run.json").read_bytes())
    recovered(opened(tmp_path / "copy"), log)
    stale.propose(checkpoint(1).positions)
    with pytest.raises(FencedError):
        job.commit(1, (prepared(log, store, 1, "row"),))
    assert log.rows() == []


def test_of_two_copies_of_a_folder_one_alone_commits_copies_of_what_was_aborted(tmp_path):
    """Both had the checkpoint whose rows an older copy had aborted, and each wrote them again: twice."""
    log, store = MemoryTransactionLog(), opened(tmp_path / "first")
    first = stored_and_aborted(log, store)
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    recovered(store, log, draw=lambda: 3)
    assert log.rows() == ["row"]
    stored = store.latest()
    assert first < stored.epoch < 2 << EPOCH_BITS
    assert stored == replace(checkpoint(1, (), True, epoch=stored.epoch), replaced=(first,))
    store.close()
    second = opened(tmp_path / "second")
    with pytest.raises(StaleEpochError, match="Continuing would write rows twice"):
        recovered(second, log, draw=lambda: 4)
    assert log.rows() == ["row"]
    second.close()
    recovered(opened(tmp_path / "first"), log)
    assert log.rows() == ["row"]


# --- savepoints -------------------------------------------------------------------------------------------------------

POSITIONS = CheckpointSerializer("memory", MemorySplitSerializer())
SAVEPOINT = Savepoint("run-a", 7, POSITIONS.serialize(checkpoint(7).positions).decode())


def as_it_is(positions):
    return positions


def test_a_savepoint_has_the_newest_committed_positions_and_another_run_starts_with_it(tmp_path):
    store = opened(tmp_path / "old")
    store.write(checkpoint(7, completed=True, epoch=9, before=8))
    path = take_savepoint(run_files(str(tmp_path / "old")), tmp_path / "made" / "savepoints")  # the run is running
    assert path == tmp_path / "made" / "savepoints" / f"savepoint-{store.registry.run}-000000000007.json"
    new = opened(tmp_path / "new")
    begin_with(fetch_savepoint(path), new, POSITIONS, as_it_is)
    assert new.latest() == RunCheckpoint(Checkpoint(1, checkpoint(7).positions.splits, False), (), completed=True)
    assert new.registry.run != store.registry.run


def test_a_run_that_starts_with_a_savepoint_ends_where_its_own_source_says():
    """Positions were taken with their stops: a run without one read nothing and ended, one with a stop never ended."""
    log = MemoryLog()
    for name in "ab":
        log.create(name)
        log.append(name, ["x"] * 10)
    ended = Checkpoint(1, (SplitState(MemorySplit("a", 4, 4), finished=True),), exhausted=True)
    open_still = Checkpoint(1, (SplitState(MemorySplit("a", 4), finished=False),), exhausted=False)
    for source, positions, expected, exhausted in (
        (MemorySource(log), ended, {"a": (4, None), "b": (0, None)}, False),
        (MemorySource(log, bounded=True), open_still, {"a": (4, 10), "b": (0, 10)}, True),
    ):
        found = resumed(source, positions)
        assert {each.split.split_id: (each.split.next_offset, each.split.stop_offset) for each in found.splits} == expected
        assert (found.exhausted, found.checkpoint_id, any(each.finished for each in found.splits)) == (exhausted, 1, False)


def test_a_savepoint_and_a_stop_do_not_look_at_the_sources_start():
    """A start that is out of range, or that does not name a partition which was added since, kept the run from beginning."""
    with FakeKafka() as kafka:
        kafka.create_topic("in", partitions=2)
        for number in range(200):
            kafka.append("in", b"%d" % number, partition=number % 2)

        def source(**positions):
            return KafkaSource(kafka.bootstrap, topics=["in"], **positions)

        first = next(split for split in source().create_discovery().initial().added if split.partition == 0)
        saved = Checkpoint(1, (SplitState(first.between(50, None), False),), False)
        stops = {("in", 0): At(60), ("in", 1): At(7)}
        for start in (At(9999), {("in", 0): At(0)}, Latest(), Committed("nobody")):
            found = resumed(source(start=start, stop=stops), saved)
            ranges = {each.split.partition: (each.split.next_offset, each.split.stop_offset) for each in found.splits}
            assert ranges == {0: (50, 60), 1: (0, 7)}
        past = resumed(source(stop={("in", 0): At(10), ("in", 1): At(0)}), saved)
        assert [each.split.stop_offset for each in past.splits] == [50, 0]  # nothing to read
        with pytest.raises(UsageError, match="stop positions by partition must name every partition"):
            resumed(source(stop={("in", 0): At(60)}), saved)


def test_a_bounded_run_does_not_start_with_a_savepoint_whose_splits_are_gone():
    class Strict(MemorySource):
        def on_splits_missing(self, splits):
            raise DataLossError(str([split.split_id for split in splits]))

    gone = Checkpoint(1, (SplitState(MemorySplit("gone", 4), finished=False),), exhausted=False)
    with pytest.raises(DataLossError, match="gone"):
        resumed(Strict(MemoryLog(), bounded=True), gone)


def test_a_restart_with_the_same_savepoint_continues_from_its_own_checkpoints(store):
    for written in (None, checkpoint(2)):
        begin_with(SAVEPOINT, store, POSITIONS, as_it_is)
        if written is not None:
            store.write(written)
            begin_with(SAVEPOINT, store, POSITIONS, as_it_is)
            assert store.latest() == written
    with pytest.raises(UsageError, match="this run started with another savepoint"):
        begin_with(Savepoint("run-a", 8, SAVEPOINT.source), store, POSITIONS, as_it_is)


def test_a_crash_between_the_copy_of_the_savepoint_and_its_checkpoint_is_fixed(tmp_path):
    (tmp_path / "savepoint.json").write_bytes(SAVEPOINT.serialize())
    store = opened(tmp_path)
    begin_with(SAVEPOINT, store, POSITIONS, as_it_is)
    assert store.latest() is not None


def test_a_run_that_died_before_its_savepoint_became_a_checkpoint_starts_there_without_being_reported_again(store, tmp_path):
    """Started without --from-savepoint it started where its source does, and wrote again what came before the savepoint."""
    with pytest.raises(RetriableError, match="injected"):
        begin_with(SAVEPOINT, store, POSITIONS, Mock(side_effect=RetriableError("injected")))
    assert store.latest() is None
    begin_with(None, store, POSITIONS, as_it_is)
    assert store.latest().positions.splits == checkpoint(7).positions.splits
    (tmp_path / "savepoint.json").write_bytes(b"{")
    begin_with(None, store, POSITIONS, as_it_is)  # it continues from its checkpoint, whatever the copy is


def test_a_run_continues_though_the_savepoint_that_it_started_with_is_gone(tmp_path, caplog):
    """The same command, started again when the savepoint had been removed, ended at once."""
    path, folder = tmp_path / "savepoint.json", tmp_path / "run"
    with pytest.raises(UsageError, match="there is no such savepoint"):
        given_savepoint(path, run_files(str(folder)))
    path.write_bytes(SAVEPOINT.serialize())
    store = opened(folder)
    begin_with(given_savepoint(path, store.files), store, POSITIONS, as_it_is)
    path.unlink()
    begin_with(given_savepoint(path, store.files), store, POSITIONS, as_it_is)
    assert f"{path} is not there: the run continues from what it has" in caplog.text
    assert store.latest().positions.splits == checkpoint(7).positions.splits


def test_a_run_without_a_savepoint_starts_where_its_source_does(store, tmp_path):
    begin_with(given_savepoint(None, store.files), store, POSITIONS, as_it_is)
    assert (store.latest(), list(tmp_path.glob("savepoint*"))) == (None, [])


def test_a_folder_with_checkpoints_does_not_start_with_a_savepoint(store):
    store.write(checkpoint(1))
    with pytest.raises(UsageError, match="there are checkpoints already"):
        begin_with(SAVEPOINT, store, POSITIONS, as_it_is)


def test_no_savepoint_is_made_of_what_is_not_committed_or_not_the_newest(tmp_path):
    with pytest.raises(StateError, match="there is no checkpoint"):
        take_savepoint(run_files(str(tmp_path / "none")), tmp_path)
    store = opened(tmp_path, retained=2)
    store.write(checkpoint(1, completed=True))
    store.write(checkpoint(2, (WorkerHandle(4, MemoryHandle(9)),), epoch=5))
    with pytest.raises(RetriableError, match="checkpoint 2 is not committed yet"):
        take_savepoint(run_files(str(tmp_path)), tmp_path / "savepoints")
    (tmp_path / "checkpoint-000000000002.json").write_bytes(b"{")
    with pytest.raises(StateError, match=r"000000000002\.json: the checkpoint of a run cannot be read"):
        take_savepoint(run_files(str(tmp_path)), tmp_path / "savepoints")
    assert not (tmp_path / "savepoints").exists()


def test_what_a_run_that_has_died_left_behind_is_finished_before_its_savepoint_is_taken(tmp_path):
    log, store = MemoryTransactionLog(), opened(tmp_path / "run", retained=2)
    add_workers(store, 0, 1, 2)
    listed, open_still = prepared(log, store, 1, "listed"), prepared(log, store, 2, "of no process")
    store.write(checkpoint(1, completed=True))
    store.write(checkpoint(2, (listed,), epoch=9))
    pipeline = Pipeline(MemorySource(MemoryLog()), MemorySink(log))
    with pytest.raises(FencedError, match="another run works with these checkpoints"):
        finish(pipeline, str(tmp_path / "run"))
    store.close()
    with pytest.raises(RetriableError, match="--pipeline"):
        take_savepoint(run_files(str(tmp_path / "run")), tmp_path / "savepoints")
    for _ in range(2):
        finish(pipeline, str(tmp_path / "run"))
        assert log.rows() == ["listed"]
    assert not log.unended(store.registry.job(open_still.number))
    savepoint = fetch_savepoint(take_savepoint(run_files(str(tmp_path / "run")), tmp_path / "savepoints"))
    assert savepoint.positions(POSITIONS) == checkpoint(2).positions
    assert len(list((tmp_path / "run").glob("checkpoint-*.json"))) == 2


def test_a_folder_that_is_of_no_run_is_refused_and_nothing_is_made_in_it(tmp_path):
    log, folder = MemoryTransactionLog(), tmp_path / "wrong"
    folder.mkdir()
    for wrong in (folder, tmp_path / "none"):
        with pytest.raises(StateError, match="no run has worked with these checkpoints; name those of the run"):
            finish(Pipeline(MemorySource(MemoryLog()), MemorySink(log)), str(wrong))
    assert not list(folder.iterdir())
    assert not (tmp_path / "none").exists()
    assert not log.rows()


def test_the_golden_savepoint_is_read_and_written():
    golden = GOLDEN.with_name("run-savepoint-v1.json")
    found = fetch_savepoint(golden)
    assert (found.run, found.positions(POSITIONS)) == ("run-golden", checkpoint(12).positions)
    assert found.serialize() == golden.read_bytes().rstrip(b"\n")


def test_a_file_that_is_no_savepoint_is_named(tmp_path):
    with pytest.raises(UsageError, match="there is no such savepoint"):
        fetch_savepoint(tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"the savepoint .* cannot be used: .*Not a directory"):
        given_savepoint(Path(f"{GOLDEN}/x.json"), run_files(str(tmp_path)))
    with pytest.raises(UsageError, match="is a folder"):
        fetch_savepoint(tmp_path)
    with pytest.raises(UsageError, match="no savepoint can be read from there"):
        fetch_savepoint("nowhere://bucket/savepoint.json")
    with pytest.raises(StateError, match="its format is 'headrace-run-checkpoint', not 'headrace-savepoint'"):
        fetch_savepoint(GOLDEN)
    for body in ({}, {"run": "a", "checkpoint_id": True, "source": "x"}):
        with pytest.raises(StateError, match="here: the savepoint cannot be read: it is damaged"):
            Savepoint.deserialize(sealed("headrace-savepoint", body), "here")


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("s3://key:hush@bucket/a/x.json?endpoint_override=hush", "s3://bucket/a/x.json"),
        ("hdfs://me:hush@node:8020/x.json", "hdfs://node:8020/x.json"),
        ("/a@b/x.json?", "/a@b/x.json?"),
        ("gs://bucket/a@b.json", "gs://bucket/a@b.json"),
    ],
)
def test_a_savepoints_location_is_shown_without_its_secrets(location, place):
    """They were in messages, and in a line of the log at each start of a query."""
    assert shown(location) == place
    with pytest.raises(UsageError, match=r"nowhere://bucket/x\.json: no savepoint can be read") as refused:
        fetch_savepoint("nowhere://me:hush@bucket/x.json")
    assert "hush" not in str(refused.value)


def test_a_savepoint_of_another_source_is_refused_and_nothing_is_started(tmp_path):
    other = CheckpointSerializer("kafka", MemorySplitSerializer()).serialize(checkpoint(7).positions).decode()
    store = opened(tmp_path)
    with pytest.raises(StateError, match="kafka"):
        begin_with(Savepoint("run-a", 7, other), store, POSITIONS, as_it_is)
    assert store.last_id == 0
    assert not (tmp_path / "savepoint.json").exists()


def test_a_request_to_rescale_is_read_until_it_is_withdrawn(tmp_path):
    assert (read_requests(tmp_path), is_requested(tmp_path)) == ((), False)
    request_rescale(tmp_path, 3)
    (first,) = read_requests(tmp_path)
    assert (first.workers, is_requested(tmp_path)) == (3, True)
    request_rescale(tmp_path, 3)
    assert read_requests(tmp_path) != (first,)  # who skips the one does not skip the other
    wrongs = (b'{"workers": true, "name": "x"}', b'{"workers": 0, "name": "x"}', b'{"workers": "3", "name": "x"}')
    for wrong in (b"", b"[]", b'{"workers": 3}', *wrongs):
        (tmp_path / "rescale.json").write_bytes(wrong)
        with pytest.raises(StateError, match=r"rescale\.json is not a request to rescale"):
            read_requests(tmp_path)
    assert withdraw_request(tmp_path)
    assert not withdraw_request(tmp_path / "no folder")
    assert read_requests(tmp_path) == ()
    with pytest.raises(UsageError, match="at least 1 worker"):
        request_rescale(tmp_path, 0)


def test_a_request_that_is_taken_up_cannot_be_withdrawn_and_is_there_until_it_is_carried_out(tmp_path):
    assert take_up_request(tmp_path) is None
    request_rescale(tmp_path, 3)
    taken = take_up_request(tmp_path)
    assert taken.workers == 3
    assert not withdraw_request(tmp_path)
    request_rescale(tmp_path, 4)  # for the time after it
    (_, later) = read_requests(tmp_path)
    assert read_requests(tmp_path)[0] == take_up_request(tmp_path) == taken
    finish_request(tmp_path, taken)
    assert read_requests(tmp_path) == (later,)
    finish_request(tmp_path, taken)  # another one has taken its place
    assert read_requests(tmp_path) == (later,)
    finish_request(tmp_path, later)
    assert not is_requested(tmp_path)
    (tmp_path / "rescale-taken-up.json").write_bytes(b"")
    with pytest.raises(StateError, match=r"rescale-taken-up\.json is not a request to rescale"):
        take_up_request(tmp_path)
    drop_requests(tmp_path)
    assert not is_requested(tmp_path)


@pytest.mark.parametrize(
    ("meanwhile", "workers", "said"),
    [
        (lambda folder: None, 3, "rescaling from 2 to 3 workers"),
        (withdraw_request, 2, "was withdrawn meanwhile: the run continues with 2 workers"),
        (lambda folder: request_rescale(folder, 5), 5, "rescaling from 2 to 3 workers"),
        (lambda folder: (folder / "rescale.json").write_bytes(b""), 2, "is skipped"),
    ],
    ids=["as it was", "withdrawn", "another", "damaged"],
)
def test_a_rescale_that_is_withdrawn_during_the_last_checkpoint_is_not_applied(
    tmp_path, monkeypatch, caplog, meanwhile, workers, said
):
    order = SimpleNamespace(settings=RunSettings(str(tmp_path), workers=2))
    asked = {"rescaling": Rescaling(tmp_path, 2, ()), "replanning": Replanning(None)}
    coordination, stops = part_of_coordination(order=order, **asked), []

    def ran():
        stops.extend(coordination._rescaling.is_to_stop() for _ in range(2))
        meanwhile(tmp_path)
        return RunOutcome()

    monkeypatch.setattr(coordination, "_ran", ran)
    request_rescale(tmp_path, 3)
    assert coordination.run().workers == workers
    assert stops == [True, False]
    assert said in caplog.text
    assert not withdraw_request(tmp_path)


def test_a_second_start_by_mistake_does_not_withdraw_a_rescale(tmp_path, monkeypatch):
    """What an earlier lifetime has left is for the coordinator to remove, which has the folder's lock."""
    orders = []

    def refused(_, order, __):
        orders.append(order)
        return RunOutcome(error="another run works with these checkpoints", kinds=("FencedError",), is_final=True)

    monkeypatch.setattr("headrace.runners.local.supervisor.CoordinatorProcess.run", refused)
    request_rescale(tmp_path, 3)
    asked = read_requests(tmp_path)
    with pytest.raises(FencedError, match="another run works with these checkpoints"):
        supervise(sent_pipeline(), RunSettings(str(tmp_path)), forked_apart)
    assert read_requests(tmp_path) == asked
    assert [order.passed_over for order in orders] == [asked]


class Dead:
    """A coordinator's process that has ended, of what the pipe to it holds."""

    exitcode = -9

    def __init__(self):
        self.sentinel, writes = os.pipe()
        os.close(writes)

    def join(self):
        """It has ended."""


def test_failures_of_workers_count_on_when_their_coordinator_dies(tmp_path, monkeypatch):
    """Each coordinator had its own count: a worker that fails, and takes its coordinator along, was restarted for ever."""
    lifetimes = []

    def run(self, order, _):
        lifetimes.append(order)
        ours, its = multiprocessing.Pipe()
        restarts = pickle.loads(pickle.dumps(order.restarts))
        decisions = []
        coordination = part_of_coordination(
            order=SimpleNamespace(restarts=restarts),
            tell_supervisor=its.send,
            pool=SimpleNamespace(ended=lambda number, status: WorkerDied(number, "injected", 0.0, 0.5), silent=lambda _: ()),
            core=SimpleNamespace(workers={}),
            handle=lambda event: decisions.append(restarts.failed(event.now_s, event.chance)),
            asked_s=float("inf"),
        )
        coordination._take(coordinator._ProcessEnded(7, 1))
        its.close()
        if isinstance(decisions[0], GiveUp):
            return RunOutcome(error="injected; not restarted", kinds=("RunFailedError",), is_final=True)
        return self._outcome(ours, Dead(), order)

    monkeypatch.setattr("headrace.runners.local.supervisor.CoordinatorProcess.run", run)
    with pytest.raises(RunFailedError, match="injected; not restarted"):
        supervise(
            PickledPipeline.of(pipeline_in_memory()), RunSettings(str(tmp_path), restart=FixedDelay(4, 0.0)), forked_apart
        )
    assert len(lifetimes) == 3  # of a worker and a coordinator each, and the fifth failure is one too many


@pytest.mark.parametrize("run", [None, "run-x"])
def test_a_coordinator_after_the_first_gets_the_checkpoints_of_its_own_command_only(tmp_path, monkeypatch, run):
    restarts, store, sent = Restarts(FixedDelay(1, 0.0)), Mock(side_effect=FencedError), Mock(load=pipeline_in_memory)
    orders = [CoordinatorOrder(sent, RunSettings(str(tmp_path)), "", 0.0, (), restarts, run) for _ in range(2)]
    order = replace(orders[0], restarted=1)
    monkeypatch.setattr(coordinator, "CheckpointStore", store)
    monkeypatch.setattr(coordinator, "has_run", lambda _: True)
    with pytest.raises(FencedError):
        coordinator._opened(order, tmp_path, Mock(), Mock())
    assert store.call_args.args[-2:] == (order.command, run and order.command)
    assert orders[0].command == order.command != orders[1].command


def test_a_run_in_a_folder_that_was_removed_is_refused_and_not_restarted(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="the working directory of this process was removed"):
        supervise(PickledPipeline.of(pipeline_in_memory()), RunSettings(str(tmp_path)), forked_apart)


def test_a_mistake_in_a_program_is_tried_a_bounded_number_of_times():
    """As of a storage option that a filesystem does not know, and looks at when it is used first."""
    assert [UnclassifiedError.__name__ in coordinator._failure(kind("x")).kinds for kind in (TypeError, OSError)] == [
        True,
        False,
    ]


def test_a_coordinator_that_cannot_be_started_is_a_failure_that_the_restart_strategy_decides(tmp_path, monkeypatch):
    """Without space for its socket, or a process, the run ended at once, with what Python raises."""
    refused = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("tempfile.TemporaryDirectory", refused)
    with pytest.raises(RunFailedError, match=r"no coordinator could be started: .*No space left.*restarted 2 times"):
        supervise(
            PickledPipeline.of(pipeline_in_memory()), RunSettings(str(tmp_path), restart=FixedDelay(2, 0.0)), forked_apart
        )
    assert refused.call_count == 3


def test_what_a_coordinator_has_said_before_its_end_is_heard(tmp_path):
    ours, its = multiprocessing.Pipe()
    process = CoordinatorProcess(Restarts(FixedDelay(1, 0.0)), lambda: None)
    received = Restarts(FixedDelay(1, 0.0))
    received.failed(0.0, 0.5)
    its.send(received)
    its.send(RunOutcome(finished=True))
    its.close()
    assert process._outcome(ours, Dead(), Mock()) == RunOutcome(finished=True)
    assert isinstance(process.restarts.failed(0.0, 0.5), GiveUp)


def test_a_rescale_that_no_run_takes_up_is_withdrawn(store, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.cli.run.RESCALE_S", 0.01)
    done = CliRunner().invoke(app, ["rescale", str(tmp_path), "3"])
    assert "no run with these checkpoints has carried it out" in str(done.exception)
    assert "the request is withdrawn" in done.stderr
    assert not is_requested(tmp_path)


def test_a_rescale_that_is_given_up_too_late_says_that_it_comes(store, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.cli.run.RESCALE_S", 0.01)
    request = rescale.request_rescale

    def taken_up(folder, workers):
        request(folder, workers)
        assert take_up_request(folder) is not None

    monkeypatch.setattr(rescale, "request_rescale", taken_up)
    done = CliRunner().invoke(app, ["rescale", str(tmp_path), "3"])
    assert isinstance(done.exception, DeadlineExceededError)
    assert "continues with 3 workers" in done.stderr
    assert is_requested(tmp_path)


@pytest.mark.parametrize(
    ("lock", "named"), [(PermissionError(errno.EACCES, "injected"), "injected"), ([True], "rescale.writing")]
)
def test_a_folder_in_which_no_request_can_be_made_is_one_message(tmp_path, lock, named, monkeypatch):
    """Regression: `headrace rescale` ended in a traceback where the folder could not be read or written."""
    monkeypatch.setattr("headrace.runners.local.monitoring.status.is_held", Mock(side_effect=lock))
    (tmp_path / "rescale.writing").mkdir()
    done = CliRunner().invoke(app, ["rescale", str(tmp_path), "3"])
    assert isinstance(done.exception, StateError)
    assert re.search(f"the request to rescale cannot be made: .*{named}", str(done.exception))


def test_a_file_in_the_folders_place_is_one_message_of_rescale(tmp_path):
    """Regression: it ended in a traceback of a NotADirectoryError."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "x"):
        done = CliRunner().invoke(app, ["rescale", str(place), "3"])
        assert isinstance(done.exception, StateError)


def test_a_folder_that_may_not_be_listed_is_one_message_of_savepoint(tmp_path, monkeypatch):
    """Regression: with --pipeline it ended in a traceback of a PermissionError."""
    monkeypatch.setattr("headrace.runners.local.finish.has_run", Mock(side_effect=PermissionError(errno.EACCES, "injected")))
    monkeypatch.setattr(PipelineFile, "load", lambda _: pipeline_in_memory())
    (tmp_path / "job.py").touch()
    done = CliRunner().invoke(app, ["savepoint", str(tmp_path), str(tmp_path / "to"), "--pipeline", f"{tmp_path}/job.py:p"])
    assert isinstance(done.exception, StateError)
    assert "no savepoint could be taken: " in str(done.exception)


def test_removed_checkpoints_leave_a_folder_that_starts_over(store, tmp_path):
    begin_with(SAVEPOINT, store, POSITIONS, as_it_is)
    run = store.registry.run
    store.remove()
    store.close()
    again = opened(tmp_path)
    assert (again.latest(), again.registry.run != run) == (None, True)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings_have_flinks_names_and_defaults():
    defaults = RunSettings("x")
    assert (defaults.min_pause_s, defaults.timeout_s) == (0, 600)
    assert (defaults.tolerable_failed_checkpoints, defaults.retained) == (0, 1)
    assert (defaults.heartbeat_interval_s, defaults.heartbeat_timeout_s, defaults.restart) == (10, 50, ExponentialDelay())
    given = {
        "execution.checkpointing.interval": ("500 ms", "interval_s", 0.5),
        "execution.checkpointing.min-pause": ("1 s", "min_pause_s", 1.0),
        "execution.checkpointing.max-delay": ("50 ms", "max_delay_s", 0.05),
        "execution.checkpointing.timeout": ("2 min", "timeout_s", 120.0),
        "execution.checkpointing.tolerable-failed-checkpoints": ("3", "tolerable_failed_checkpoints", 3),
        "execution.checkpointing.num-retained": ("4", "retained", 4),
        "execution.checkpointing.savepoint-dir": ("/savepoints", "savepoints", "/savepoints"),
        "execution.state-recovery.path": ("/savepoints/one.json", "from_savepoint", "/savepoints/one.json"),
        "heartbeat.interval": ("1000", "heartbeat_interval_s", 1.0),
        "heartbeat.timeout": ("5 s", "heartbeat_timeout_s", 5.0),
    }
    others = {
        "execution.checkpointing.externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "7",
    }
    assert flink_settings({name: text for name, (text, _, _) in given.items()} | others) == {
        **{setting: value for _, setting, value in given.values()},
        "retention": Retention.DELETE_ON_CANCELLATION,
        "restart": FixedDelay(7, 1.0),
    }


def test_the_highest_number_of_java_is_a_setting():
    """Regression: it was refused, as are numbers of thousands of digits."""
    assert flink_settings({"execution.checkpointing.num-retained": "2147483647"}) == {"retained": 2**31 - 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"execution.checkpointing.mode": "EXACTLY_ONCE"}, "'execution.checkpointing.mode' is not a setting of a run"),
        ({"execution.checkpointing.externalized-checkpoint-retention": "NO"}, "must be one of RETAIN_ON_CANCELLATION, DELETE"),
        ({"execution.checkpointing.num-retained": "few"}, "must be a whole number, not 'few'"),
        ({"execution.checkpointing.tolerable-failed-checkpoints": "9" * 5000}, "must be a whole number"),
    ],
)
def test_a_setting_that_there_is_not_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        flink_settings(settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"retained": 0}, "retained must be at least 1"),
        ({"interval_s": 0}, "interval_s must be more than 0"),
        ({"timeout_s": float("nan")}, "timeout_s must be more than 0"),
        ({"min_pause_s": -1}, "min_pause_s must be at least 0"),
        ({"max_delay_s": -1}, r"max_delay_s must be from 0 to interval_s \(10.0\), not -1"),
        ({"max_delay_s": 11}, "max_delay_s must be from 0 to interval_s"),
        ({"max_delay_s": "1"}, "^max_delay_s must be a number of seconds"),
        ({"heartbeat_timeout_s": 10.0}, "must be more than heartbeat_interval_s"),
        ({"checkpoints": "memory://x"}, "must outlive the process"),
        ({"checkpoints": "sftp://me:secret@host/x"}, "^(?!.*:secret).*has a password"),
        ({"checkpoints": "s3://x*"}, "for patterns"),
        ({"checkpoints": "s3://[x"}, "URL is none: Invalid IPv6"),
        ({"checkpoints": ""}, "a URL that fsspec knows"),
        ({"savepoints": "s3://x"}, "a folder of this machine"),
        ({"from_savepoint": ""}, "a folder's path or a file: URL is needed"),
        ({"retention": "DELETE_ON_CANCELLATION"}, "must be a Retention"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        RunSettings(**{"checkpoints": "x", **arguments})


@pytest.mark.parametrize("value", [2.5, True, "4", None, float("nan")])
@pytest.mark.parametrize("name", ["workers", "retained", "tolerable_failed_checkpoints", "metrics_port"])
def test_what_is_no_whole_number_is_refused_by_the_name_of_its_setting(name, value):
    if (name, value) == ("metrics_port", None):
        assert RunSettings("x", metrics_port=None).metrics_port is None
        return
    with pytest.raises(UsageError, match=f"^{name} must be a whole number, not "):
        RunSettings("x", **{name: value})


@pytest.mark.parametrize("value", [True, "4", None, float("inf")])
@pytest.mark.parametrize("name", ["interval_s", "min_pause_s", "timeout_s", "heartbeat_interval_s", "heartbeat_timeout_s"])
def test_what_is_no_number_of_seconds_is_refused_by_the_name_of_its_setting(name, value):
    with pytest.raises(UsageError, match=f"^{name} must be a number of seconds, not "):
        RunSettings("x", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("restart", "fixed-delay"), ("metrics_address", 5), ("metrics_address", ""), ("metrics_address", " ")]
)
def test_a_setting_of_another_kind_is_refused_by_its_name(name, value):
    with pytest.raises(UsageError, match=f"^{name} must be "):
        RunSettings("x", **{name: value})


def test_paths_are_of_the_folder_in_which_the_run_is_started_though_the_users_file_changes_it(tmp_path, monkeypatch):
    """Its processes put checkpoints elsewhere than where top, rescale and savepoint look, and where another start does."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    settings = RunSettings("run", savepoints="saved", from_savepoint="file:one.json")
    store = opened(here / "run")
    store.write(checkpoint(7, completed=True))
    store.close()
    file = here / "a_job_that_changes_its_folder.py"
    file.write_text(
        f"import os\nfrom headrace import Pipeline\nfrom headrace.testing import *\nos.chdir({str(elsewhere)!r})\n"
        "pipeline = Pipeline(MemorySource(MemoryLog()), MemorySink(MemoryTransactionLog()))\n"
    )
    done = CliRunner().invoke(app, ["savepoint", "run", "saved", "--pipeline", f"{file.name}:pipeline"])
    assert Path.cwd() == elsewhere
    assert done.exit_code == 0, done.exception
    assert Path(done.stdout.strip()).parent == here / "saved" == settings.savepoint_folder
    assert replace(settings, workers=2).folder == here / "run"
    assert settings.savepoint_file == here / "one.json"
    assert not list(elsewhere.iterdir())


def test_a_pipeline_of_what_cannot_be_its_part_is_refused():
    source, sink = MemorySource(MemoryLog()), MemorySink(MemoryTransactionLog())
    for arguments, message in (
        ((sink, sink), "source must be a headrace Source, not MemorySink"),
        ((source, source), "sink must be a headrace TwoPhaseSink, not MemorySource"),
        ((source, sink, 3), "transform must be a function"),
    ):
        with pytest.raises(UsageError, match=message):
            Pipeline(*arguments)


def test_a_pipeline_that_cannot_travel_is_refused_before_anything_starts(tmp_path):
    pipeline = pipeline_in_memory(lambda batch: batch)
    with pytest.raises(UsageError, match="a function at the top of a module"):
        pipeline.run(checkpoints=str(tmp_path))
    with pytest.raises(UsageError, match="needs a folder for its checkpoints"):
        pipeline.run(workers=2)
    with pytest.raises(UsageError, match="unexpected keyword argument 'worker'"):
        pipeline.run(checkpoints=str(tmp_path), worker=2)


def test_a_pipeline_is_found_by_its_file_and_name(tmp_path):
    file = tmp_path / "a_job_of_this_test.py"
    file.write_text(
        "from headrace import Pipeline\nfrom headrace.testing import *\n"
        "pipeline = Pipeline(MemorySource(MemoryLog()), MemorySink(MemoryTransactionLog()))\nother = 1\n"
    )
    assert isinstance(PipelineFile.parse(f"{file}:pipeline").load(), Pipeline)
    named_as_ours = tmp_path / "json.py"
    named_as_ours.write_text(file.read_text())
    assert isinstance(PipelineFile.parse(f"{named_as_ours}:pipeline").load(), Pipeline)
    assert sys.modules["json"] is json
    for text, message in (
        (f"{file}:other", "other is not a Pipeline, but int"),
        (f"{file}:nothing", "nothing is not a Pipeline, but NoneType"),
        (str(file), "named by its file and its variable"),
        (f"{tmp_path}/none.py:x", "no such file"),
    ):
        with pytest.raises(UsageError, match=message):
            PipelineFile.parse(text).load()


def test_a_file_that_cannot_be_loaded_is_named_with_its_line(tmp_path):
    file = tmp_path / "a_broken_job.py"
    file.write_text("import headrace.kafka\nfrom headrace.testing import MemoryLog\n1 / 0\n")
    job = PipelineFile.parse(f"{file}:pipeline")
    assert job.modules() == ["headrace.kafka", "headrace.testing"]
    with pytest.raises(UsageError, match=r"a_broken_job.py cannot be loaded: ZeroDivisionError: .*a_broken_job.py:3\)"):
        job.load()
    file.write_text("def\n")
    with pytest.raises(UsageError, match="cannot be read as Python"):
        PipelineFile.parse(f"{file}:pipeline").modules()


@pytest.mark.parametrize("later", ["pipeline = 'of the next start'\n", "pipeline = Pipe("])
def test_a_run_keeps_the_file_that_it_was_started_with(tmp_path, later):
    """Regression: a replaced worker loaded the edited file, so one run had two versions, or ended where it was half written."""
    file = tmp_path / "an_edited_job.py"
    file.write_text(
        "from headrace import Pipeline\nfrom headrace.testing import *\n"
        "pipeline = Pipeline(MemorySource(MemoryLog()), MemorySink(MemoryTransactionLog()))\n"
    )
    job = PipelineFile.parse(f"{file}:pipeline")
    file.write_text(later)
    sent = pickle.loads(pickle.dumps(job))
    assert sent.modules() == ["headrace.testing"]
    assert isinstance(sent.load(), Pipeline)


def test_tracebacks_have_the_lines_of_the_kept_file(tmp_path, monkeypatch):
    """Regression: they, and `inspect`, had those of the edited file, with the numbers of the kept one."""
    file, text = tmp_path / "a_kept_job.py", "def kept(rows):\n    return rows\n"
    file.write_text(text)
    job = PipelineFile.parse(f"{file}:kept")
    file.write_text("# edited\n" * 20 + "def kept(rows):\n    return None\n")
    monkeypatch.delitem(sys.modules, "a_kept_job", raising=False)
    module = load_file(job.path, "a_kept_job", job.text)
    assert inspect.getsource(module.kept) == text


def test_a_file_that_may_not_be_read_is_a_usage_error(tmp_path, monkeypatch):
    file = tmp_path / "a_secret_job.py"
    file.touch()
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=PermissionError(errno.EACCES, "injected")))
    with pytest.raises(UsageError, match=r"a_secret_job\.py cannot be read: .*injected"):
        PipelineFile.parse(f"{file}:pipeline")


def test_run_in_a_process_of_the_run_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(multiprocessing.current_process(), "name", f"{PROCESS_NAME}coordinator")
    with pytest.raises(UsageError, match="call it under if __name__ == '__main__'"):
        pipeline_in_memory().run(checkpoints=str(tmp_path))


# --- messages ---------------------------------------------------------------------------------------------------------


def test_the_generated_code_is_that_of_the_proto(tmp_path):
    """If it is not: python -m tests.helpers.generate_grpc."""
    generate(tmp_path)
    folder = (ROOT / PROTO).parent
    for name in MADE:
        assert (tmp_path / Path(PROTO).parent / name).read_text() == (folder / name).read_text(), name


def test_splits_and_handles_travel_as_messages():
    messages = RunMessages(MemorySplitSerializer(), MemoryHandleSerializer())
    splits = [MemorySplit("a", 1), MemorySplit("b", 2, 9)]
    received = pb.ToWorker.FromString(messages.assign_splits(splits).SerializeToString())
    assert messages.assigned(received.assign_splits) == splits
    states = {"a": SplitState(splits[0], False), "b": SplitState(splits[1], True)}
    for handles in ((), (MemoryHandle(3), MemoryHandle(4))):
        event = WorkerSnapshotted(5, 8, states, handles, {"records_in": 3, "records_out": 1 << 40}, unmoved=7)
        said = pb.FromWorker.FromString(messages.worker_snapshotted(event).SerializeToString())
        assert messages.reported(5, said.worker_snapshotted) == event


def test_a_worker_of_another_version_is_refused():
    assert check_hello(hello(4, "1.0"), "1.0") == 4
    with pytest.raises(StateError, match="the installation has changed while they ran"):
        check_hello(hello(4, "1.1"), "1.0")
    other = pb.FromWorker(hello=pb.Hello(protocol=PROTOCOL + 1, version="1.0", number=4))
    with pytest.raises(StateError, match=f"protocol {PROTOCOL + 1}"):
        check_hello(other, "1.0")
    with pytest.raises(StateError, match="must be its hello, not heartbeat"):
        check_hello(pb.FromWorker(heartbeat=pb.Heartbeat()), "1.0")


def test_attempts_of_different_workers_are_never_equal(store):
    assert len({Attempt(store.registry.job(number), 0, 0, 0) for number in range(3)}) == 3


def casts(batch):
    return batch.column(0).cast(pa.int64())


def test_an_error_of_the_users_function_names_its_own_line_though_a_library_has_raised():
    pipeline = pipeline_in_memory(casts)
    with pytest.raises(pa.ArrowInvalid) as raised:
        list(pipeline.transformed(pa.record_batch({"value": ["no number"]})))
    assert not traceback.extract_tb(raised.value.__traceback__)[-1].filename.endswith("test_run_checkpoints.py")
    error = transform_error(pipeline, 2, MemorySplit("a", 3), MemorySplit("a", 5))
    error.__cause__ = raised.value
    text, line = described(error), casts.__code__.co_firstlineno + 1
    assert re.match(r"the transform failed on a batch of 2 rows of .*'a'.*, offsets 3 up to 5: ArrowInvalid: ", text)
    assert text.endswith(f"({__file__}:{line})")


def takes_none(batch):
    yield next(iter(()))


def test_a_bare_next_that_finds_nothing_is_named_by_its_line():
    pipeline = pipeline_in_memory(takes_none)
    with pytest.raises(RuntimeError, match="generator raised StopIteration") as raised:
        list(pipeline.transformed(pa.record_batch({"value": ["a"]})))
    error = transform_error(pipeline, 1, MemorySplit("a", 0), MemorySplit("a", 1))
    error.__cause__ = raised.value
    assert described(error).endswith(f"StopIteration:  ({__file__}:{takes_none.__code__.co_firstlineno + 1})")


class TextlessError(Exception):
    def __str__(self):
        raise RuntimeError("the text fails")


def test_an_error_without_a_text_and_a_split_without_offsets_are_described():
    error = transform_error(pipeline_in_memory(casts), 2, Piece("a"), Piece("a", 2))
    error.__cause__ = TextlessError()
    assert described(error) == "the transform failed on a batch of 2 rows of a: TextlessError: an error without a text"
