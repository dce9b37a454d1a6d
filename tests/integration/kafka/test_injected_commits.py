"""Bugs injected in a job on a real broker, and real kills: the soak's oracle sees each bug, and nothing where there is none."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headrace.testing.servers.kafka import start_broker
from tests.helpers.kafka_tools import set_config
from tests.helpers.sink_rig import set_transaction_version
from tests.soak.kill_soak import BAD, FROZEN, LISTED, TIMEOUT_MS, BareSoak, kill_at

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]
LASTING_MS = 120_000
TASKS = 2


@pytest.fixture(scope="module")
def bootstrap():
    with start_broker(config={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}) as cluster:
        yield cluster.bootstrap


def killed(soak, kill, tasks=TASKS):
    assert soak.run(kill, 1, tasks) == -signal.SIGKILL


def killed_with_tasks_prepared(soak):
    """All of them; the next run has fewer, and so takes over fewer names."""
    killed(soak, kill_at("KafkaTransaction", "prepare", "after", 2 * TASKS), 2 * TASKS)


def killed_with_one_committed(soak):
    killed(soak, kill_at("KafkaCommitter", "end", "after"))


def killed_with_the_list_durable(soak):
    killed(soak, LISTED)


def away_for_long(soak):
    killed(soak, LISTED)
    assert soak.ongoing()
    soak.wait_out()


def killed_in_a_repair(soak):
    away_for_long(soak)
    killed(soak, kill_at("KafkaCommitter", "end", "after", TASKS + 1))  # that of the copy


def frozen_while_another_takes_over(soak):
    zombie = soak.start(FROZEN, 1, TASKS)
    soak.wait_until_frozen(zombie)
    soak.run(None, 1, TASKS)
    soak.thaw(zombie)
    zombie.wait(soak.job_seconds)


def refused_by_the_broker(soak):
    """The topic takes nothing for a while: one that is compacted refuses records without a key."""
    set_config(soak.bootstrap, "topic", soak.settings["topic"], cleanup__policy="compact")
    soak.start(None, 1, TASKS).wait(soak.job_seconds)
    assert soak.settings["bug"] or "INVALID_RECORD" in soak.tail()
    set_config(soak.bootstrap, "topic", soak.settings["topic"], cleanup__policy=None)


# the bug, what happens to the job, and what the oracle counts then
PHASES = [
    ("fresh_transactional_ids", killed_with_tasks_prepared, "open"),
    ("fresh_transactional_ids", frozen_while_another_takes_over, "duplicates"),
    ("produce_errors_swallowed", refused_by_the_broker, "lost"),
    ("clean_up_skipped", killed_with_tasks_prepared, "open"),
    ("committed_before_the_list_is_durable", killed_with_one_committed, "duplicates"),
    ("completed_before_the_commits", killed_with_the_list_durable, "lost"),
    ("recovery_skipped", killed_with_the_list_durable, "lost"),
    ("aborted_after_the_list_was_durable", killed_with_one_committed, "lost"),
    ("expired_after_the_list_was_durable_ignored", away_for_long, "lost"),
    ("copy_not_recorded", killed_in_a_repair, "duplicates"),
]
OUTAGES = (away_for_long, killed_in_a_repair)


def _injected() -> Iterator[ParameterSet]:
    """Each way to see a bug once in every run of the tests; the others are long."""
    seen = set()
    for bug, provoke, seen_as in PHASES:
        marks = [pytest.mark.long] if seen_as in seen else []
        seen.add(seen_as)
        yield pytest.param(bug, provoke, seen_as, id=f"{bug}-{seen_as}", marks=marks)


@pytest.mark.parametrize(("bug", "provoke", "seen_as"), list(_injected()))
def test_a_injected_bug_is_seen_by_the_oracle(bootstrap, tmp_path, bug, provoke, seen_as):
    timeout_ms = TIMEOUT_MS if provoke in OUTAGES else LASTING_MS
    soak = BareSoak(bootstrap, tmp_path, random.Random(1), timeout_ms, bug)
    provoke(soak)
    outcome = soak.judge()
    assert outcome[seen_as] > 0, outcome


EVERY_PHASE = {
    "before prepare": kill_at("KafkaTransaction", "prepare", "before"),
    "after prepare": kill_at("KafkaTransaction", "prepare", "after"),
    "before the list is durable": kill_at("KafkaCommitter", "record", "before"),
    "list durable": LISTED,
    "between two commits": kill_at("KafkaCommitter", "end", "after"),
    "after the commits, before the job's log": kill_at("KafkaCommitter", "record", "after", 2),
    "in a later epoch": kill_at("KafkaCommitter", "end", "before", 2 * TASKS),
}


@pytest.fixture(params=[pytest.param("v1", marks=pytest.mark.long), "v2"])
def protocol(bootstrap, request):
    """Moves the cluster to that version of the transaction protocol, and back to version 2."""
    set_transaction_version(bootstrap, int(request.param[1]))
    yield request.param
    set_transaction_version(bootstrap, 2)


@pytest.mark.usefixtures("protocol")
def test_a_job_killed_in_every_phase_has_each_record_once(bootstrap, tmp_path):
    """Each kill is followed by a run with another number of tasks. Spark's part in it: `spark/test_sink.py`."""
    soak = BareSoak(bootstrap, tmp_path, random.Random(1), LASTING_MS)
    for phase, kill in EVERY_PHASE.items():
        before = soak.epochs()
        assert soak.run(kill, 2, TASKS) == -signal.SIGKILL, phase
        assert soak.run(None, 1, TASKS + 1) == 0, phase
        assert soak.epochs() > before, phase
    outcome = soak.judge()
    assert not any(outcome[bad] for bad in BAD), outcome
    assert outcome["uncommitted_records_in_the_log"] > 0  # kills have left some, and these are aborted


@pytest.mark.parametrize("is_outage", [False, True], ids=["kills", "outages"])
def test_a_job_without_a_bug_bears_all_of_it(bootstrap, tmp_path, is_outage):
    soak = BareSoak(bootstrap, tmp_path, random.Random(1), TIMEOUT_MS if is_outage else LASTING_MS)
    for provoke in dict.fromkeys(provoke for _, provoke, _ in PHASES if (provoke in OUTAGES) == is_outage):
        provoke(soak)
        soak.run(None, 1, TASKS)
    outcome = soak.judge()
    assert not any(outcome[bad] for bad in BAD), outcome
