"""The Iceberg sink against Apache Iceberg's own REST catalog, a Java server that its project tests clients with.

    python -m tests.helpers.rest_catalog

Not one of the tests: the server is a download of 212 MB, once. Epochs are appended and merged by key, repeated, and fenced; the
server is stopped during a commit and started again. Exit status 1 with a traceback if anything else is in the table.
"""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from rich.console import Console

from headrace.connectors.tables.committer import TableCommitter
from headrace.connectors.tables.log import OutdatedError
from headrace.errors import FencedError, RetriableError
from headrace.iceberg import IcebergSink
from headrace.runners.user_cache import find_java
from headrace.sinks import Attempt, Changes, JobCommitter
from headrace.testing.servers.jars import Bundle, installed
from tests.helpers.table_rig import JOB, WatchedLog, driver

SERVER = Bundle(
    name="Iceberg's REST catalog 1.10.1", folder="iceberg-rest-1.10.1", modules=("org.apache.iceberg:iceberg-open-api:1.10.1",),
    jars=1, size="212 MB",
)  # fmt: skip
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("offset", pa.int64())])
START_S = 60.0


class Catalog:
    """The server, with its tables in a folder. Stopped and started it has the same ones."""

    def __init__(self, folder: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        return {"type": "rest", "uri": f"http://127.0.0.1:{self._port}"}

    def start(self) -> None:
        """Until it answers. Raises RuntimeError if it does not."""
        settings = {
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{self._folder}/catalog.db", "CATALOG_JDBC_USER": "user",
            "CATALOG_JDBC_PASSWORD": "password", "CATALOG_WAREHOUSE": f"file://{self._folder}",
            "CATALOG_REST_PORT": str(self._port), "REST_PORT": str(self._port),
        }  # fmt: skip
        jar, main = installed(SERVER) / SERVER.main_jar, "org.apache.iceberg.rest.RESTCatalogServer"
        command = [find_java(SERVER.name), "-cp", jar, main]
        with open(f"{self._folder}/server.log", "ab") as log:
            self._process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(Path(self._folder, "server.log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with urlopen(f"{self.properties['uri']}/v1/config", timeout=10):
                return True
        except (URLError, ConnectionError):
            return False


@contextmanager
def catalog() -> Iterator[Catalog]:
    with tempfile.TemporaryDirectory(prefix="headrace-rest-") as folder:
        made = Catalog(folder)
        made.start()
        try:
            yield made
        finally:
            made.stop()


def prepared(sink: IcebergSink, epoch: int, key: int) -> Any:
    with sink.begin(Attempt(JOB, epoch, 0, 0)) as transaction:
        transaction.write(pa.RecordBatch.from_pylist([{"id": key, "name": str(epoch), "offset": epoch}], schema=ROWS))
        return transaction.prepare()


def names(sink: IcebergSink) -> list[str]:
    found = load_catalog("default", **sink.catalog).load_table(sink.table).scan().to_arrow()
    return sorted(found["name"].to_pylist())


def appended_merged_repeated_and_fenced(server: Catalog, changes: Changes | None, wanted: list[str]) -> None:
    """Epochs 0 to 3 with the keys 0, 0, 1, 2."""
    sink = IcebergSink("shop.changed" if changes else "shop.appended", server.properties, changes=changes)
    sink.create_table(ROWS, ("bucket(4, id)",))
    older, newer = driver(sink), driver(sink)
    for epoch in range(3):
        older.commit(epoch, (prepared(sink, epoch, epoch // 2),))
    older.commit(2, ())
    newer.recover()
    with pytest.raises(FencedError):
        older.commit(3, (prepared(sink, 3, 2),))
    newer.commit(3, (prepared(sink, 3, 2),))
    assert names(sink) == wanted
    assert sink.recorded_epochs() == {JOB: 3}


def away_during_a_commit(server: Catalog, *, is_applied: bool) -> None:
    """The server is killed before or right after it commits, and comes back when that was noticed."""
    sink = IcebergSink(f"shop.away_{is_applied}", server.properties)
    sink.create_table(ROWS)
    noticed = []

    def around(number: int, commit: Any) -> None:
        if number != 2:
            commit()
            return
        if is_applied:
            commit()
        server.stop()
        try:
            names(sink)
            raise AssertionError("the server is away, and answers")
        except OSError as error:
            noticed.append(error)
        try:
            if not is_applied:
                commit()
            raise OutdatedError("the answer is lost")
        except RetriableError as error:
            noticed.append(error)
            raise
        finally:
            server.start()

    JobCommitter(JOB, TableCommitter(WatchedLog(sink.log(), around), JOB, sink.table)).commit(0, (prepared(sink, 0, 0),))
    assert len(noticed) == 2
    assert names(sink) == ["0"]


def main() -> None:
    with catalog() as server:
        appended_merged_repeated_and_fenced(server, None, ["0", "1", "2", "3"])
        appended_merged_repeated_and_fenced(server, Changes(("id",)), ["1", "2", "3"])
        for is_applied in (True, False):
            away_during_a_commit(server, is_applied=is_applied)
    Console().print("Iceberg's REST catalog: appended, merged, repeated, fenced, away during a commit")


if __name__ == "__main__":
    main()
