"""Settings and fixtures shared by every test: real Kafka brokers, HEADRACE_BOOTSTRAP's if set, else started once a session."""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from headrace.testing.servers.flink import FlinkCluster
    from headrace.testing.servers.kafka import BrokerCluster

pytest_plugins = ["headrace.pytest_plugin"]

# Examples are new in each run; what fails is printed as a blob, and is replayed with @reproduce_failure.
# By itself Hypothesis repeats the same ones where it finds that it runs in CI.
_SLOW = [HealthCheck.too_slow]
settings.register_profile("default", deadline=None, derandomize=False, print_blob=True, suppress_health_check=_SLOW)
# The same few examples for each mutant: it is killed in every run or in none, and soon.
settings.register_profile("mutants", parent=settings.get_profile("default"), derandomize=True, max_examples=20, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

LAST_ANSWER_S = 30.0
END_S = 30.0

CONFIG = {
    # Tests of expired transactions would otherwise wait up to 10 s for the broker to look.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Tests write records that are years old: at its next look, after five minutes, a broker deletes those by default.
    "log.retention.ms": "-1",
}


# For every Java that a test starts, unless the user has set other options: no test lasts until the better compiler, or a
# collector in threads of its own, have paid for themselves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


SHARED = {
    "a Flink cluster": re.compile(r"tests/integration/beam/test_flink_\w+\.py"),
    "three brokers": re.compile(r"tests/integration/kafka/test_(cluster|fetcher|source_faults|fake_kafka_against_kafka)\.py"),
}
"""Servers that start and idle at the cost of a test each, by the files that use them: one process of the tests has them."""


class _SharedServers(LoadScopeScheduling):
    """As `--dist loadfile`, but files that share servers are run by one process."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((servers for servers, files in SHARED.items() if files.fullmatch(path)), path)


@pytest.hookimpl(optionalhook=True)  # without xdist there is none
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """In place of xdist's own for `--dist loadfile`."""
    return _SharedServers(config, log) if config.getoption("dist") == "loadfile" else None


def _config() -> dict[str, str]:
    return {} if os.environ.get("HEADRACE_BOOTSTRAP") else CONFIG


def _fetching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("headrace-fetch")}


def pytest_collection_finish() -> None:
    """Ten thousand tests and all that they import stay until the end: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """The process that those of warm sessions are forked from serves all of them; it ends with the last, and before ours does.

    Regression: at the end of all tests Python reported a child that is still running, and of the pipe to it.
    """
    session = sys.modules.get("headrace.runners.spark.session")
    if session is not None:
        session.end_processes(END_S)


@pytest.fixture(autouse=True)
def _no_fetcher_left_open() -> Iterator[None]:
    """Fails the test that leaves threads fetching, here and not in some later test that counts them.

    One that looks something up when its fetcher closes ends with the answer, and is waited for: one still open does not end.
    """
    before = _fetching()
    yield
    for thread in _fetching() - before:
        thread.join(LAST_ANSWER_S)
    assert _fetching() <= before


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerCluster]:
    """One broker shared by the session; a test that kills it must restart it."""
    from headrace.testing.servers.kafka import start_broker

    with start_broker(config=_config()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster3() -> Iterator[BrokerCluster]:
    """Three brokers shared by the session; a test that kills some must restart them."""
    from headrace.testing.servers.kafka import start_broker

    with start_broker(3, config=_config()) as cluster:
        yield cluster


@pytest.fixture
def three(cluster3: BrokerCluster) -> Iterator[BrokerCluster]:
    """The same for a test that kills some: they are restarted."""
    if "HEADRACE_BOOTSTRAP" in os.environ:
        pytest.skip("the brokers of an external cluster are not ours to kill")
    yield cluster3
    for node in cluster3.nodes:
        if not cluster3.is_running(node):
            cluster3.restart(node)
    cluster3.wait_ready()


@pytest.fixture(scope="session")
def flink() -> Iterator[FlinkCluster]:
    """A Flink cluster with one TaskManager, shared by the session; a test that kills it must start it again."""
    from tests.helpers.flink_rig import flink_cluster

    with flink_cluster() as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> Callable[[], str]:
    """A function giving topic names that no other test has, also on a shared external cluster."""
    test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:100]
    run, numbers = uuid.uuid4().hex[:8], itertools.count()
    return lambda: f"{test}-{run}-{next(numbers)}"


@pytest.fixture
def bootstrap(broker: BrokerCluster) -> str:
    return broker.bootstrap


@pytest.fixture
def ten(bootstrap: str, topic: Callable[[], str]) -> str:
    """A topic with the ten records TEN in its one partition."""
    from tests.helpers.kafka_rig import TEN, write
    from tests.helpers.kafka_tools import created

    name = created(bootstrap, topic)
    write(bootstrap, name, TEN)
    return name
