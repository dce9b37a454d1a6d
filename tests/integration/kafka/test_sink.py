"""The Kafka sink on real brokers, under both versions of the transaction protocol: commit, kill, recover, repair, fence."""

import json
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.connectors.base.commit import StaleEpochError
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.client.errors import BrokerError, InvalidForBrokerError
from headrace.connectors.kafka.client.fetch import fetch_there
from headrace.connectors.kafka.format.decode import HEADERS_TYPE
from headrace.connectors.kafka.log_dump import dump
from headrace.connectors.kafka.write import commit_log
from headrace.connectors.kafka.write.transactions import TransactionProtocol, TransactionResult, Transactions
from headrace.enumerator.errors import DataLossError, DeadlineExceededError, FencedError, StateError, UsageError
from headrace.testing import COMMITTER_STEPS
from headrace.testing.servers.kafka import create_topic, delete_topic, start_broker
from tests.helpers import sink_rig as rig
from tests.helpers.kafka_tools import created
from tests.helpers.python_path import python_path
from tests.helpers.sink_rig import committer, die_in_commit, eventually, kafka_sink, ongoing, prepared, read_all, rows

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]
JOB = "job"


@pytest.fixture(scope="module", params=["v1", "v2"])
def bootstrap(request):
    """A broker whose finalised transaction.version calls for that version of the protocol."""
    if os.environ.get("HEADRACE_BOOTSTRAP"):
        pytest.skip("it sets the cluster's transaction.version")
    with start_broker(config={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}) as cluster:
        rig.set_transaction_version(cluster.bootstrap, int(request.param[1]))
        yield cluster.bootstrap


ONCE = pytest.mark.parametrize("bootstrap", ["v2"], indirect=True)
"""For what has nothing to do with the version: names, columns, sizes, the commit topic, what is refused before it is sent."""


@pytest.fixture
def out(bootstrap, topic):
    return created(bootstrap, topic, 3)


@pytest.fixture
def sink(bootstrap, out):
    return kafka_sink(bootstrap, out, f"commits-{uuid.uuid4().hex[:8]}")


def test_the_protocol_is_the_clusters(sink, request):
    wanted = TransactionProtocol.V1 if "[v1" in request.node.name else TransactionProtocol.V2
    (handle,) = prepared(sink, JOB, 0, ["a"])
    assert handle.protocol is wanted


@ONCE
def test_properties_bound_the_batches_in_the_log(sink, out):
    given = {"batch.size": "2000", "compression.type": "gzip", "compression.gzip.level": "9"}
    small = replace(sink, properties={**sink.properties, **given})
    (handle,) = prepared(small, JOB, 0, [f"{number:0>500}" for number in range(60)])
    stored = [batch.stored for partition in range(3) for batch in dump(small.cluster(), out, partition)]
    written = [batch for batch in stored if batch.producer_id == handle.producer.producer_id and not batch.is_control]
    assert sum(batch.records for batch in written) == 60
    assert {batch.compression for batch in written} == {"gzip"}
    assert max(batch.records for batch in written) == 3  # of some 510 bytes each


@ONCE
def test_a_record_larger_than_max_request_size_is_refused_before_it_is_sent(sink, out):
    strict = replace(sink, properties={**sink.properties, "max.request.size": "1000"})
    with pytest.raises(UsageError, match=rf"a record for {out}-\d takes \d+ bytes, and max\.request\.size is 1000"):
        prepared(strict, JOB, 0, ["x" * 2000])
    assert ongoing(strict, JOB) == []


def test_nothing_is_seen_before_the_commit_and_everything_after(sink, out, bootstrap):
    handles = prepared(sink, JOB, 0, ["a", "b"], [], ["c"])
    assert len(handles) == 2
    assert read_all(bootstrap, out) == []
    assert read_all(bootstrap, out, "read_uncommitted") == ["a", "b", "c"]
    committer(sink, JOB).commit(0, handles)
    eventually(lambda: read_all(bootstrap, out), ["a", "b", "c"])
    assert ongoing(sink, JOB) == []
    assert sink.recorded_epochs() == {JOB: 0}


def test_epochs_follow_each_other(sink, out, bootstrap):
    driver = committer(sink, JOB)
    for epoch in range(5):
        driver.commit(epoch, prepared(sink, JOB, epoch, [f"{epoch}a"], [f"{epoch}b"]))
    driver.commit(5, ())
    eventually(lambda: read_all(bootstrap, out), sorted(f"{epoch}{task}" for epoch in range(5) for task in "ab"))
    assert sink.recorded_epochs() == {JOB: 5}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [step for step in COMMITTER_STEPS if step != "copy"])
