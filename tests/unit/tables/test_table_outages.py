"""A table's store or catalog that is away during a commit, and commits whose answer is lost, as the libraries say so."""

import errno
import gc
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import requests
from botocore.exceptions import ClientError, EndpointConnectionError
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from sqlalchemy.exc import OperationalError

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.sink import Attempt
from headrace.connectors.tables import committer
from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.log import LoadedTable
from headrace.connectors.tables.metadata_folder import WorkFolder
from headrace.delta import DeltaSink
from headrace.enumerator.errors import PeerError, RetriableError
from headrace.iceberg import IcebergSink
from tests.helpers.iceberg_rig import TABLE, catalog_of, iceberg_values
from tests.helpers.table_rig import JOB, VALUES, WatchedLog, batch_of, delta_values, driver, open_marks, prepared


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(committer, "LONGEST_PAUSE_S", 0.0)


class Away:
    """Whatever is asked of the table fails, from the nth call on, this many times."""

    def __init__(self, first: int, times: int, error: Callable[[], OSError]) -> None:
        self._calls, self._away, self._error = 0, range(first, first + times), error
        self.failed = 0

    def call(self) -> None:
        self._calls += 1
        if self._calls in self._away:
            self.failed += 1
            raise self._error()


class AwayLog(WatchedLog):
    """Of a table whose store and catalog are away together."""

    def __init__(self, sink: Any, away: Away) -> None:
        def commit(_: int, commit: Callable[[], None]) -> None:
            self._asked()
            commit()

        self._away = away
        super().__init__(sink.log(), commit, away.call)

    def load(self) -> LoadedTable:
        self._asked()
        return super().load()

    def _asked(self) -> None:
        """The table's library is translated where it is called."""
        try:
            self._away.call()
        except OSError as error:
            raise RetriableError(f"injected: {error}") from error


def sink_of(kind: str, folder: Path) -> DeltaSink | IcebergSink:
    folder.mkdir()
    made = DeltaSink(f"{folder}/table") if kind == "delta" else IcebergSink(TABLE, catalog_of(str(folder)))
    made.create_table(VALUES)
    return made


def values(kind: str, folder: Path) -> list[str]:
    return delta_values(f"{folder}/table") if kind == "delta" else iceberg_values(str(folder))


def marks(kind: str, folder: Path) -> set[str]:
    return open_marks(f"{folder}/table" if kind == "delta" else f"{folder}/shop/orders")


def lost_connection() -> OSError:
    return ConnectionResetError("injected")


@pytest.mark.parametrize(("kind", "step"), [("delta", 1), ("iceberg", 3)])
def test_a_table_that_is_away_for_a_while_is_waited_for(tmp_path, kind, step):
    """From whatever call of a driver on: its epoch is committed once, by the same driver."""
    outages = 0
    for first in range(1, 200, step):
        folder = tmp_path / str(first)
        sink, away = sink_of(kind, folder), Away(first, 5, lost_connection)
        prepared(sink, 0, 5, ["loser"])
        handles = (prepared(sink, 0, 0, ["a"]), prepared(sink, 0, 1, ["b"]))
        JobCommitter(JOB, TableCommitter(AwayLog(sink, away), JOB, str(folder))).commit(0, handles)
        assert values(kind, folder) == ["a", "b"], first
        assert marks(kind, folder) == set(), first
        if not away.failed:
            break
        outages += 1
    assert outages > 5


def test_a_table_that_stays_away_fails_the_job_and_its_successor_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(committer, "TIMEOUT_S", 0.0)
    sink, away = sink_of("delta", tmp_path / "t"), Away(12, 1000, lost_connection)
    handle = prepared(sink, 0, 0, ["a"])
    with pytest.raises(PeerError, match="injected"):
        JobCommitter(JOB, TableCommitter(AwayLog(sink, away), JOB, "the table")).commit(0, (handle,))
    assert away.failed
    driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert values("delta", tmp_path / "t") == ["a"]
    assert marks("delta", tmp_path / "t") == set()


@pytest.mark.parametrize("end", ["prepare", "abort"])
def test_a_file_that_cannot_be_closed_is_not_closed_again_when_it_is_collected(tmp_path, monkeypatch, end):
    """That left a traceback of the library on stderr, behind the error."""

    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            if len(data) > len(b"PAR1"):  # with which each file starts
                raise OSError(errno.ENOSPC, "no space left")
            return len(data)

    sink = sink_of("delta", tmp_path / "t")
    monkeypatch.setattr(WorkFolder, "create", lambda *_: pa.PythonFile(Full(), "w"))
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(PeerError, match="no space left") if end == "prepare" else nullcontext():
        transaction = sink.begin(Attempt(JOB, 0, 0, 0))
        transaction.write(batch_of(["a"]))
        getattr(transaction, end)()
    del transaction
    gc.collect()
    assert ignored == []


@pytest.mark.parametrize(
    "error", [PermissionError("injected"), OSError(28, "injected: no space left")], ids=["rights", "space"]
)
def test_what_does_not_pass_is_said_at_once(tmp_path, error):
    sink = sink_of("delta", tmp_path / "t")
    away = Away(2, 1000, lambda: error)
    with pytest.raises(PeerError, match=r"the table: .*injected"):
        JobCommitter(JOB, TableCommitter(AwayLog(sink, away), JOB, "the table")).recover()
    assert away.failed == 1


# --- answers that are lost ----------------------------------------------------------------------------------------------
def once(real: Callable[..., Any], error: Exception, *, is_applied: bool, raised: list[Exception]) -> Callable[..., Any]:
    """The library's commit, whose answer is lost the second time: the first one takes the job over."""
    calls: Iterator[int] = iter(range(1, 100))

    def commit(*arguments: Any, **named: Any) -> Any:
        if next(calls) != 2:
            return real(*arguments, **named)
        if is_applied:
            real(*arguments, **named)
        raised.append(error)
        raise error

    return commit


OF_DELTA = [OSError("injected: Generic S3 error: timed out"), CommitFailedError("injected")]
OF_ICEBERG = [
    requests.exceptions.ConnectionError("injected"),
    CommitStateUnknownException("injected"),
    OperationalError("injected", None, Exception("server closed the connection unexpectedly")),
    EndpointConnectionError(endpoint_url="injected"),
    ClientError({"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "UpdateTable"),
    ClientError({"Error": {"Code": "InternalServiceException"}, "ResponseMetadata": {"HTTPStatusCode": 500}}, "UpdateTable"),
]


COMMITS = {"delta": (DeltaTable, "create_write_transaction"), "iceberg": (SqlCatalog, "commit_table")}
LOST = [*(("delta", error) for error in OF_DELTA), *(("iceberg", error) for error in OF_ICEBERG)]


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize(("kind", "error"), LOST, ids=lambda value: value if isinstance(value, str) else type(value).__name__)
def test_the_answer_of_a_tables_library_is_lost(tmp_path, kind, error, is_applied):
    sink, raised = sink_of(kind, tmp_path / "t"), []
    owner, method = COMMITS[kind]
    commit = once(getattr(owner, method), error, is_applied=is_applied, raised=raised)
    with patch.object(owner, method, commit):
        driver(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert raised
    assert values(kind, tmp_path / "t") == ["a"]
