"""The regression suite's transactions: what other systems did, and what must come of it; on a real broker, or a fake one."""

import uuid
from dataclasses import replace

import pytest
from crc32c import crc32c

from headrace.connectors.base.commit import StaleEpochError
from headrace.connectors.base.sink import Attempt, Outcome
from headrace.connectors.kafka.client.errors import FencedByBrokerError
from headrace.connectors.kafka.client.fetch import fetch_once
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.write import committer as committer_module
from headrace.connectors.kafka.write.produce import BatchSender
from headrace.connectors.kafka.write.transactions import TransactionProtocol, TransactionResult, Transactions
from headrace.enumerator.errors import HeadraceError
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import ErrorCode, Refuse
from tests.helpers import sink_rig as rig
from tests.helpers.kafka_tools import created
from tests.helpers.record_batches import HEADER
from tests.helpers.sink_rig import committer, die_in_commit, eventually, kafka_sink, ongoing, prepared, read_all, rows

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]
JOB = "job"
TRANSACTIONAL = 0x10


@pytest.fixture
def out(bootstrap, topic):
    return created(bootstrap, topic, 2)


@pytest.fixture
def sink(bootstrap, out):
    mark = uuid.uuid4().hex[:8]
    return kafka_sink(bootstrap, out, f"commits-{mark}", transactional_id_prefix=f"regression-{mark}")


@pytest.fixture
def fake(request):
    """A fake cluster, with version 2 of the transaction protocol where no parameter says otherwise."""
    with FakeKafka() as kafka:
        kafka.set_transaction_version(getattr(request, "param", 2))
        kafka.create_topic("out")
        yield kafka


def visible(fake, isolation_level="read_committed"):
    return sorted(record.value.decode() for record in fake.records("out", isolation_level=isolation_level))


BOTH = pytest.mark.parametrize("fake", [1, 2], indirect=True, ids=["v1", "v2"])


def test_flink_40703_an_old_checkpoint_is_refused(sink, out, bootstrap):
    driver = committer(sink, JOB)
    for epoch in range(4):
        driver.commit(epoch, prepared(sink, JOB, epoch, [str(epoch)]))
    with pytest.raises(StaleEpochError):
        committer(sink, JOB).commit(1, prepared(sink, JOB, 1, ["1"]))
    eventually(lambda: read_all(bootstrap, out), ["0", "1", "2", "3"])
    assert ongoing(sink, JOB) == []


def restored_when_its_ids_were_used_again(fake):
    """Checkpoint 1 is committed, and its driver dies before it notes that; 2 and 3 are written, under ids used before."""
    sink = kafka_sink(fake.bootstrap, "out", "commits")
    committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
    (first,) = prepared(sink, JOB, 1, ["1"])
    die_in_commit(sink, JOB, (first,), "end", epoch=1)
    prepared(sink, JOB, 2, ["2"])
    (third,) = prepared(sink, JOB, 3, ["3"])
    assert third.transactional_id == first.transactional_id
    driver = committer(sink, JOB)
    driver.commit(1, ())
    assert ongoing(sink, JOB) == []
    for epoch in (2, 3):
        driver.commit(epoch, prepared(sink, JOB, epoch, [str(epoch)]))
    return visible(fake)


@BOTH
def test_flink_40703_ids_used_again_and_an_older_checkpoint_restored(fake):
    assert restored_when_its_ids_were_used_again(fake) == ["0", "1", "2", "3"]


@BOTH
def test_flink_40703_shows_when_a_fenced_id_is_taken_for_an_aborted_transaction(fake, monkeypatch):
    monkeypatch.setattr(committer_module, "outcome_of", lambda *_, **__: Outcome.ABORTED)
    assert restored_when_its_ids_were_used_again(fake) == ["0", "1", "1", "2", "3"]


def test_flink_8086_the_same_state_restored_twice(sink, out, bootstrap):
    die_in_commit(sink, JOB, prepared(sink, JOB, 0, ["a"], ["b"]))
    for _ in range(2):
        committer(sink, JOB).recover()
        committer(sink, JOB).commit(0, ())
    eventually(lambda: read_all(bootstrap, out), ["a", "b"])


@pytest.mark.parametrize("outcome", list(Outcome))
def test_flink_39072_an_expired_id_is_resolved_by_the_log(sink, out, outcome):
    (handle,) = prepared(sink, JOB, 0, ["a"])
    result = TransactionResult.COMMIT if outcome is Outcome.COMMITTED else TransactionResult.ABORT
    Transactions(sink.cluster()).end(handle.producer, handle.protocol, result)
    expired = replace(handle, producer=replace(handle.producer, transactional_id=f"{sink.transactional_id_prefix}.expired"))
    assert sink.committer(JOB).end(expired) is outcome


