"""Tables under Beam: the one committer in a runner in miniature, with real tables, that is killed at everything it does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.tables import iceberg
from headrace.connectors.tables.handles import DataFile, TableHandle, TableHandleSerializer
from headrace.connectors.tables.log import TableLog
from headrace.delta import DeltaSink
from headrace.enumerator.errors import FencedError, PeerError, StateError
from headrace.iceberg import IcebergSink
from headrace.runners.beam.table_committer import HEARTBEAT, EpochCommitter, TableWriter, _finalised, job_of
from headrace.runners.beam.table_epochs import CommitterState, CommitterStateSerializer
from headrace.sinks import Attempt
from tests.helpers.envelopes import enveloped, resealed, sealed
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_paths, iceberg_values
from tests.helpers.table_rig import VALUES, Death, KilledError, WatchedLog, batch_of, delta_paths, delta_values, open_marks

GOLDEN = Path(__file__).parents[1] / "golden" / "beam_epochs_v1.json"
ROWS = 6
FIRST, SECOND = "a" * 32, "b" * 32


class Process(Death):
    """Nothing is done by a process that was killed."""

    def step(self) -> None:
        if self.left <= 0:
            raise KilledError
        super().step()


class WatchedDelta(DeltaSink):
    death: Death | None = None

    def log(self) -> TableLog:
        return watched(super().log(), WatchedDelta.death)


class WatchedIceberg(IcebergSink):
    death: Death | None = None

    def log(self) -> TableLog:
        return watched(super().log(), WatchedIceberg.death)


def watched(log: TableLog, death: Death | None) -> TableLog:
    return log if death is None else WatchedLog(log, death.around, death.step)


@dataclass(frozen=True)
class Checkpoint:
    position: int
    state: CommitterState[TableHandle] | None


@dataclass
class Flink:
    """Its checkpoints; a completed one finalises all bundles that have ended, those after its barrier too."""

    sink: Any
    run: str = FIRST
    completed: Checkpoint = field(default_factory=lambda: Checkpoint(0, None))
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.replace_process()

    def replace_process(self) -> None:
        self.committer = EpochCommitter(self.sink, self.run)
        self.restore()

    def restore(self) -> None:
        self.position, self.state = self.completed.position, self.completed.state
        self.tokens: list[Any] = []

    def call(self, element: bytes) -> None:
        self.now_s += 20
        before = self.state or CommitterState(self.run)
        lifetime, self.state, token = self.committer.call(before, element, self.now_s)
        if token is not None:
            self.tokens.append((lifetime, token))

    def write(self) -> None:
        """A bundle with the next row, whose handle comes to the committer, or a heartbeat when all are written."""
        if self.position == ROWS:
            self.call(HEARTBEAT)
            return
        writer = TableWriter(self.sink, self.run)
        writer.start_bundle()
        writer.process(batch_of([f"{self.position:04d}"]))
        for handed in writer.finish_bundle():
            self.position += 1
            self.call(handed.value[1])

    def checkpoint(self, *, after_barrier: Callable[[], None] = lambda: None) -> None:
        taken = Checkpoint(self.position, self.state)
        after_barrier()
        self.completed = taken
        tokens, self.tokens = self.tokens, []
        for lifetime, token in tokens:
            _finalised(lifetime, token)

    def work(self, rounds: int) -> None:
        for _ in range(rounds):
            self.write()
            self.checkpoint(after_barrier=self.write)


def sink_of(kind: str, folder: Path) -> Any:
    made = WatchedDelta(str(folder / "table")) if kind == "delta" else WatchedIceberg(TABLE, catalog_of(str(folder)))
    type(made).death = None
    made.create_table(VALUES)
    return made


@pytest.fixture
def sink(tmp_path: Path) -> Any:
    return sink_of("delta", tmp_path)


@pytest.fixture
def flink(sink: Any) -> Flink:
    return Flink(sink)


def values(sink: Any, folder: Path) -> list[str]:
    return delta_values(sink.uri) if isinstance(sink, DeltaSink) else iceberg_values(str(folder))


def check_nothing_is_left(sink: Any, folder: Path, *runs: str) -> None:
    root = Path(sink.uri) if isinstance(sink, DeltaSink) else folder / TABLE.replace(".", "/")
    added = delta_paths(sink.uri) if isinstance(sink, DeltaSink) else iceberg_paths(str(folder))
    assert len(added) == len(set(added))
    assert sum(1 for _ in root.glob("**/part-*/**/*.parquet")) == len(added)
    for run in runs:
        assert open_marks(str(root), job_of(run)) == set()


ALL = [f"{number:04d}" for number in range(ROWS)]


def killed_at(sink: Any, nth: int, first: Flink) -> bool:
    """Whether the process was killed before it had all in the table."""
    type(sink).death = Process(nth)
    try:
        first.work(6)
    except KilledError:
        return True
    finally:
        type(sink).death = None
    return False


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "every", "new_process", "least"),
    [("delta", 1, True, 60), ("delta", 4, False, 15), ("iceberg", 9, True, 6)],
    ids=["delta", "delta, in the same process", "iceberg"],
)
def test_each_row_is_in_a_table_once_whatever_step_a_process_is_killed_at(tmp_path, kind, every, new_process, least):
    kills = 0
    for nth in range(1, 1000, every):
        folder = tmp_path / str(nth)
        folder.mkdir()
        sink = sink_of(kind, folder)
        flink = Flink(sink)
        if not killed_at(sink, nth, flink):
            break
        kills += 1
        flink.replace_process() if new_process else flink.restore()
        flink.work(9)
        assert values(sink, folder) == ALL, nth
        if kind == "delta":
            check_nothing_is_left(sink, folder, FIRST)
    assert kills > least


def test_a_job_that_continues_from_a_savepoint_commits_what_it_has_whatever_step_it_is_killed_at(tmp_path):
    kills = 0
    for nth in range(1, 1000, 2):
        folder = tmp_path / str(nth)
        sink = sink_of("delta", folder)
        before = Flink(sink)
        before.work(2)
        before.checkpoint()
        assert before.completed.state.received, "the savepoint has nothing to commit"
        after = Flink(sink, SECOND, before.completed)
        if not killed_at(sink, nth, after):
            break
        kills += 1
        after.replace_process()
        after.work(9)
        assert values(sink, folder) == ALL, nth
        check_nothing_is_left(sink, folder, FIRST, SECOND)
    assert kills > 25


def test_what_is_durable_is_one_commit_and_nothing_before(flink, sink, tmp_path):
    for _ in range(3):
        flink.write()
    flink.checkpoint()
    flink.call(HEARTBEAT)
    assert values(sink, tmp_path) == []  # a bundle that ended after the barrier would be finalised, too
    flink.checkpoint()
    flink.call(HEARTBEAT)
    assert values(sink, tmp_path) == ALL[:3]
    assert len([path for path in (Path(sink.uri) / "_delta_log").glob("*.json") if '"add"' in path.read_text()]) == 1


def test_a_second_job_from_one_savepoint_is_refused_and_so_is_the_first_that_still_runs(sink, tmp_path):
    first = Flink(sink)
    first.work(1)
    savepoint = first.completed
    Flink(sink, SECOND, savepoint).work(9)
    with pytest.raises(FencedError):
        first.work(9)
    first.replace_process()
    with pytest.raises(StateError, match="another job has continued from it"):
        first.work(9)
    with pytest.raises(StateError, match="another job has continued from it"):
        Flink(sink, "c" * 32, savepoint).work(1)
    assert values(sink, tmp_path) == ALL


def test_a_savepoint_older_than_what_is_committed_is_refused(flink, sink, tmp_path):
    flink.work(1)
    old = flink.completed
    flink.work(9)
    for run in (FIRST, SECOND):
        with pytest.raises(StateError, match="older than what was committed"):
            Flink(sink, run, old).work(1)
    assert values(sink, tmp_path) == ALL


def test_an_older_checkpoint_with_as_many_transactions_of_other_rows_is_refused(flink, sink):
    flink.write()
    flink.checkpoint()
    old = flink.completed
    flink.work(9)
    forked = Flink(sink, FIRST, old)
    state = forked.state
    serializer = CommitterStateSerializer(sink.handles)
    for task in range(ROWS):
        with sink.begin(Attempt(job_of(FIRST), 0, task, 0)) as transaction:
            transaction.write(batch_of(["other"]))
            handle = transaction.prepare()
        state = state.adding(handle, serializer.unpack(serializer.pack(FIRST, handle))[2])
    with pytest.raises(StateError, match="or others"):
        forked.committer.call(state, HEARTBEAT, 0.0)


def test_a_table_recreated_is_refused(tmp_path):
    flink = Flink(sink_of("delta", tmp_path / "a"))
    flink.work(9)
    other = sink_of("delta", tmp_path / "b")
    with pytest.raises(StateError, match="the table says nothing: it was recreated"):
        Flink(other, FIRST, flink.completed).work(1)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("run", [FIRST, SECOND, None], ids=["restored", "submitted again", "running"])
def test_a_table_that_is_put_back_to_an_older_backup_is_refused(tmp_path, kind, run):
    """Its log alone, or its catalog: the files are there, as they are never changed."""
    there, backup = tmp_path / "there", tmp_path / "backup"
    log = "table/_delta_log" if kind == "delta" else "catalog.db"
    there.mkdir()
    flink = Flink(sink_of(kind, there))
    flink.work(3)
    shutil.copytree(there, backup)
    flink.work(1)
    count = len(values(flink.sink, there))
    shutil.move(there / log, tmp_path / "newer")
    shutil.move(backup / log, there / log)
    iceberg._catalog_of_process.cache_clear()  # its connections are to the other file
    assert 0 < len(values(flink.sink, there)) < count
    message = "an older copy has taken its place" if run is None else f"has committed {count} transactions, and the table says"
    with pytest.raises(StateError, match=message):
        (flink if run is None else Flink(flink.sink, run, flink.completed)).work(9)
    assert 0 < len(values(flink.sink, there)) < count


def test_a_committer_that_was_replaced_commits_nothing(sink, tmp_path):
    zombie = Flink(sink)
    zombie.work(1)
    zombie.write()
    flink = Flink(sink, FIRST, zombie.completed)
    flink.write()
    with pytest.raises(FencedError):
        zombie.work(9)
    flink.work(9)
    assert values(sink, tmp_path) == ALL
    check_nothing_is_left(sink, tmp_path, FIRST)


def test_what_a_writer_has_open_is_not_cleaned_up_while_it_may_still_be_handed_over(flink, sink, tmp_path):
    writer = TableWriter(sink, FIRST)

    def begin() -> None:
        writer.start_bundle()
        writer.process(batch_of(["slow"]))
        flink.call(HEARTBEAT)  # it looks
        assert len(open_marks(sink.uri, job_of(FIRST))) == 1

    flink.checkpoint(after_barrier=begin)  # finalises the look, though the checkpoint started before it
    flink.call(HEARTBEAT)
    (handed,) = writer.finish_bundle()
    flink.call(handed.value[1])
    flink.work(9)
    assert values(sink, tmp_path) == [*ALL, "slow"]


def test_what_a_process_knew_before_a_restore_proves_nothing_after_it(flink, sink, tmp_path):
    def write_two() -> None:
        flink.write()
        flink.write()

    flink.checkpoint(after_barrier=write_two)
    flink.restore()
    flink.checkpoint(after_barrier=write_two)
    flink.call(HEARTBEAT)
    assert values(sink, tmp_path) == []
    flink.work(9)
    assert values(sink, tmp_path) == ALL


def test_an_epoch_that_the_table_refuses_says_that_its_rows_are_not_read_again(flink, sink):
    flink.write()
    for path in Path(sink.uri).glob("part-*/**/*.parquet"):
        path.unlink()
    with pytest.raises(PeerError, match="are not there any more") as caught:
        flink.work(9)
    assert any("their rows are not read again" in note for note in caught.value.__notes__)


def golden_state() -> CommitterState[TableHandle]:
    serializer = TableHandleSerializer()
    file = DataFile("part-beam-x/0-7-0-abc/00000.parquet", 120, 3, (), "{}")
    handle = TableHandle(Attempt("beam-x", 0, 7, 0), "abc", "table", (("value", "string"),), (), (file,))
    return CommitterState("x", 4, "0" * 64).adding(handle, serializer.serialize(handle))


def test_the_current_version_reads_and_writes_its_golden_file():
    serializer = CommitterStateSerializer(TableHandleSerializer())
    assert serializer.deserialize(GOLDEN.read_bytes(), "golden") == golden_state()
    assert serializer.serialize(golden_state()) == GOLDEN.read_bytes().rstrip()


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"{}", "without a format"),
        (b"\xff", "not JSON"),
        (enveloped(sealed("headrace-epochs", {}), version=99), "version 99"),
        (sealed("headrace-epochs", {}), "KeyError"),
        (sealed("headrace-prepared", {}), "its format is 'headrace-prepared'"),
    ],
)
def test_what_is_no_state_of_a_committer_is_named(data, named):
    with pytest.raises(StateError, match=f"^here: the state of a committer cannot be read: .*{named}"):
        CommitterStateSerializer(TableHandleSerializer()).deserialize(data, "here")
    with pytest.raises(StateError, match=r"^what a writer has handed over: .* cannot be read: "):
        CommitterStateSerializer(TableHandleSerializer()).unpack(data)


@pytest.mark.parametrize(
    "changes", [{"run": 7}, {"committed": "4"}, {"digest": None}, {"received": [[7, {}]]}, {"handle_version": 9}], ids=str
)
def test_a_damaged_state_of_a_committer_is_refused(changes):
    with pytest.raises(StateError, match=r"^here: the state of a committer cannot be read: "):
        CommitterStateSerializer(TableHandleSerializer()).deserialize(resealed(GOLDEN.read_bytes(), **changes), "here")


def test_a_batch_without_columns_of_the_table_fails_its_bundle(tmp_path):
    writer = TableWriter(sink_of("delta", tmp_path), FIRST)
    writer.start_bundle()
    with pytest.raises(Exception, match="value"):
        writer.process(pa.RecordBatch.from_pydict({"other": ["x"]}))
    writer.teardown()
