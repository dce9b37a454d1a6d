"""The harness of `make chaos` on real databases: who watches a table and judges it, and faults of its server."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.pool import NullPool

from benchmarks.chaos.databases import PRODUCTS, TableOutput
from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.oracle import VALUE_BYTES, OutputCheck, now
from benchmarks.chaos.run import Journal, Servers, Session
from benchmarks.chaos.trial import is_good
from benchmarks.restore.records import HEAD_BYTES, RecordMaker
from headrace.enumerator.errors import RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing.servers import databases
from headrace.testing.servers.databases import Database
from tests.helpers.databases import mariadb, postgresql

pytestmark = pytest.mark.timeout(600)
SERVERS = {"embedded-postgresql": postgresql, "embedded-mariadb": mariadb}
TIMEOUT_S = 60.0
PRODUCED = [5, 3]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[str], Database]]:
    """Gives servers by system, each started when it is first asked for: processes, as what runs in containers is not killed."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(databases, "docker_answers", lambda: False)
        yield functools.cache(lambda system: stack.enter_context(SERVERS[system]()))


class Rig:
    """A table, its watcher, its output check, and sessions that write to it."""

    def __init__(self, database: Database, system: str) -> None:
        self.database = database
        self.output = TableOutput(database, PRODUCTS[system], f"out_{next(_numbers)}")
        self.output_check = OutputCheck(len(PRODUCED))
        url = sa.make_url(database.url).set(drivername=PRODUCTS[system].driver)
        self.engine = sa.create_engine(url, poolclass=NullPool)

    def put(self, connection: Connection, values: Sequence[bytes]) -> None:
        quote = connection.dialect.identifier_preparer.quote
        statement = f"INSERT INTO {self.output.name} ({quote('key')}, value) VALUES (%s, %s)"
        connection.exec_driver_sql(statement, [(value[:HEAD_BYTES], value) for value in values])

    def write(self, values: Sequence[bytes]) -> None:
        with self.engine.begin() as connection:
            self.put(connection, values)

    def until_seen(self, count: int) -> None:
        """Until the output check has been shown this many values, of whatever kind."""

        def look() -> None:
            self.output_check.add(self.output.look(), now())
            shown = self.output_check.records + self.output_check.duplicates + self.output_check.damaged
            if shown != count:
                raise RetriableError(f"{shown} were shown")

        wait_until(look, "the watcher shows nothing", TIMEOUT_S)

    def outcome(self) -> dict[str, int]:
        """What is not 0 of it."""
        return {name: count for name, count in self.output.outcome(PRODUCED, self.output_check).items() if count}


@pytest.fixture(params=SERVERS)
def rig(server, request) -> Iterator[Rig]:
    rig = Rig(server(request.param), request.param)
    yield rig
    rig.output.close()


def records(origin: int, first: int, count: int) -> list[bytes]:
    return [row.tobytes() for row in RecordMaker(VALUE_BYTES).values(origin, first, count)]


ALL = [*records(0, 0, 5), *records(1, 0, 3)]
CLEAN = {"records_in": 8, "records_out": 8}


