"""Lists of committables in a database, on SQLite: one for each table of a job. Servers: integration/sql/test_sql_sink.py."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

from headrace.connectors.base.commit import JobCommitter, StaleEpochError
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.sink import Attempt, CommitList
from headrace.connectors.sql.handles import SqlHandle, SqlHandleSerializer, list_key
from headrace.connectors.sql.upsert import UpsertSink
from headrace.enumerator.errors import FencedError, StateError, UsageError
from tests.helpers import batch_writes
from tests.helpers.envelopes import body_of, resealed
from tests.helpers.sql_rig import SqlRig, batch

GOLDEN = Path(__file__).parents[1] / "golden" / "sql_commit_list_v1.json"
JOB = "app"
LISTS = CommitListSerializer(SqlHandleSerializer())


@pytest.fixture
def address(tmp_path):
    return f"sqlite:///{tmp_path / 'some.db'}"


@pytest.fixture
def tables(address):
    made = [SqlRig(address), SqlRig(address)]
    for rig in made:
        rig.create("id BIGINT PRIMARY KEY, name VARCHAR(100)")
    return made


def sink(rig: SqlRig, table: str | None = None) -> UpsertSink:
    return UpsertSink(rig.url, table or rig.table, ("id",))


def written(to: UpsertSink, epoch: int, ids: list[int]) -> None:
    batch_writes.written(to, JOB, epoch, batch(ids))


class TestDestinations:
    def test_two_writes_of_one_name_and_number_to_two_tables_both_write(self, tables):
        """findings: Sinks 1. The second found the epoch recorded, and wrote nothing, silently."""
        for epoch in (0, 1, 1):
            for number, rig in enumerate(tables):
                written(sink(rig), epoch, [10 * number + epoch])
        assert [rig.ids() for rig in tables] == [[0, 1], [10, 11]]

    def test_also_from_two_threads_at_once(self, tables):
        for epoch in range(3):
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda rig, epoch=epoch: written(sink(rig), epoch, [epoch]), tables))
        assert [rig.ids() for rig in tables] == [[0, 1, 2]] * 2

    def test_a_table_has_one_list_however_its_name_is_written(self, tables):
        rig = tables[0]
        written(sink(rig), 0, [0])
        written(sink(rig, f"main.{rig.table}"), 0, [1])
        written(sink(rig, rig.table.upper()), 0, [2])
        assert rig.ids() == [0]

    def test_a_driver_fences_its_own_table_only(self, tables):
        with closing(sink(tables[0]).committer(JOB)) as one, closing(sink(tables[1]).committer(JOB)) as other:
            one.fence()
            other.fence()
            one.record(CommitList(0, (), completed=True))
            other.record(CommitList(7, (), completed=True))
        assert [sink(rig).recorded_epochs() for rig in tables] == [{JOB: 0}, {JOB: 7}]

    def test_a_driver_records_nothing_in_an_older_backup(self, tables):
        """Restored during an outage, of which the job is not told: its next epoch would hide that those between are gone."""
        rig = tables[0]
        with closing(sink(rig).committer(JOB)) as driver:
            driver.fence()
            driver.record(CommitList(0, (), completed=True))
            ((text,),) = rig.execute("SELECT commit_list FROM headrace_commits")
            driver.record(CommitList(1, (), completed=True))
            driver.record(CommitList(1, (), completed=True))
            rig.execute(f"UPDATE headrace_commits SET epoch = 0, commit_list = '{text}'")
            with pytest.raises(FencedError, match="or the database was restored from an older backup"):
                driver.record(CommitList(2, (), completed=True))
        assert sink(rig).recorded_epochs() == {JOB: 0}

    def test_the_list_says_its_table_in_clear_and_one_of_another_table_is_refused(self, tables):
        rig = tables[0]
        with closing(JobCommitter(JOB, sink(rig).committer(JOB))) as driver:
            driver.commit(0, ())
        ((text,),) = rig.execute("SELECT commit_list FROM headrace_commits")
        assert body_of(text)["destination"] == f"main.{rig.table}"
        other = resealed(text, destination="main.elsewhere").decode()
        rig.execute(f"UPDATE headrace_commits SET commit_list = '{other}'")
        with (
            closing(sink(rig).committer(JOB)) as committer,
            pytest.raises(StateError, match=f"a list for main.elsewhere, not for main.{rig.table}"),
        ):
            committer.fence()

    def test_a_job_is_forgotten_at_its_own_table_only(self, tables):
        for rig in tables:
            written(sink(rig), 3, [1])
        with closing(sink(tables[0]).committer(JOB)) as committer:
            committer.forget()
        assert [sink(rig).recorded_epochs() for rig in tables] == [{}, {JOB: 3}]

    def test_a_table_that_is_gone_is_named(self, tables):
        rig = tables[0]
        written(sink(rig), 0, [1])
        rig.execute(f"DROP TABLE {rig.table}")
        with closing(sink(rig).committer(JOB)) as committer, pytest.raises(UsageError, match=f"no table '{rig.table}'"):
            committer.fence()


class TestOrder:
    def test_an_older_copy_of_a_checkpoint_is_refused(self, tables):
        rig = tables[0]
        written(sink(rig), 5, [5])
        with pytest.raises(StaleEpochError):
            written(sink(rig), 4, [4])
        written(sink(rig), 6, [6])
        assert rig.ids() == [5, 6]

    def test_a_task_that_comes_late_is_refused(self, tables):
        rig = tables[0]
        written(sink(rig), 5, [5])
        with sink(rig).begin(Attempt(JOB, 5, 0, 0)) as transaction:
            transaction.write(batch([1]))
            with pytest.raises(FencedError, match="epoch 5"):
                transaction.prepare()
        assert rig.ids() == [5]


HANDLES = (
    SqlHandle("headrace.0a1b2c3d.orders.7.0.0.00c0ffee", 1000),
    SqlHandle("headrace.0a1b2c3d.a-job-with-a-~f4bd1c1d1b3c7d9f0e2a4c6b8d0f1e3a.9223372036854775807.199.3.deadbeef", 2**40),
)
GOLDEN_LIST = CommitList(7, HANDLES, destination="public.orders")


def test_the_golden_list_is_read_and_written():
    """A difference here means that the format has changed, and needs a new version."""
    assert LISTS.deserialize(GOLDEN.read_bytes(), "golden") == GOLDEN_LIST
    assert LISTS.serialize(GOLDEN_LIST) == GOLDEN.read_bytes()


def test_the_key_of_a_table_does_not_change():
    """It is stored: with another one a job would not find its list, and write its epoch again."""
    assert list_key("orders", "public.orders") == "orders.b2852c9f"
