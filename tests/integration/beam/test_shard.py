"""The writer of `delivery="exactly-once"` against a real broker, crash by crash, with a runner that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.runners.beam.shard import CLEAN_UP_S, SPARE_SLOTS
from headrace.testing.servers.kafka import BrokerCluster
from tests.helpers.beam_shards import Runner
from tests.helpers.kafka_tools import created
from tests.helpers.sink_rig import eventually, ongoing, read_all, rows, take_over

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


@pytest.fixture
def target(broker: BrokerCluster, topic: Callable[[], str]) -> str:
    return created(broker.bootstrap, topic)


@pytest.fixture
def runner(broker: BrokerCluster, target: str) -> Runner:
    return Runner(KafkaSink(broker.bootstrap, topic=target, transaction_timeout_ms=60_000))


@pytest.fixture
def seen(broker: BrokerCluster, target: str) -> Callable[[], list[str]]:
    return lambda: read_all(broker.bootstrap, target)


def test_rows_are_seen_once_two_checkpoints_cover_them(runner: Runner, seen: Callable[[], list[str]]) -> None:
    runner.call(["a", "b"])
    runner.checkpointed()
    runner.call()
    assert seen() == []
    runner.checkpointed()
    runner.call()
    eventually(seen, ["a", "b"])
    assert runner.state.entries == ()
    assert ongoing(runner.sink, runner.job) == []


def test_a_crash_before_the_checkpoint_leaves_nothing(runner: Runner, seen: Callable[[], list[str]]) -> None:
    runner.call(["a"])
    runner.checkpointed()
    runner.call(["b"])
    assert len(ongoing(runner.sink, runner.job)) == 2
    runner.restored()
    runner.call(["b"])
    runner.quiet()
    eventually(seen, ["a", "b"])
    assert ongoing(runner.sink, runner.job) == []


def test_a_crash_after_the_commit_commits_again(runner: Runner, seen: Callable[[], list[str]]) -> None:
    runner.call(["a"])
    runner.checkpointed()
    runner.call()
    runner.checkpointed()
    runner.call()
    eventually(seen, ["a"])
    assert runner.checkpoint.entries != ()
    runner.restored()
    runner.call(["b"])
    runner.quiet()
    eventually(seen, ["a", "b"])


def test_a_name_is_used_again_while_an_older_state_still_has_it(runner: Runner, seen: Callable[[], list[str]]) -> None:
    first = [f"a{number}" for number in range(SPARE_SLOTS + 1)]
    for value in first:
        runner.call([value])
    runner.checkpointed()
    runner.call()
    runner.checkpointed()
    older = runner.checkpoint
    runner.call(["b"])  # commits them, and takes the transactional id of the first
    names = [older.entries[0].handle.transactional_id, runner.state.entries[0].handle.transactional_id]
    runner.call(["c"])
    names.append(runner.state.entries[1].handle.transactional_id)
    assert len(set(names)) == 2
    runner.restored()
    for value in ("b", "c"):
        runner.call([value])
    runner.quiet()
    eventually(seen, [*first, "b", "c"])
    assert ongoing(runner.sink, runner.job) == []


def test_what_timed_out_after_its_checkpoint_is_copied(runner: Runner, seen: Callable[[], list[str]]) -> None:
    runner.call(["a"])
    runner.checkpointed()
    take_over(runner.sink, runner.state.entries[0].handle)
    runner.restored()
    runner.quiet()
    runner.quiet()
    eventually(seen, ["a"])
    assert ongoing(runner.sink, runner.job) == []


def test_what_a_zombie_worker_starts_late_is_aborted_by_the_next_cleans_up(runner, seen):
    runner.call(["a"])
    runner.checkpointed()
    runner.restored()
    runner.call()
    zombie = runner.sink.begin(Attempt(runner.job, 0, 0, 12345))
    zombie.write(rows(["late"]))
    assert zombie.prepare() is not None
    assert len(ongoing(runner.sink, runner.job)) == 2
    runner.now_s += CLEAN_UP_S
    runner.quiet()
    eventually(seen, ["a"])
    assert ongoing(runner.sink, runner.job) == []
