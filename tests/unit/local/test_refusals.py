"""What a table refuses of a run: before its checkpoint is stored, or the checkpoint is rolled back. No folder is stuck."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.tables import merging
from headrace.connectors.tables.changes import Changes
from headrace.delta import DeltaSink
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import DataLossError, OutageError, PeerError, RetriableError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.runners.local.checkpoints import CheckpointStore
from headrace.runners.local.commit.committer import RunCommitter
from headrace.runners.local.commit.state import first_attempt
from headrace.runners.local.coordinator import _FINAL
from headrace.runners.local.events import WorkerHandle
from headrace.testing import MemorySplit
from tests.helpers.table_rig import Death, KilledError
from tests.unit.local.test_tables import SERIALIZER, Folder, commit

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("op", pa.string()), ("offset", pa.int64())])
IDS = pa.schema([("id", pa.int64()), ("name", pa.string())])
BY_ID = Changes(("id",), ("offset",), "op")


class ChangesFolder(Folder):
    """A run's folder, and a table that is changed by key."""

    def __init__(self, root: Path, schema: pa.Schema = IDS, changes: Changes | None = None, partition_by: Any = ()) -> None:
        self.root, self.schema = root, schema
        self.sink = DeltaSink(str(root / "table"), changes=changes)
        self.sink.create_table(schema, partition_by)
        self.now_s, self.drawn = 0.0, 0
        self.store = self.opened("checkpoints")
        self.store.add_worker(0)

    def wrote(self, number: int, epoch: int, *rows: dict[str, Any], schema: pa.Schema | None = None) -> WorkerHandle[Any]:
        first = first_attempt(self.sink, self.store.registry, number)
        with self.sink.begin(Attempt(first.job, epoch, first.task, first.number)) as transaction:
            transaction.write(pa.RecordBatch.from_pylist(list(rows), schema=schema or self.schema))
            return WorkerHandle(number, transaction.prepare())

    def with_checkpoint_1(self) -> ChangesFolder:
        commit(*self.living(), 1, self.wrote(1, 0, {"id": 1, "name": "x"}))
        return self

    def refused(self, number: int, row: dict[str, Any], then: Callable[[], None] = lambda: None) -> None:
        """A coordinator stores this checkpoint, and the library refuses its commit after `then`."""
        run, job = self.coordinator(None, refusing(2, then))
        job.recover()
        with pytest.raises(PeerError, match="injected"):
            commit(run, job, number, self.wrote(1, number - 1, row))

    def checkpoints(self) -> list[tuple[int, bool]]:
        """Number of each that is there, and whether it is committed."""
        paths = sorted(Path(self.store.location).glob("checkpoint-*.json"))
        found = [SERIALIZER.deserialize(self.store.registry.run, path.read_bytes(), str(path)) for path in paths]
        return [(each.positions.checkpoint_id, each.completed) for each in found]

    def rows(self) -> list[tuple[int, str]]:
        table = DeltaTable(self.sink.uri).to_pyarrow_table()
        return sorted(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))

    def alter(self) -> None:
        """Another process gives a column another type."""
        write_deltalake(self.sink.uri, pa.table({"id": [0], "name": [0]}), mode="overwrite", schema_mode="overwrite")


def twice(folder: ChangesFolder) -> list[WorkerHandle[Any]]:
    return [folder.wrote(number, 9, {"id": 7, "name": f"of {number}"}) for number in (1, 2)]


def empty_partition(folder: ChangesFolder) -> list[WorkerHandle[Any]]:
    return [folder.wrote(1, 9, {"id": 7, "name": ""}, {"id": 8, "name": "a"})]


def altered(folder: ChangesFolder) -> list[WorkerHandle[Any]]:
    handle = folder.wrote(1, 9, {"id": 7, "name": "a"})
    folder.alter()
    return [handle]


