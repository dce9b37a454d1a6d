"""The kit of sinks on databases, where there are any; and injected bugs, which it must catch."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.sql.handles import SqlHandle
from headrace.sql import SqlSink
from headrace.testing import SinkConformance, SinkContext
from headrace.testing.servers.databases import Database
from tests.helpers.databases import servers
from tests.helpers.sql_rig import SqlRig
from tests.simulation.bugs.in_sinks import CAUGHT_BY, PassingSink, assert_caught

GID = "headrace.0a1b2c3d.orders.7.0.0.00c0ffee"


class SqlContext(SinkContext):
    """its own table; jobs are apart by their names."""

    def __init__(self, url: str) -> None:
        self.rig = SqlRig(url)
        self.rig.create("value VARCHAR(200)")

    def create_sink(self) -> SqlSink:
        return self.rig.sink()

    def batch(self, values: Sequence[str]) -> pa.RecordBatch:
        return pa.record_batch({"value": pa.array(values, pa.string())})

    def visible(self) -> list[str]:
        return [value for (value,) in self.rig.rows("value")]

    def unended(self, job: str) -> int:
        return sum(f".{job}." in gid for gid in self.rig.prepared())

    def golden_handles(self) -> Sequence[tuple[int, str, Any]]:
        return [(1, json.dumps({"gid": GID, "rows": 1000}), SqlHandle(GID, 1000))]

    def abort_prepared(self, handle: SqlHandle) -> None:
        self.rig.roll_back(handle.gid)

    def close(self) -> None:
        self.rig.drop()


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[str], Database]]:
    with servers() as by_name:
        yield by_name


class OnSql(SinkConformance):
    product: str

    @pytest.fixture(autouse=True)
    def reach(self, server):
        self.url = server(self.product).url

    def create_external_context(self) -> SqlContext:
        return SqlContext(self.url)


@pytest.mark.timeout(120)
class TestPostgreSql(OnSql):
    product = "postgresql"


@pytest.mark.full
@pytest.mark.timeout(120)
class TestMariaDb(OnSql):
    product = "mariadb"


@pytest.mark.full
@pytest.mark.timeout(120)
@pytest.mark.parametrize("bug", CAUGHT_BY, ids=lambda bug: bug.__name__)
def test_the_kit_catches(bug: type[PassingSink], server):
    kit = TestPostgreSql()
    kit.url = server("postgresql").url
    assert_caught(kit, bug)
