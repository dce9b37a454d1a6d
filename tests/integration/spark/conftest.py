"""One Spark session for all tests of the Spark runner, with the JVM connector alongside ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.servers.kafka import BrokerCluster
    from tests.helpers.spark_tools import Query, Topics

ROOT = Path(__file__).parents[3]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/integration/spark/"):
            item.add_marker(pytest.mark.broker)
            item.add_marker(pytest.mark.spark)
            # PySpark's own: about the newest pandas, and sockets it leaves to the garbage collector
            for ignored in ("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"):
                item.add_marker(pytest.mark.filterwarnings(ignored))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session. Its workers start in the checkout, where an editable install's `pyspark_headrace` can be seen."""
    from tests.helpers.spark_tools import start_session, stop_session

    os.chdir(ROOT)
    session = start_session()
    yield session
    stop_session(session)


@pytest.fixture
def topics(broker: BrokerCluster, topic: Callable[[], str]) -> Topics:
    from tests.helpers.spark_tools import Topics

    return Topics(broker, iter(topic, None))


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[Query]:
    from tests.helpers.spark_tools import Query

    started = Query(spark, tmp_path / "checkpoint")
    yield started
    started.stop()


@pytest.fixture
def numbers(topics: Topics) -> str:
    return topics.numbered(2, 50)
