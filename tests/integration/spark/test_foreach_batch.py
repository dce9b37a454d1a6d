"""Two topics, two folders and two tables in one `foreachBatch`, under one name: every row in each, once, though it is killed.

Each kind by itself, killed at any step of a commit: `tests/unit/spark/test_foreach_batch.py`,
`tests/integration/sql/test_sql_sink.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.files import FileSink
from headrace.testing import FakeKafka
from tests.helpers.databases import postgresql
from tests.helpers.file_rig import visible
from tests.helpers.spark_jobs import finish_driver, kill_driver
from tests.helpers.sql_rig import SqlRig

NUMBERS = 100
ID = "CAST(CAST(value AS STRING) AS BIGINT) AS id"


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        cluster.create_topic("in", partitions=2)
        for number in range(NUMBERS):
            cluster.append("in", b"%d" % number, partition=number % 2)
        for topic in ("a", "b"):
            cluster.create_topic(topic)
        yield cluster


@pytest.fixture
def tables():
    with postgresql() as server:
        made = [SqlRig(server.url), SqlRig(server.url)]
        for rig in made:
            rig.create("id BIGINT PRIMARY KEY")
        yield made


@pytest.mark.timeout(600)
def test_two_topics_two_folders_and_two_tables_have_each_row_once_after_a_kill(kafka, tables, tmp_path):
    """Killed when the first table's list is durable: two destinations are committed, three not started, and it runs again."""
    kafka_options = {"kafka.bootstrap.servers": kafka.bootstrap}
    folders = [FileSink(str(tmp_path / name)) for name in ("a", "b")]
    for folder in folders:
        Path(folder.path).mkdir()  # so that it can be listed before it is written to
    each_batch = []
    for topic, folder, table in zip(("a", "b"), folders, tables, strict=True):
        each_batch += [
            {"select": ["value"], "write": {**kafka_options, "topic": topic}},
            {"select": ["CAST(value AS STRING) AS value"], "write": {"connector": "files", "path": folder.path}},
            {"select": [ID], "write": {"connector": "sql", "url": table.url, "dbtable": table.table}},
        ]
    read = {**kafka_options, "subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 50}
    arguments = {"read": read, "select": ["*"], "each_batch": each_batch}

    def found() -> list[list[int]]:
        in_topics = [sorted(int(record.value) for record in kafka.records(topic)) for topic in ("a", "b")]
        return [*in_topics, *(sorted(map(int, visible(sink))) for sink in folders), *(table.ids() for table in tables)]

    kill_driver(tmp_path, arguments, "headrace.connectors.sql.sink", "SqlCommitter", "record", "after", 1)
    assert [len(one) > 0 for one in found()] == [True, False, True, False, False, False]
    assert tables[0].prepared()
    finish_driver(tmp_path, arguments, lambda: all(len(one) >= NUMBERS for one in found()))
    assert found() == [list(range(NUMBERS))] * 6
    assert not tables[0].prepared()