@pytest.mark.parametrize(
    ("changes", "partition_by", "refused", "message"),
    [
        (Changes(("id",), ()), (), twice, r"\{'id': 7\} has more than one change in an epoch"),
        (Changes(("id",), ()), ("name",), empty_partition, "cannot tell an empty text from a null"),
        (None, (), altered, r"the table has changed since the files were written \(name\)"),
        (Changes(("id",), ()), (), altered, r"the table has changed since the files were written \(name\)"),
    ],
    ids=["a key twice", "an empty partition", "altered, rows", "altered, changes"],
)
def test_what_a_table_refuses_is_refused_before_the_checkpoint_is_stored(tmp_path, changes, partition_by, refused, message):
    folder = ChangesFolder(tmp_path, IDS, changes, partition_by)
    run, job = folder.living()
    commit(run, job, 1, folder.wrote(1, 0, {"id": 1, "name": "x"}))
    with pytest.raises((UsageError, PeerError), match=message):
        commit(run, job, 2, *refused(folder))
    assert folder.checkpoints() == [(1, True)]
    run, job = folder.living()
    assert folder.left_open() == set()


def refusing(number: int, then: Callable[[], None]) -> Callable[[int, Callable[[], None]], None]:
    """At this commit: `then`, and the library refuses it."""

    def around(at: int, doing: Callable[[], None]) -> None:
        if at == number:
            then()
            raise PeerError("injected: refused")
        doing()

    return around


@pytest.mark.parametrize("changes", [None, Changes(("id",), ())], ids=["rows", "changes"])
def test_a_stored_checkpoint_that_the_table_refuses_is_taken_back(tmp_path, changes):
    """Another process alters the table between check and commit: the run continues from the checkpoint before."""
    folder = ChangesFolder(tmp_path, IDS, changes).with_checkpoint_1()
    folder.refused(2, {"id": 2, "name": "y"}, folder.alter)
    assert folder.checkpoints() == [(1, True), (2, False)]
    with pytest.raises(RetriableError, match=r"checkpoint 2 cannot be committed: .*\(name\).* continues from checkpoint 1$"):
        folder.coordinator()[1].recover()
    assert folder.checkpoints() == [(1, True)]
    run, job = folder.living()
    commit(run, job, 2, folder.wrote(3, 0, {"id": 2, "name": 2}, schema=pa.schema([("id", pa.int64()), ("name", pa.int64())])))
    assert folder.rows() == [(0, 0), (2, 2)]
    assert folder.left_open() == set()
    assert folder.checkpoints() == [(2, True)]


def test_a_stored_checkpoint_whose_table_is_as_it_was_again_is_committed(tmp_path):
    folder = ChangesFolder(tmp_path)
    folder.refused(1, {"id": 1, "name": "x"})
    folder.living()
    assert folder.rows() == [(1, "x")]
    assert folder.checkpoints() == [(1, True)]


def test_a_refusal_that_only_the_commit_itself_makes_takes_the_checkpoint_back_too(tmp_path):
    """What the library refuses to write, whatever was looked at before."""
    folder = ChangesFolder(tmp_path).with_checkpoint_1()
    folder.refused(2, {"id": 2, "name": "y"})
    with pytest.raises(RetriableError, match="checkpoint 2 cannot be committed: injected: refused"):
        folder.coordinator(None, refusing(2, lambda: None))[1].recover()
    folder.living()
    assert folder.checkpoints() == [(1, True)]
    assert folder.rows() == [(1, "x")]


def test_a_commit_that_has_succeeded_though_it_was_said_to_be_refused_is_not_taken_back(tmp_path):
    """The proof is the table's own word after another fence, not the error."""
    folder = ChangesFolder(tmp_path).with_checkpoint_1()
    folder.refused(2, {"id": 2, "name": "y"})
    run, job = folder.coordinator()
    driver = run._state.outputs[0].driver
    record = driver.record

    def recorded_and_refused(commits: Any) -> None:
        record(commits)
        raise PeerError("injected: the answer is a refusal")

    with patch.object(driver, "record", recorded_and_refused), pytest.raises(PeerError, match="the answer is a refusal"):
        job.recover()
    assert folder.checkpoints() == [(1, True), (2, False)]
    folder.living()
    assert folder.checkpoints() == [(2, True)]
    assert folder.rows() == [(1, "x"), (2, "y")]