class TestTheTable:
    def test_every_record_once_is_nothing_wrong(self, rig):
        rig.write(ALL)
        rig.until_seen(8)
        assert rig.output_check.missing(PRODUCED) == 0
        assert rig.outcome() == CLEAN

    def test_a_record_that_is_there_twice_is_a_duplicate(self, rig):
        rig.write([*ALL, ALL[2]])
        rig.until_seen(9)
        assert rig.output_check.duplicates == 1
        assert rig.outcome() == {**CLEAN, "records_out": 9, "duplicates": 1}

    def test_a_record_that_is_not_there_is_lost(self, rig):
        rig.write([*ALL[:3], *ALL[4:]])
        rig.until_seen(7)
        assert rig.output_check.missing(PRODUCED) == 1
        assert rig.outcome() == {**CLEAN, "records_out": 7, "lost": 1}

    def test_a_value_with_another_byte_is_damaged_and_its_record_is_lost(self, rig):
        value = bytearray(ALL[3])
        value[50] ^= 1
        rig.write([*ALL[:3], bytes(value), *ALL[4:]])
        rig.until_seen(8)
        assert rig.output_check.damaged == 1
        assert rig.outcome() == {**CLEAN, "lost": 1, "damaged": 1}

    def test_a_record_that_no_process_has_produced_is_foreign(self, rig):
        rig.write([*ALL, *records(1, 3, 1)])
        rig.until_seen(9)
        assert rig.outcome() == {**CLEAN, "records_out": 9, "foreign": 1}

    def test_a_record_that_was_shown_and_is_gone_is_a_phantom(self, rig):
        rig.write(ALL)
        rig.until_seen(8)
        with rig.engine.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM {rig.output.name} WHERE place = 1")
        assert rig.outcome() == {**CLEAN, "records_out": 7, "lost": 1, "aborted_seen": 1}

    def test_rows_that_become_visible_after_later_ones_are_seen_and_those_rolled_back_are_not(self, rig):
        with rig.engine.connect() as late, rig.engine.connect() as never:
            rig.put(late, ALL[:2])
            rig.put(never, ALL)
            rig.write(ALL[2:])
            rig.until_seen(6)
            never.rollback()
            late.commit()
        rig.until_seen(8)
        assert rig.outcome() == CLEAN

    def test_a_transaction_that_is_in_dispute_is_reported(self, rig):
        rig.write(ALL)
        rig.until_seen(8)
        with rig.engine.connect() as connection:
            transaction = connection.begin_twophase("unresolved")
            rig.put(connection, records(0, 5, 1))
            transaction.prepare()
            assert rig.outcome() == {**CLEAN, "prepared": 1}
            transaction.rollback()

    def test_its_watcher_rides_out_the_death_of_the_server(self, rig):
        rig.write(ALL[:4])
        rig.until_seen(4)
        rig.database.kill()
        assert rig.output.look() == []
        rig.database.restart()
        rig.write(ALL[4:])
        rig.until_seen(8)
        assert rig.outcome() == CLEAN

    def test_its_watcher_waits_for_no_process_while_the_server_is_frozen(self, rig):
        rig.database.pause()
        try:
            assert rig.output.look() == []
        finally:
            rig.database.resume()
        rig.write(ALL)
        rig.until_seen(8)

    def test_a_cut_ends_the_sessions_of_others(self, rig):
        rig.write(ALL[:1])
        rig.until_seen(1)
        watcher = rig.output._session
        with rig.engine.connect() as other:
            assert other.exec_driver_sql("SELECT 1").scalar_one() == 1
            assert rig.output.cut() == 1
            with pytest.raises(sa.exc.DBAPIError):
                other.exec_driver_sql("SELECT 1")
            other.invalidate()
        rig.write(ALL[1:])
        rig.until_seen(8)
        assert rig.output._session == watcher
        assert rig.output.cut() == 0


@pytest.fixture
def session(tmp_path, monkeypatch) -> Iterator[Callable[[str], Session]]:
    """Starts sessions of systems, with FakeKafka and their own database; skips where there is none."""
    monkeypatch.setattr(databases, "docker_answers", lambda: False)
    with ExitStack() as stack:

        def start(system: str) -> Session:
            with SERVERS[system]():
                pass
            return Session(system, Servers.FAKE, Journal(tmp_path / "lines.jsonl"), stack)

        yield start


@pytest.mark.long
@pytest.mark.parametrize("system", SERVERS)
def test_a_job_into_a_table_is_what_its_database_suffers(session, system):
    """The whole harness: each fault has happened, and no record is missing or there twice."""
    kinds = [kind for kind in KINDS.values() if kind.tree == "databases"]
    current, generator = session(system), random.Random(1)
    lines = [current.suffer(kind, generator) for kind in kinds]
    outcome = current.judge()["verdict"]
    assert [line["kind"] for line in lines if "proof" in line] == [kind.name for kind in kinds]
    assert all(is_good(line) for line in lines)
    assert {name for name, count in outcome.items() if count} == {"records_in", "records_out"}
    assert outcome["records_in"] == outcome["records_out"]


@pytest.mark.long
@pytest.mark.parametrize("system", SERVERS)
def test_a_job_that_doubles_into_a_table_is_found_out_when_its_database_is_killed(session, system):
    current = session(system)
    output_check = current.subject.output_check
    # epochs: it is to continue from the last but one
    assert current.trial.watch(TIMEOUT_S, lambda: len(output_check.moments) > 2)
    current.subject.more = {**current.subject.more, "injected": "doubles"}  # for the one that is started after the fault
    found = current.suffer(KINDS["database killed"], random.Random(1))
    outcome = current.judge()["verdict"]
    assert "proof" in found
    assert found["starts"] > 0
    assert found["duplicates"] == outcome["duplicates"] > 0
    assert (outcome["lost"], outcome["aborted_seen"]) == (0, 0)