def test_flink_37622_closing_a_writer_does_not_abort_what_it_has_prepared(sink, out, bootstrap):
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(rows(["a"]))
        handle = transaction.prepare()
    transaction.abort()
    committer(sink, JOB).commit(0, (handle,))
    eventually(lambda: read_all(bootstrap, out), ["a"])


def test_flink_31363_a_task_without_rows_opens_nothing(sink, out, bootstrap):
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(rows([]))
        assert transaction.prepare() is None
    committer(sink, JOB).commit(0, ())
    assert read_all(bootstrap, out, "read_uncommitted") == []


def written_after_a_failed_commit(fake):
    """The second EndTxn is refused for good; the job continues in the same process. Gives the producers that wrote."""
    sink = kafka_sink(fake.bootstrap, "out", "commits")
    fake.fault("EndTxn", Refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), nth=2)
    handles = list(prepared(sink, JOB, 0, ["a"], ["b"]))
    with pytest.raises(HeadraceError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        committer(sink, JOB).commit(0, tuple(handles))
    again = committer(sink, JOB)
    again.commit(0, ())
    for epoch in (1, 2, 3):
        made = prepared(sink, JOB, epoch, [f"c{epoch}"], [f"d{epoch}"])
        again.commit(epoch, made)
        handles += made
    return [handle.producer for handle in handles]


@BOTH
def test_flink_25126_after_a_failed_commit_no_producer_is_used_again(fake):
    producers = written_after_a_failed_commit(fake)
    assert len(set(producers)) == len(producers) == 8
    assert visible(fake) == ["a", "b", "c1", "c2", "c3", "d1", "d2", "d3"]


@BOTH
def test_flink_25126_shows_when_a_producer_is_kept(fake, monkeypatch):
    honest, kept = Transactions.init, {}
    monkeypatch.setattr(Transactions, "init", lambda self, name, ms: kept.setdefault(name, honest(self, name, ms)))
    with pytest.raises(HeadraceError):
        written_after_a_failed_commit(fake)


def test_flink_29627_two_handles_of_one_task(sink, out, bootstrap):
    handles = prepared(sink, JOB, 0, ["a"], number=0) + prepared(sink, JOB, 0, ["b"], number=1)
    die_in_commit(sink, JOB, handles)
    committer(sink, JOB).recover()
    eventually(lambda: read_all(bootstrap, out), ["a", "b"])


def test_flink_23854_a_dead_runs_transactions_do_not_linger(sink, out, bootstrap):
    prepared(sink, JOB, 4, ["dead"], ["dead"], ["dead"])
    committer(sink, JOB).commit(7, prepared(sink, JOB, 7, ["alive"]))
    assert ongoing(sink, JOB) == []
    eventually(lambda: read_all(bootstrap, out), ["alive"])


def test_iceberg_kafka_connect_200_a_zombies_transaction_is_taken_over(sink, out, bootstrap):
    zombie = sink.begin(Attempt(JOB, 0, 0, 0))
    zombie.write(rows(["zombie"]))
    (handle,) = prepared(sink, JOB, 0, ["successor"])
    with pytest.raises(FencedByBrokerError):
        zombie.prepare()
    committer(sink, JOB).commit(0, (handle,))
    eventually(lambda: read_all(bootstrap, out), ["successor"])


def test_librdkafka_3575_a_fenced_writer_never_reports_success(sink, out, bootstrap):
    transaction = sink.begin(Attempt(JOB, 0, 0, 0))
    transaction.write(rows(["a"]))
    Transactions(sink.cluster()).init(sink.names(JOB).task(0, 0, 0), 10_000)
    with pytest.raises(FencedByBrokerError):
        transaction.prepare()
    transaction.abort()
    assert read_all(bootstrap, out) == []


def with_sequence(batch, sequence):
    """The same records under another base sequence, with a CRC that holds."""
    fields, body = list(HEADER.unpack_from(batch)), bytes(batch[HEADER.size :])
    fields[4], fields[11] = 0, sequence
    fields[4] = crc32c(HEADER.pack(*fields)[21:] + body)
    return HEADER.pack(*fields) + body


def written_while_the_topic_is_missing(fake):
    """Ten requests, a batch of a record in each; brokers do not know the topic when the fifth comes."""
    sink = kafka_sink(fake.bootstrap, "out", "commits")
    small = replace(sink, properties={**sink.properties, "max.request.size": "300"})
    fake.fault("Produce", Refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "out"), nth=5)
    with small.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        for number in range(10):
            transaction.write(rows([str(number) * 200]))
        handle = transaction.prepare()
    committer(small, JOB).commit(0, (handle,))
    return [value[0] for value in visible(fake)]


