"""Every code block of the documents does what it says, or says why it is not run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient

from headrace.kafka import KafkaSource, Latest
from headrace.testing.servers.kafka import create_topic, delete_topic
from tests.docs.blocks import BlockError, Page
from tests.docs.documents import DOCUMENTS, ROOT, tokens
from tests.helpers.kafka_rig import write_records
from tests.helpers.schema_registry import FakeRegistry

if TYPE_CHECKING:
    from headrace.testing.servers.kafka import BrokerCluster

KEPT = {"headrace-commits"}
"""Kept with the process, as the sinks keep what they have read of it."""


README = ROOT / "README.md"


OF_TEST_ALL = {"beam-pipelines.md", "delta-tables.md", "iceberg-tables.md", "tables-and-files.md"}
"""Pages whose blocks take longest: they start Beam, or Spark with the jars of tables."""


def with_blocks() -> list[Any]:
    found = [path for path in DOCUMENTS if "```" in path.read_text()]
    return [pytest.param(path, marks=pytest.mark.full if path.name in OF_TEST_ALL else ()) for path in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pages are run, and Spark is started, so that a relative path means the same to both."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[Any]:
    """One session for all pages; warm, so that its many short queries start sooner."""
    from headrace.spark import warm_session_builder
    from tests.helpers.spark_tools import stop_session

    quiet = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "OFF"}
    with chdir(folder):
        session = warm_session_builder().master("local[2]").config(map=quiet).getOrCreate()
    yield session
    stop_session(session)


@pytest.fixture
def page(broker: BrokerCluster, spark: Any, folder: Path) -> Iterator[Page]:
    """A page with a session, as in PySpark's shell. Hidden blocks use `topic`, `closing`, and `register` for schemas."""

    def topic(name: str, *values: str, partitions: int = 1) -> None:
        create_topic(broker.bootstrap, name, partitions)
        data = [value.encode() if isinstance(value, str) else value for value in values]
        write_records(broker.bootstrap, name, [{"key": b"k", "value": value} for value in data])

    with ExitStack() as closing, FakeRegistry() as registry:
        names = {"spark": spark, "topic": topic, "closing": closing, "register": registry.register}
        yield Page(broker.bootstrap, folder, names, registry.url)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    topics = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}).list_topics(timeout=30).topics
    for name in topics.keys() - KEPT:
        if not name.startswith("__"):
            delete_topic(broker.bootstrap, name)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("path", with_blocks(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_blocks_of(path, page):
    page.run(path)
    assert page.ran or page.skipped
    if path == README:
        check_what_readme_has_written(page)


def check_what_readme_has_written(page):
    source = KafkaSource(page.bootstrap, topics=["copy"], stop=Latest())
    copied = [value for batch in source.batches() for value in batch.column("value").to_pylist()]
    assert sorted(copied) == [b"one", b"three", b"two"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_code_block_is_fenced_so_that_it_is_run(path):
    assert [token.content for token in tokens(path) if token.type == "code_block"] == []


# --- the checker --------------------------------------------------------------------------------------------------------
def run(tmp_path: Path, text: str) -> Page:
    path = tmp_path / "page.md"
    path.write_text(text)
    page = Page("127.0.0.1:1", tmp_path)
    page.run(path)
    return page


def test_a_block_that_works_and_one_that_is_excused(tmp_path):
    text = '```python\nx = 2\n```\n<!--- skip: next "takes an hour" -->\n```sql\nDROP\n```\n```python\nassert x == 2\n```\n'
    page = run(tmp_path, text)
    assert (page.ran, page.skipped) == ([1, 8], {5: "takes an hour"})


def test_hidden_code_is_run_and_output_compared(tmp_path):
    hidden = "<!--- invisible-code-block: python\nx = 5\n-->\n"
    text = hidden + '```python\nprint("127.0.0.1:1", x)\n```\n```text\n127.0.0.1:9092 5\n```\n'
    assert run(tmp_path, text).ran == [1, 4, 7]


@pytest.mark.parametrize(("text", "error", "message"), [
    ("```python\n1 / 0\n```\n", ZeroDivisionError, "division"),
    ("```python\nprint(1)\n```\n```text\n2\n```\n", BlockError, "this was printed"),
    ("```text\n2\n```\n", BlockError, "follows no block"), ("```\nmystery\n```\n", BlockError, "no language"),
    ("```sql\nDROP\n```\n", BlockError, "'sql' is not run"),
    ("- a list\n\n    ```sql\n    DROP\n    ```\n", BlockError, "'sql' is not run"),
    ("<!--- skip: next -->\n```sql\nDROP\n```\n", BlockError, "without a reason"),
    ("```console\n$ rm -r /\n```\n", BlockError, "is not run"),
    ("```console\nheadrace lag\n```\n", BlockError, "starts with a command"),
    ("```console\n$ headrace lag --group g\nall is well\n```\n", BlockError, "no cluster given"),
    ("```properties\nsasl.mechanim=PLAIN\n```\n", ValueError, "did you mean"), ("```yaml\na: [\n```\n", Exception, "expected"),
], ids=lambda value: value[:24] if isinstance(value, str) else "")  # fmt: skip
def test_the_checker_catches(tmp_path, text, error, message, monkeypatch):
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    with pytest.raises(error, match=message):
        run(tmp_path, text)