def closed_to_changes(folder: ChangesFolder) -> None:
    """Another process asks for rows that are never replaced."""
    DeltaTable(folder.sink.uri).alter.set_table_properties({"delta.appendOnly": "true"})


@pytest.mark.parametrize(
    ("refuses", "kind", "why"),
    [(ChangesFolder.alter, RetriableError, r"\(name\)"), (closed_to_changes, DataLossError, "appendOnly")],
    ids=["as the table is now", "until the caller changes something"],
)
def test_a_first_checkpoint_that_the_table_refuses_is_kept_and_tried_again_where_that_may_pass(tmp_path, refuses, kind, why):
    """There is none to go back to: where a run started that starts at the latest record no other process knows."""
    folder = ChangesFolder(tmp_path, IDS, Changes(("id",), ()))
    folder.refused(1, {"id": 1, "name": "x"}, lambda: refuses(folder))
    message = f"checkpoint 1 .*{why}.* no earlier one .* start again, or start over with another"
    with pytest.raises(kind, match=message) as refused:
        folder.coordinator()[1].recover()
    assert isinstance(refused.value, _FINAL) is (kind is DataLossError)
    assert folder.checkpoints() == [(1, False)]


def test_a_checkpoint_is_not_taken_back_where_the_source_has_removed_what_would_be_read_again(tmp_path, monkeypatch):
    """Its rows are in the files that it lists, and nowhere else: they are there when the table is as it was."""
    folder = ChangesFolder(tmp_path).with_checkpoint_1()
    before = DeltaTable(folder.sink.uri).version()
    folder.refused(2, {"id": 2, "name": "y"}, folder.alter)
    removed = Mock(side_effect=DataLossError("injected: a: offsets 1 to 4 were deleted"))
    monkeypatch.setattr(folder, "check_readable", removed)
    message = r"checkpoint 2 .*\(name\).* checkpoint 1, cannot be used, .*injected: a: offsets 1 to 4 .* kept.* fix"
    with pytest.raises(RetriableError, match=message):
        folder.coordinator()[1].recover()
    removed.assert_called_once_with([MemorySplit("a", 1)])
    assert folder.checkpoints() == [(1, True), (2, False)]
    DeltaTable(folder.sink.uri).restore(before)
    folder.living()
    assert folder.rows() == [(1, "x"), (2, "y")]
    assert folder.checkpoints() == [(2, True)]


def test_a_source_that_cannot_be_asked_now_has_nothing_taken_back(tmp_path, monkeypatch):
    folder = ChangesFolder(tmp_path).with_checkpoint_1()
    folder.refused(2, {"id": 2, "name": "y"}, folder.alter)
    monkeypatch.setattr(folder, "check_readable", Mock(side_effect=OutageError("injected: the source is away")))
    with pytest.raises(OutageError, match="the source is away"):
        folder.coordinator()[1].recover()
    assert folder.checkpoints() == [(1, True), (2, False)]


def test_a_coordinator_that_dies_while_it_takes_a_checkpoint_back_is_followed_by_one_that_does(tmp_path):
    folder = ChangesFolder(tmp_path).with_checkpoint_1()
    folder.refused(2, {"id": 2, "name": "y"}, folder.alter)
    deaths = 0
    for nth in range(1, 60):
        death = Death(nth)
        with pytest.raises((KilledError, RetriableError)) as ended:
            folder.coordinator(None, death.around, death.step)[1].recover()
        if ended.type is RetriableError:
            break
        deaths += 1
        assert folder.checkpoints() == [(1, True), (2, False)]
    assert deaths > 3
    assert folder.checkpoints() == [(1, True)]
    folder.living()
    assert folder.left_open() == set()


