"""`headrace transactions`: names, rows, and what is aborted, refused and completed, without a broker."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from headrace.cli.durable_lists import DurableLists, parse_lists
from headrace.cli.transactions import (
    AbortDecision,
    Completion,
    abort_one,
    description_rows,
    list_rows,
    parse_state,
    plan_abort,
    plan_commit,
    transaction_row,
)
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.jobs import one_off_job
from headrace.connectors.base.sink import CommitList, JobClaim
from headrace.connectors.kafka.write.handles import KafkaHandle, KafkaHandleSerializer, WrittenRange
from headrace.connectors.kafka.write.names import EACH_ROWS_TOPIC
from headrace.connectors.kafka.write.transactions import Answer, Producer, TransactionDescription, TransactionProtocol
from headrace.enumerator.errors import StateError, UsageError
from headrace.testing import FakeKafka
from tests.helpers.command_line import run_command
from tests.helpers.sink_rig import kafka_sink, ongoing, prepared

NOW = 1_700_000_100_000


def described(transactional_id, state="Ongoing", started_ms=NOW - 5000):
    return TransactionDescription(Producer(transactional_id, 7, 3), state, 900_000, started_ms, (("out", 1), ("out", 0)))


def handle(transactional_id):
    written = (WrittenRange("out", None, 0, 0, 1, 2),)
    return KafkaHandle(Producer(transactional_id, 7, 3), TransactionProtocol.V2, NOW, 900_000, written)


def lists(**jobs):
    """Of the prefix and one destination."""
    return DurableLists("headrace-commits", {key_of(job): found for job, found in jobs.items()})


def key_of(job, prefix="headrace"):
    return f"{prefix}.{job}.0a1b2c3d"


RECORDED = CommitList(4, (handle("headrace.q.0a1b2c3d.0.0.0"), handle("headrace.q.0a1b2c3d.0.1.0")), destination="out")


OF_ORDERS = CommitList(1, (), completed=True, destination="orders")
CLAIMED = CommitList(None, (), completed=True, destination="out", claim=JobClaim(3, "host-7"))


def test_states_are_kafkas_in_any_case():
    assert parse_state("ongoing") == "Ongoing"
    with pytest.raises(UsageError, match="CompleteCommit"):
        parse_state("open")


def test_rows_of_a_listing():
    row = transaction_row("headrace.q.0a1b2c3d.0.12.1", described("headrace.q.0a1b2c3d.0.12.1"), NOW)
    assert row == ("headrace.q.0a1b2c3d.0.12.1", "q", 0, 12, 1, "Ongoing", 7, 3, 5.0, 900.0)
    row = transaction_row("headrace.q.0a1b2c3d.driver", described("headrace.q.0a1b2c3d.driver", "Empty", None), NOW)
    assert row[1:6] == ("q", None, "driver", None, "Empty")
    assert transaction_row("other", None, NOW) == ("other", None, None, None, None, "unknown", None, None, None, None)


def test_rows_of_durable_lists():
    readable = {key_of("q"): RECORDED, key_of("q", "p"): OF_ORDERS, key_of("new"): CLAIMED}
    found = DurableLists("t", readable, {key_of("r"): "damaged", "x": "foreign"})
    assert list_rows(found) == [
        ("q", 4, "recorded", 2, "headrace", "out", None),
        ("q", 1, "completed", 0, "p", "orders", None),
        ("new", None, "completed", 0, "headrace", "out", "host-7"),
        ("r", None, "unreadable: damaged", None, "headrace", None, None),
        ("x", None, "unreadable: foreign", None, None, None, None),
    ]


def test_a_description_says_which_list_names_it():
    rows = dict(description_rows(described("headrace.q.0a1b2c3d.0.1.0"), lists(q=RECORDED), NOW))
    assert rows["list of committables"] == "named by job q, epoch 4"
    assert (rows["partitions"], rows["age s"], rows["started"]) == ("out-0, out-1", 5.0, "2023-11-14T22:14:55.000Z")
    assert dict(description_rows(described("x", "Empty", None), lists(q=RECORDED), NOW))["list of committables"] == "not named"


def test_damaged_lists_are_kept_apart():
    serializer = CommitListSerializer(KafkaHandleSerializer())
    found = parse_lists("t", {key_of("q"): serializer.serialize(RECORDED), key_of("bad"): b"{}"})
    assert found.lists == {key_of("q"): RECORDED}
    assert "cannot be read" in found.unreadable[key_of("bad")]
    assert found.holder("headrace.q.0a1b2c3d.0.1.0") == ("q", 4)
    assert found.holder("headrace.q.0a1b2c3d.0.2.0") is None


def decisions(found, known):
    return {item.transactional_id: item.decision for item in plan_abort(found, known)}


def test_what_is_open_is_aborted_and_nothing_else():
    wanted = {
        "Ongoing": AbortDecision.ABORT,
        **dict.fromkeys(("PrepareAbort", "CompleteAbort"), AbortDecision.ABORTED),
        **dict.fromkeys(("PrepareCommit", "CompleteCommit", "Empty", "gone"), AbortDecision.REFUSED),
    }
    found = {state: None if state == "gone" else described(state, state) for state in wanted}
    assert decisions(found, lists()) == wanted


def test_what_a_durable_list_names_is_refused_and_the_command_named():
    found = {name: described(name) for name in ("headrace.q.0a1b2c3d.0.1.0", "headrace.q.0a1b2c3d.1.0.0")}
    refused, free = plan_abort(found, lists(q=RECORDED))
    assert refused.decision is AbortDecision.REFUSED
    assert refused.reason.endswith("headrace transactions commit --job q")
    assert free.decision is AbortDecision.ABORT
    mine = "mine.q.0a1b2c3d.0.0.0"
    known = DurableLists("t", {key_of("q", "mine"): CommitList(1, (handle(mine),))})
    (other,) = plan_abort({mine: described(mine)}, known)
    assert other.reason.endswith("headrace transactions commit --job q --prefix mine --commit-topic t")
    assert set(decisions(found, lists(q=CommitList(4, RECORDED.handles, completed=True))).values()) == {AbortDecision.ABORT}


def test_a_list_that_cannot_be_read_may_name_anything_of_its_job():
    known = DurableLists("t", {}, {key_of("q"): "a newer headrace wrote this"})
    found = {name: described(name) for name in ("headrace.q.0a1b2c3d.0.1.0", "headrace.q1.0a1b2c3d.0.1.0")}
    assert decisions(found, known) == dict(zip(found, (AbortDecision.REFUSED, AbortDecision.ABORT), strict=True))


@pytest.mark.parametrize(
    ("answer", "decision"),
    [(Answer.DONE, AbortDecision.ABORTED), (Answer.REFUSED, AbortDecision.REFUSED), (Answer.UNKNOWN, AbortDecision.REFUSED)],
)
def test_what_happened_meanwhile_is_reported(answer, decision):
    coordinator = SimpleNamespace(protocol=lambda: TransactionProtocol.V2, abort=lambda producer, protocol, timeout_ms: answer)
    assert abort_one(coordinator, described("x")).decision is decision


DONE = CommitList(9, (), completed=True, destination="out")


def test_a_job_is_completed_and_a_one_off_write_forgotten():
    one, two = one_off_job(), one_off_job()
    of_one = CommitList(0, (handle(f"headrace.{one}.0a1b2c3d.0.0.0"),), destination="out")
    known = lists(**{"q": RECORDED, "done": DONE, one: of_one, two: DONE})
    assert plan_commit(known, ["q"], "headrace") == [Completion("q", 4, 2, forget=False, topic="out")]
    assert plan_commit(known, ["done"], "headrace") == []
    assert plan_commit(known, [two], "headrace") == [Completion(two, 9, 0, forget=True, topic="out")]
    everything = [Completion("q", 4, 2, forget=False, topic="out"), Completion(one, 0, 1, forget=True, topic="out")]
    assert plan_commit(known, None, "headrace") == everything


@pytest.mark.parametrize("job", ["batch-orders", "batch-1", f"batch-{'0' * 32}"])
def test_the_list_of_a_repeated_write_whose_name_starts_with_batch_is_kept(job):
    """findings: Sinks 6. Without it the write that is repeated would be written twice."""
    known = lists(**{job: CommitList(0, (handle(f"headrace.{job}.0a1b2c3d.0.0.0"),), destination="out")})
    assert plan_commit(known, [job], "headrace") == [Completion(job, 0, 1, forget=False, topic="out")]
    assert plan_commit(lists(**{job: DONE}), [job], "headrace") == []


def test_a_job_has_a_list_for_each_destination_and_all_of_the_prefix_are_completed():
    known = DurableLists(
        "headrace-commits",
        {
            "headrace.q.0a1b2c3d": replace(RECORDED, destination="orders"),
            "headrace.q.1a1b2c3d": replace(RECORDED, destination=EACH_ROWS_TOPIC, targets=("out",)),
            "green.q.0a1b2c3d": replace(RECORDED, destination="orders"),
            "headrace.q.2a1b2c3d": replace(DONE, destination="done"),
        },
    )
    assert [(item.job, item.topic) for item in plan_commit(known, ["q"], "headrace")] == [("q", "orders"), ("q", None)]
    assert [item.topic for item in plan_commit(known, None, "green")] == ["orders"]
    with pytest.raises(StateError, match="--prefix green or headrace"):
        plan_commit(known, ["q"], "mine")


def test_another_prefix_would_fence_no_process_and_is_refused():
    with pytest.raises(StateError, match="--prefix headrace"):
        plan_commit(lists(q=RECORDED), ["q"], "mine")
    assert plan_commit(lists(q=RECORDED), None, "mine") == []


def test_a_job_without_a_readable_list_is_an_error():
    with pytest.raises(StateError, match="jobs that have one: q"):
        plan_commit(lists(q=RECORDED), ["p"], "headrace")
    with pytest.raises(StateError, match="newer"):
        plan_commit(DurableLists("t", {}, {key_of("q"): "a newer headrace"}), ["q"], "headrace")


def test_a_job_without_open_transactions_is_named(monkeypatch, capsys):
    with FakeKafka() as kafka:
        ran = run_command(monkeypatch, capsys, "transactions", "abort", "--job", "misspelt", "--bootstrap", kafka.bootstrap)
    assert (ran.status, ran.err) == (0, "job misspelt has no open transactions of the prefix headrace\n")


def test_a_run_is_named_by_its_name_and_its_workers_transactions_are_aborted(monkeypatch, capsys):
    """Regression: workers write as jobs of their numbers, so a run had "no open transactions", with exit status 0."""
    run, longer = f"run-{'0' * 32}", f"run-{'0' * 33}"
    parts = [run, f"{run}-1", f"{run}-12", f"{run}-even", f"{run}-even-3"]
    foreign = [f"{longer}-1", f"{run}-1-x", "orders", "orders-2"]
    with FakeKafka() as kafka:
        kafka.create_topic("out")
        sink = kafka_sink(kafka.bootstrap, "out", "headrace-commits")
        for job in (*parts, *foreign):
            prepared(sink, job, 0, [job])
        where = ["--prefix", sink.transactional_id_prefix, "--yes", "--bootstrap", kafka.bootstrap]
        for job, aborted in [(f"{run}-1", ["-1"]), (f"{run}-even", ["-even", "-even-3"]), (run, ["", "-12"])]:
            ran = run_command(monkeypatch, capsys, "transactions", "abort", "--job", job, *where)
            assert ran.status == 0
            assert {row[0].split(".")[1] for row in ran.of("abort")} == {f"{run}{part}" for part in aborted}
        ran = run_command(monkeypatch, capsys, "transactions", "abort", "--job", "orders", *where)
        assert len(ran.of("abort")) == 1
        assert [len(ongoing(sink, job)) for job in foreign] == [1, 1, 0, 1]


def test_no_transaction_is_aborted_where_the_lists_that_may_name_it_are_not_found(monkeypatch, capsys):
    """It was taken for one on no list, whatever the right topic had."""
    options = ["--job", "q", "--commit-topic", "misspelt", "--yes"]
    with FakeKafka() as kafka:
        ran = run_command(monkeypatch, capsys, "transactions", "abort", *options, "--bootstrap", kafka.bootstrap)
    assert (ran.status, "no broker knows the topic 'misspelt'" in ran.err) == (1, True)


def test_the_lists_that_are_to_be_verified_are_there(monkeypatch, capsys):
    """None were looked at, and all was reported as well."""
    options = ["--input", "in", "--output", "in", "--commit-topic", "misspelt"]
    with FakeKafka() as kafka:
        kafka.create_topic("in")
        ran = run_command(monkeypatch, capsys, "verify", *options, "--bootstrap", kafka.bootstrap)
    assert (ran.status, "no broker knows the topic 'misspelt'" in ran.err) == (1, True)