def test_a_driver_killed_anywhere_in_a_commit(sink, out, bootstrap, step, when):
    committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["0"]))
    die_in_commit(sink, JOB, prepared(sink, JOB, 1, ["1a"], ["1b"]), step, when, epoch=1)
    # Spark replays the batch; its tasks write again unless it is recorded.
    again = () if sink.recorded_epochs()[JOB] == 1 else prepared(sink, JOB, 1, ["1a", "1b"], number=0)
    committer(sink, JOB).commit(1, again)
    eventually(lambda: read_all(bootstrap, out), ["0", "1a", "1b"])
    assert ongoing(sink, JOB) == []


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]], ids=["first", "second", "all"])
def test_transactions_aborted_after_they_were_recorded_are_copied(sink, out, bootstrap, lost):
    handles = prepared(sink, JOB, 0, ["a", "b"], ["c", "d"])
    die_in_commit(sink, JOB, handles)
    for index in lost:
        rig.take_over(sink, handles[index])
    committer(sink, JOB).commit(0, ())
    eventually(lambda: read_all(bootstrap, out), ["a", "b", "c", "d"])
    assert len(read_all(bootstrap, out, "read_uncommitted")) == 4 + 2 * len(lost)
    assert ongoing(sink, JOB) == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("step", "nth"), [("copy", 1), ("record", 1), ("end", 2), ("clean_up", 1), ("record", 2)])
def test_a_driver_killed_in_a_repair(sink, out, bootstrap, step, nth, when):
    handles = prepared(sink, JOB, 0, ["a", "b"])
    die_in_commit(sink, JOB, handles)
    rig.take_over(sink, handles[0])
    die_in_commit(sink, JOB, (), step, when, nth)
    committer(sink, JOB).recover()
    eventually(lambda: read_all(bootstrap, out), ["a", "b"])
    assert ongoing(sink, JOB) == []


def test_an_outage_longer_than_the_timeout_loses_nothing(bootstrap, out):
    sink = kafka_sink(bootstrap, out, f"commits-{uuid.uuid4().hex[:8]}", transaction_timeout_ms=8000)
    handles = prepared(sink, JOB, 0, ["a"], ["b"])
    die_in_commit(sink, JOB, handles, "end")  # the first is committed, the second is left to its timeout
    eventually(lambda: ongoing(sink, JOB), [])
    assert read_all(bootstrap, out) == ["a"]
    committer(sink, JOB).commit(0, ())
    eventually(lambda: read_all(bootstrap, out), ["a", "b"])


def test_what_times_out_before_it_is_recorded_fails_the_epoch(bootstrap, out):
    sink = kafka_sink(bootstrap, out, f"commits-{uuid.uuid4().hex[:8]}", transaction_timeout_ms=3000)
    handles = prepared(sink, JOB, 0, ["a"])
    eventually(lambda: ongoing(sink, JOB), [])
    with pytest.raises((DeadlineExceededError, StateError)):
        committer(sink, JOB).commit(0, handles)
    assert sink.recorded_epochs() == {}
    assert read_all(bootstrap, out) == []


def test_rows_that_retention_took_are_named(sink, out, bootstrap):
    handles = prepared(sink, JOB, 0, ["a"])
    die_in_commit(sink, JOB, handles)
    rig.take_over(sink, handles[0])
    delete_topic(bootstrap, out)
    create_topic(bootstrap, out, 3)
    with pytest.raises(DataLossError, match=out):
        committer(sink, JOB).commit(0, ())


def test_an_older_driver_is_fenced_and_takes_nothing_back(sink, out, bootstrap):
    old, new = committer(sink, JOB), committer(sink, JOB)
    old.commit(0, prepared(sink, JOB, 0, ["0"]))
    new.recover()
    handles = prepared(sink, JOB, 1, ["zombie"], number=7)
    with pytest.raises(FencedError, match="another driver"):
        old.commit(1, handles)
    new.commit(1, prepared(sink, JOB, 1, ["1"]))
    eventually(lambda: read_all(bootstrap, out), ["0", "1"])
    assert ongoing(sink, JOB) == []


@ONCE
def test_a_stale_epoch_is_refused_and_changes_nothing(sink, out, bootstrap):
    driver = committer(sink, JOB)
    for epoch in range(3):
        driver.commit(epoch, prepared(sink, JOB, epoch, [str(epoch)]))
    with pytest.raises(StaleEpochError, match="epoch 1"):
        committer(sink, JOB).commit(1, prepared(sink, JOB, 1, ["other rows"]))
    eventually(lambda: read_all(bootstrap, out), ["0", "1", "2"])


def test_a_cleans_up_spares_other_jobs(sink, out, bootstrap):
    other = prepared(sink, f"{JOB}1", 0, ["other"])
    committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["mine"]))
    committer(sink, f"{JOB}1").commit(0, other)
    eventually(lambda: read_all(bootstrap, out), ["mine", "other"])


def test_losing_attempts_are_aborted(sink, out, bootstrap):
    prepared(sink, JOB, 0, ["lost"], number=1)
    committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["won"], number=0))
    eventually(lambda: read_all(bootstrap, out), ["won"])
    assert ongoing(sink, JOB) == []