@BOTH
def test_librdkafka_1_9_a_topic_that_is_missing_for_a_moment_starts_no_sequence_again(fake):
    assert written_while_the_topic_is_missing(fake) == list("0123456789")


@BOTH
def test_librdkafka_1_9_shows_when_the_bug_is_injected(fake, monkeypatch):
    honest = BatchSender._start_over

    def sequences_from_0(self, error):
        honest(self, error)
        for lane in self._lanes.values():
            waiting = [replace(batch, data=with_sequence(batch.data, number)) for number, batch in enumerate(lane.waiting)]
            lane.waiting = type(lane.waiting)(waiting)

    monkeypatch.setattr(BatchSender, "_start_over", sequences_from_0)
    assert len(written_while_the_topic_is_missing(fake)) < 10


def test_librdkafka_3297_aborting_what_has_timed_out_is_no_error(bootstrap, out):
    prefix = f"regression-{uuid.uuid4().hex[:8]}"
    sink = kafka_sink(bootstrap, out, "commits", transactional_id_prefix=prefix, transaction_timeout_ms=3000)
    transaction = sink.begin(Attempt(JOB, 0, 0, 0))
    transaction.write(rows([str(number) * 1000 for number in range(6000)]))  # more than one request
    eventually(lambda: ongoing(sink, JOB), [])
    transaction.abort()


def test_materialize_6214_exactly_once_is_what_reaches_the_log(sink, out):
    (handle,) = prepared(sink, JOB, 0, ["a"])
    (written,) = handle.ranges
    answer = fetch_once(sink.cluster(), out, written.partition, written.first, Isolation.READ_UNCOMMITTED)
    assert int.from_bytes(answer.records[21:23], "big") & TRANSACTIONAL
    committer(sink, JOB).recover()


def test_a_late_speculative_attempt_does_not_touch_the_winner(sink, out, bootstrap):
    winner = prepared(sink, JOB, 0, ["winner"], number=0)
    prepared(sink, JOB, 0, ["late"], number=1)
    committer(sink, JOB).commit(0, winner)
    eventually(lambda: read_all(bootstrap, out), ["winner"])


def ended_after_the_cluster_moved_on(fake):
    """Written under version 1 of the protocol; ended, and asked again by a new driver, when the cluster is at version 2."""
    fake.set_transaction_version(1)
    sink = kafka_sink(fake.bootstrap, "out", "commits")
    handles = prepared(sink, JOB, 0, ["a"])
    assert handles[0].protocol is TransactionProtocol.V1
    die_in_commit(sink, JOB, handles)
    Transactions(sink.cluster()).end(handles[0].producer, TransactionProtocol.V1, TransactionResult.COMMIT)
    fake.set_transaction_version(2)
    committer(sink, JOB).commit(0, ())
    return visible(fake)


def test_a_handle_is_ended_in_its_own_version(fake):
    """Committed with the other version's EndTxn, a transaction would answer as an aborted one does, and be written again."""
    assert ended_after_the_cluster_moved_on(fake) == ["a"]


def test_what_is_ended_in_the_clusters_version_is_written_twice(fake, monkeypatch):
    honest = Transactions.end
    now = lambda self, producer, _, outcome: honest(self, producer, self.protocol(), outcome)  # noqa: E731
    monkeypatch.setattr(Transactions, "end", now)
    monkeypatch.setattr(committer_module, "outcome_of", lambda *_, **__: Outcome.ABORTED)
    assert ended_after_the_cluster_moved_on(fake) == ["a", "a"]


def test_a_batch_part_committed_part_aborted_is_repaired(sink, out, bootstrap):
    handles = prepared(sink, JOB, 0, ["a"], ["b"])
    die_in_commit(sink, JOB, handles, "end")
    rig.take_over(sink, handles[1])
    committer(sink, JOB).commit(0, ())
    eventually(lambda: read_all(bootstrap, out), ["a", "b"])


def test_an_abort_after_the_commit_does_not_make_it_look_lost(sink, out, bootstrap):
    """An EndTxn(abort) with the epoch after the commit's succeeds, and from then on the committed handle answers "fenced"."""
    handles = prepared(sink, JOB, 0, ["a"])
    die_in_commit(sink, JOB, handles)
    transactions = Transactions(sink.cluster())
    _, renewed = transactions.end(handles[0].producer, handles[0].protocol, TransactionResult.COMMIT)
    transactions.end(renewed, handles[0].protocol, TransactionResult.ABORT)
    assert sink.committer(JOB).end(handles[0]) is Outcome.COMMITTED
    committer(sink, JOB).commit(0, ())
    eventually(lambda: read_all(bootstrap, out, "read_uncommitted"), ["a"])
