"""A run whose table is another one than its folder is of, or is older: nothing is left out, and nothing rolled back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyiceberg.catalog import load_catalog

from headrace.cli.tables import NamedTable, commit_to_table
from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.kafka.write.handles import KafkaHandleSerializer
from headrace.delta import DeltaSink
from headrace.enumerator.checkpoint import CheckpointSerializer
from headrace.enumerator.errors import FencedError, PeerError, StateError
from headrace.iceberg import IcebergSink
from headrace.runners.local.checkpoints import CheckpointStore, RunCheckpointSerializer
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.commit.state import first_attempt
from headrace.runners.local.events import WorkerHandle
from headrace.sinks import Attempt
from headrace.testing import FakeKafka
from headrace.testing.memory import MemorySplitSerializer
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_values
from tests.helpers.sink_rig import kafka_sink, ongoing, prepared, values
from tests.helpers.table_rig import VALUES, KilledError, batch_of, delta_actions
from tests.unit.local.test_refusals import IDS, ChangesFolder, refusing
from tests.unit.local.test_tables import SERIALIZER, commit

KAFKA_RUN = RunCheckpointSerializer(CheckpointSerializer("memory", MemorySplitSerializer()), KafkaHandleSerializer())


@pytest.fixture
def folder(tmp_path) -> ChangesFolder:
    return ChangesFolder(tmp_path)


def wrote(folder: ChangesFolder, epoch: int, name: str) -> WorkerHandle[Any]:
    return folder.wrote(1, epoch, {"id": epoch, "name": name})


def dying_after(number: int) -> Callable[[int, Callable[[], None]], None]:
    """The coordinator dies when this commit is made, and before it can say so."""

    def around(at: int, doing: Callable[[], None]) -> None:
        doing()
        if at == number:
            raise KilledError

    return around


def committed_and_dead(folder: ChangesFolder, number: int) -> None:
    """A coordinator dies: the table has this checkpoint, and the folder does not know it."""
    run, job = folder.coordinator(None, dying_after(2))
    job.recover()
    with pytest.raises(KilledError):
        commit(run, job, number, wrote(folder, number, "y"))
    assert folder.checkpoints()[-1] == (number, False)


def versions(sink: DeltaSink) -> int:
    return len(list((Path(sink.uri) / "_delta_log").glob("*.json")))


def test_a_table_that_was_recreated_between_two_lives_is_refused(folder):
    """The run continued in it, without what was committed before. It gets no marker of the run."""
    run, job = folder.living()
    commit(run, job, 1, wrote(folder, 0, "x"))
    shutil.rmtree(folder.sink.uri)
    folder.sink.create_table(IDS)
    made = versions(folder.sink)
    for _ in range(2):
        with pytest.raises(StateError, match=r"checkpoint is 1, and the sink knows none .* another table, or an older"):
            folder.living()
    assert versions(folder.sink) == made
    assert folder.checkpoints() == [(1, True)]


def test_a_table_that_was_restored_as_it_was_a_checkpoint_before_is_refused(folder):
    run, job = folder.living()
    commit(run, job, 1, wrote(folder, 0, "x"))
    shutil.copytree(folder.sink.uri, f"{folder.sink.uri}-copy")
    commit(run, job, 2, wrote(folder, 1, "y"))
    shutil.rmtree(folder.sink.uri)
    shutil.move(f"{folder.sink.uri}-copy", folder.sink.uri)
    with pytest.raises(StateError, match=r"checkpoint is 2, and the sink knows checkpoint 1: .* older state of it"):
        folder.living()
    assert folder.checkpoints() == [(2, True)]


def test_an_iceberg_table_that_was_recreated_between_two_lives_is_refused(tmp_path):
    properties = catalog_of(str(tmp_path))
    sink = IcebergSink(TABLE, properties)
    sink.create_table(VALUES)
    store = CheckpointStore(str(tmp_path / "checkpoints"), SERIALIZER, 1)
    store.add_worker(0)

    def lifetime() -> tuple[RunCommitter[Any, Any], JobCommitter[Any]]:
        run = RunCommitter(store, sink, store.latest(), 0, lambda _: None, lambda _: None, lambda: 0.0, lambda: 1)
        job = JobCommitter("x", run)
        job.recover()
        return run, job

    run, job = lifetime()
    first = first_attempt(sink, store.registry, 1)
    transaction = sink.begin(Attempt(first.job, 0, first.task, first.number))
    transaction.write(batch_of(["x"]))
    commit(run, job, 1, WorkerHandle(1, transaction.prepare()))
    assert iceberg_values(str(tmp_path)) == ["x"]
    lifetime()  # the table as it was continues
    load_catalog(**properties).drop_table(TABLE)
    sink.create_table(VALUES)
    with pytest.raises(StateError, match="another table, or an older state of it"):
        lifetime()


@pytest.mark.parametrize("before", [0, 1], ids=["nothing committed before", "a checkpoint committed before"])
def test_a_checkpoint_that_is_committed_is_not_taken_back_by_a_start_that_names_another_table(folder, before):
    """That table knows nothing of it, which says nothing. With the right name the run continues."""
    run, job = folder.living()
    commit(run, job, 1, *(wrote(folder, 0, "x") for _ in range(before)))
    committed_and_dead(folder, 2)
    rows, right = folder.rows(), folder.sink
    folder.sink = DeltaSink(str(folder.root / "other"))
    folder.sink.create_table(IDS)
    with pytest.raises(StateError, match="is another table, or an older" if before else "is not the table that job"):
        folder.living()
    assert folder.checkpoints()[-1] == (2, False)
    assert not any("add" in action for action in delta_actions(folder.sink.uri))
    folder.sink = right
    folder.living()
    assert folder.checkpoints() == [(2, True)]
    assert folder.rows() == rows
    assert folder.left_open() == set()


def test_a_run_continues_after_an_operator_has_completed_what_it_had_recorded(folder):
    """`headrace transactions commit --delta` after a death: every start was refused, for good."""
    run, job = folder.living()
    commit(run, job, 1, wrote(folder, 0, "x"))
    committed_and_dead(folder, 2)
    commit_to_table(NamedTable(folder.sink, folder.sink.uri, "--delta x"), None)
    run, job = folder.living()
    assert folder.checkpoints() == [(2, True)]
    commit(run, job, 3, wrote(folder, 2, "z"))
    assert [name for _, name in folder.rows()] == ["x", "y", "z"]
    assert folder.left_open() == set()


def test_an_operator_who_completes_a_list_completes_nothing_that_is_not_recorded(folder):
    """The last coordinator has stored a checkpoint, and died before the table knew: the next start commits it."""
    run, job = folder.living()
    commit(run, job, 1, wrote(folder, 0, "x"))
    run, job = folder.coordinator(None, refusing(2, lambda: None))
    job.recover()
    with pytest.raises(PeerError, match="injected"):
        commit(run, job, 2, wrote(folder, 1, "y"))
    commit_to_table(NamedTable(folder.sink, folder.sink.uri, "--delta x"), None)
    folder.living()
    assert [name for _, name in folder.rows()] == ["x", "y"]


def test_a_driver_that_was_replaced_is_reported_so_though_its_files_are_gone(folder):
    """Its successor has cleaned up them, and it was instructed to write the epoch again."""
    run, job = folder.living()
    commit(run, job, 1, wrote(folder, 0, "x"))
    folder.store.add_worker(1)
    handle = wrote(folder, 1, "y")
    shutil.copytree(folder.store.location, folder.root / "copy")
    copy = folder.opened("copy")
    folder.coordinator(copy)[1].recover()
    assert folder.left_open() == set()
    with pytest.raises(FencedError, match="claimed it"):
        run.check([handle])
    copy.close()


def test_a_coordinator_that_dies_while_its_run_is_removed_leaves_a_folder_that_can_be_used(folder):
    """What the table has recorded was removed first, and the checkpoints that were left were of a table that knew nothing."""
    run, job = folder.living()
    commit(run, job, 1, wrote(folder, 0, "x"))
    with patch.object(run._state.outputs[0].driver, "forget", side_effect=KilledError), pytest.raises(KilledError):
        run.forget()
    assert folder.checkpoints() == []
    folder.store.close()
    folder.store = folder.opened("checkpoints")
    run, job = folder.living()
    commit(run, job, 1, wrote(folder, 1, "y"))
    assert [name for _, name in folder.rows()] == ["x", "y"]


def test_a_table_that_cannot_be_reached_any_more_does_not_fail_a_run_that_is_over(folder, caplog):
    run, _ = folder.living()
    name = folder.store.registry.run
    with patch.object(run._state.outputs[0].driver, "forget", side_effect=PeerError("injected: no rights")):
        run.forget()
    assert f"recorded of {name} stays there: injected: no rights" in caplog.text
    assert folder.checkpoints() == []


def test_a_run_continues_at_another_topic_and_back_and_aborts_what_its_dead_workers_had_open_at_the_first(tmp_path):
    """Regression: that blocked readers until its timeout, and the first topic was refused from then on."""
    with FakeKafka() as kafka, closing(CheckpointStore(str(tmp_path), KAFKA_RUN, 1)) as store:
        sinks = {topic: kafka_sink(kafka.bootstrap, topic, "commits") for topic in ("old", "new")}
        for topic in sinks:
            kafka.create_topic(topic)

        def lifetime(topic: str, number: int) -> None:
            """One coordinator, and a worker with the rows of one checkpoint. It dies with more, which are of none."""
            store.add_worker(number)
            sink, latest = sinks[topic], store.latest()
            run = RunCommitter(store, sink, latest, number, lambda _: None, lambda _: None, lambda: 0.0, lambda: 1)
            job = JobCommitter("x", run)
            job.recover()
            assert [ongoing(each, store.registry.job(number - 1)) for each in sinks.values()] == [[], []]
            name = store.registry.job(number)
            (handle,) = prepared(sink, name, 0, [str(number)])
            commit(run, job, number, WorkerHandle(number, handle))
            prepared(sink, name, 1, ["of no checkpoint"])
            assert len(ongoing(sink, name)) == 1

        for number, topic in enumerate(["old", "old", "new", "new", "old", "new"], start=1):
            lifetime(topic, number)
        assert (values(kafka, "old"), values(kafka, "new")) == (["1", "2", "5"], ["3", "4", "6"])