def test_a_task_killed_and_repeated_under_the_same_name(sink, out, bootstrap):
    prepared(sink, JOB, 0, ["orphan"])
    committer(sink, JOB).commit(0, prepared(sink, JOB, 0, ["again"]))
    eventually(lambda: read_all(bootstrap, out), ["again"])


WRITER = """
import os, sys
from tests.helpers.sink_rig import kafka_sink, prepared
bootstrap, topic, commits, handle = sys.argv[1:]
sink = kafka_sink(bootstrap, topic, commits)
(made,) = prepared(sink, "job", 0, ["a", "b"])
import json
with open(handle + ".part", "w") as file:
    json.dump(sink.handles.serialize(made), file)
os.rename(handle + ".part", handle)
import threading
threading.Event().wait()
"""


def test_a_prepared_transaction_survives_the_kill_of_its_writer(sink, out, bootstrap, tmp_path):
    file = tmp_path / "handle"
    environment = {**os.environ, "PYTHONPATH": python_path()}
    arguments = [sys.executable, "-c", WRITER, bootstrap, out, sink.commit_topic, str(file)]
    with subprocess.Popen(arguments, env=environment) as process:
        eventually(file.exists, True)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    handle = sink.handles.deserialize(sink.handles.version, json.loads(file.read_text()))
    committer(sink, JOB).commit(0, (handle,))
    eventually(lambda: read_all(bootstrap, out), ["a", "b"])


@ONCE
def test_topics_partitions_keys_and_headers_are_the_rows_own(sink, bootstrap, topic):
    first, second = topic(), topic()
    for name in (first, second):
        create_topic(bootstrap, name, 2)
    own = kafka_sink(bootstrap, None, sink.commit_topic)
    transaction = own.begin(Attempt(JOB, 0, 0, 0))
    headers = pa.array([[{"key": "h", "value": b"1"}], None, []], HEADERS_TYPE)
    transaction.write(
        rows(
            ["a", "b", "c"], topic=pa.array([first, second, first]), key=pa.array([b"k", None, b"k"]),
            partition=pa.array([1, 0, None], pa.int32()), headers=headers,
        )
    )  # fmt: skip
    committer(own, JOB).commit(0, (transaction.prepare(),))
    eventually(lambda: read_all(bootstrap, first), ["a", "c"])
    eventually(lambda: read_all(bootstrap, second), ["b"])


@ONCE
def test_bad_rows_abort_and_are_named(sink, out, bootstrap):
    with pytest.raises(UsageError, match="partition"), sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(rows(["a"], partition=pa.array([9], pa.int32())))
    assert ongoing(sink, JOB) == []
    with pytest.raises(UsageError, match="no topic"):
        kafka_sink(bootstrap, None, "commits").begin(Attempt(JOB, 0, 0, 0)).write(rows(["a"]))


@ONCE
def test_a_timeout_that_brokers_do_not_allow_is_refused_at_once(bootstrap, out):
    sink = kafka_sink(bootstrap, out, "commits", transaction_timeout_ms=24 * 3600 * 1000)
    with pytest.raises(InvalidForBrokerError, match=r"transaction\.max\.timeout\.ms"):
        sink.begin(Attempt(JOB, 0, 0, 0)).write(rows(["a"]))


@ONCE
def test_a_record_too_large_for_the_broker_is_an_error_and_not_a_loss(sink, out, bootstrap):
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(rows(["small", "x" * 2_000_000]))
        with pytest.raises(BrokerError, match="TOO_LARGE"):
            transaction.prepare()
    assert ongoing(sink, JOB) == []


def test_a_delayed_end_of_an_older_transaction_does_not_touch_the_next(sink, out, bootstrap):
    """KAFKA-17754, Jepsen's Bufstream report: the network held an EndTxn back until the next transaction was open."""
    (first,) = prepared(sink, JOB, 0, ["0"])
    committer(sink, JOB).commit(0, (first,))
    (later,) = prepared(sink, JOB, 2, ["2"])
    assert later.transactional_id == first.transactional_id
    for outcome in TransactionResult:
        Transactions(sink.cluster()).end(first.producer, first.protocol, outcome)
    assert later.transactional_id in ongoing(sink, JOB)
    committer(sink, JOB).commit(2, (later,))
    eventually(lambda: read_all(bootstrap, out), ["0", "2"])


@ONCE
def test_the_commit_topic_is_read_on_from_where_it_was_read_to(sink, out, bootstrap, monkeypatch):
    read_from = []

    def noted(cluster, topic, partition, offset, isolation, **asked):
        read_from.append(offset)
        return fetch_there(cluster, topic, partition, offset, isolation, **asked)

    monkeypatch.setattr(commit_log, "fetch_there", noted)
    driver = committer(sink, JOB)
    for epoch in range(3):
        driver.commit(epoch, prepared(sink, JOB, epoch, [str(epoch)]))
        assert sink.recorded_epochs() == {JOB: epoch}
    assert read_from == sorted(set(read_from))
    delete_topic(bootstrap, sink.commit_topic)
    with pytest.raises(StateError, match="the lists of all jobs are lost"):
        sink.recorded_epochs()