# --- a changelog through kills ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_a_changelog_through_kills_of_workers_and_coordinators_gives_the_same_table_as_a_plain_replay(tmp_path, seed):
    """A run in small: what a checkpoint has not stored is read again, by other workers; judged by a dictionary."""
    folder = ChangesFolder(tmp_path, ROWS, BY_ID)
    found, wanted, deaths = replayed(folder, seed)
    assert deaths > 3
    assert found == wanted
    assert folder.left_open() == set()


def test_a_merge_that_takes_the_first_change_for_the_last_is_seen(tmp_path):
    last = merging.last_of_each_key

    def injected(changes: Changes, staged: pa.Table, where: str) -> Any:
        at = staged.schema.get_field_index("_headrace_sequence_0")
        return last(changes, staged.set_column(at, "_headrace_sequence_0", pc.negate(staged.column(at))), where)

    with patch.object(merging, "last_of_each_key", injected):
        found, wanted, _ = replayed(ChangesFolder(tmp_path, ROWS, BY_ID), 0)
    assert found != wanted


def replayed(folder: ChangesFolder, seed: int) -> tuple[list[tuple[int, str]], list[tuple[int, str]], int]:
    """The table after a changelog through kills, what it should be, and how many coordinators died."""
    chance = random.Random(seed)
    log = [{"id": chance.randrange(20), "name": f"{n}", "op": chance.choice("crud"), "offset": n} for n in range(40)]
    replay = Replay(folder, log, chance)
    while replay.position < len(log):
        replay.live()
    folder.living()
    wanted: dict[int, str] = {}
    for change in log:
        wanted.pop(change["id"], None) if change["op"] == "d" else wanted.update({change["id"]: change["name"]})
    return folder.rows(), sorted(wanted.items()), replay.deaths


class Replay:
    """Is alive of one run over a log of changes. The position that a checkpoint stores is how much of the log was read."""

    def __init__(self, folder: ChangesFolder, log: list[dict[str, Any]], chance: random.Random) -> None:
        self.folder, self.log, self.chance = folder, log, chance
        self.deaths, self.number = 0, 0

    @property
    def position(self) -> int:
        """Of the last stored checkpoint."""
        latest = self.folder.store.latest()
        return 0 if latest is None else latest.positions.splits[0].split.next_offset

    def live(self) -> None:
        """A coordinator, until it dies or all is read."""
        death = Death(self.chance.randrange(1, 90))
        with patch.object(CheckpointStore, "write", death.storing(CheckpointStore.write)):
            run, job = self.folder.coordinator(None, death.around, death.step)
            try:
                job.recover()
                while self.position < len(self.log):
                    self.checkpoint(run, job)
            except KilledError:
                self.deaths += 1

    def checkpoint(self, run: RunCommitter[Any, Any], job: JobCommitter[Any]) -> None:
        """Of some changes, in two shares, the later one first. A worker that had the same ones has died."""
        begin = self.position
        end = min(len(self.log), begin + self.chance.randrange(2, 12))
        cut = self.chance.randrange(begin + 1, end) if end - begin > 1 else end
        self.share(begin, end)
        run.retire(self.number)
        number = self.folder.store.last_id + 1
        run.propose(Checkpoint(number, (SplitState(MemorySplit("log", end), finished=False),), exhausted=False))
        job.commit(number, tuple(self.share(*share) for share in ((cut, end), (begin, cut)) if share[0] < share[1]))

    def share(self, begin: int, end: int) -> WorkerHandle[Any]:
        """What a new worker has prepared."""
        self.number += 1
        self.folder.store.add_worker(self.number)
        return self.folder.wrote(self.number, 0, *self.log[begin:end])
