"""The command line on a real broker."""

import os
import signal
import subprocess
import sys
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from headrace.connectors.base.jobs import one_off_job
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write.transactions import TransactionResult, Transactions
from headrace.testing.servers.kafka import create_topic, start_broker
from tests.helpers import sink_rig as rig
from tests.helpers.command_line import run_command
from tests.helpers.kafka_rig import commit, transactional, wait_for_end, write, write_records
from tests.helpers.kafka_tools import created
from tests.helpers.sink_rig import committer, die_in_commit, eventually, kafka_sink, prepared, read_all, rows

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]
ONE_OFF = one_off_job()
MAIN = "from headrace.cli import main; main()"


@pytest.fixture
def run(broker, monkeypatch, capsys):
    def run_with(*arguments, bootstrap=broker.bootstrap, typed=""):
        return run_command(monkeypatch, capsys, *arguments, "--bootstrap", bootstrap, typed=typed)

    return run_with


@pytest.fixture
def out(broker, topic):
    return created(broker.bootstrap, topic, 2)


@pytest.fixture
def sink(broker, out):
    """With a prefix and its own commit topic, as the broker is shared."""
    mark = uuid.uuid4().hex[:8]
    create_topic(broker.bootstrap, f"commits-{mark}", configs={"cleanup.policy": "compact"})
    return kafka_sink(broker.bootstrap, out, f"commits-{mark}", transactional_id_prefix=f"p{mark}")


@pytest.fixture
def where(sink):
    return ("--prefix", sink.transactional_id_prefix, "--commit-topic", sink.commit_topic)


def state_of(sink, name):
    found = Transactions(sink.cluster()).describe([name])[name]
    return None if found is None else found.state


# --- transactions --------------------------------------------------------------------------------------------------------
def test_transactions_are_listed_whatever_became_of_them(run, sink, where):
    committer(sink, "done").commit(0, prepared(sink, "done", 0, ["a"]))
    transaction = sink.begin(Attempt("gone", 3, 5, 1))
    transaction.write(pa.RecordBatch.from_pydict({"value": pa.array([b"b"])}))
    transaction.abort()
    (still,) = prepared(sink, "open", 2, ["c"])
    ids = {sink.names("done").task(0, 0, 0): "CompleteCommit", sink.names("gone").task(1, 5, 0): "CompleteAbort"}
    for name, state in ids.items():
        eventually(lambda name=name: state_of(sink, name), state)

    listed = run("transactions", "list", *where)
    assert listed.status == 0
    rows = {row[0]: row[1:] for row in listed.of("transaction")}
    assert rows.keys() == {*ids, still.transactional_id, sink.names("done").driver}
    assert rows[sink.names("gone").task(1, 5, 0)][:5] == ["gone", "1", "5", "0", "CompleteAbort"]
    assert rows[sink.names("done").driver][:4] == ["done", "-", "driver", "-"]
    job, slot, task, attempt, state, producer_id, epoch, age, timeout = rows[still.transactional_id]
    assert (job, slot, task, attempt, state, timeout) == ("open", "0", "0", "0", "Ongoing", "900.0")
    assert (int(producer_id), int(epoch)) == (still.producer.producer_id, still.producer.epoch)
    assert 0 <= float(age) < 60
    assert listed.of("list") == [["done", "0", "completed", "0", sink.transactional_id_prefix, sink.destination, "-"]]

    only = run("transactions", "list", *where, "--state", "ongoing")
    assert [row[0] for row in only.of("transaction")] == [still.transactional_id]
    everything = run("transactions", "list", "--prefix", "", "--commit-topic", sink.commit_topic)
    assert rows.keys() <= {row[0] for row in everything.of("transaction")}


def test_a_transaction_is_described(run, sink, where, out):
    (handle,) = prepared(sink, "job", 1, ["a"])
    fields = dict(run("transactions", "describe", handle.transactional_id, *where[2:]).of("field"))
    assert (fields["job"], fields["role"], fields["epoch slot"], fields["state"]) == ("job", "task", "1", "Ongoing")
    assert fields["partitions"] == f"{out}-{handle.ranges[0].partition}"
    assert fields["list of committables"] == "not named"
    die_in_commit(sink, "job", (handle,))
    fields = dict(run("transactions", "describe", handle.transactional_id, *where[2:]).of("field"))
    assert fields["list of committables"] == "named by job job, epoch 0"
    unknown = run("transactions", "describe", "unknown", *where[2:])
    assert (unknown.status, unknown.out) == (1, "")
    assert "unknown" in unknown.err


def test_what_is_open_is_aborted_once_confirmed(run, sink, where, out, broker):
    (handle,) = prepared(sink, "job", 0, ["a"])
    name = handle.transactional_id
    declined = run("transactions", "abort", name, *where, typed="n\n")
    assert (declined.status, declined.out, state_of(sink, name)) == (1, "", "Ongoing")
    assert name in declined.err
    confirmed = run("transactions", "abort", name, *where, typed="y\n")
    assert (confirmed.status, confirmed.of("abort")) == (0, [[name, "aborted", "-"]])
    eventually(lambda: state_of(sink, name), "CompleteAbort")
    again = run("transactions", "abort", name, *where, "--yes")
    assert (again.status, again.of("abort")) == (0, [[name, "aborted", "it is CompleteAbort already"]])
    assert read_all(broker.bootstrap, out) == []
    unknown = run("transactions", "abort", "nobody", *where, "--yes")
    assert (unknown.status, unknown.of("abort")[0][:2]) == (1, ["nobody", "refused"])


def test_all_of_a_job_is_aborted_and_nothing_of_another(run, sink, where):
    mine = prepared(sink, "job", 0, ["a"], ["b"])
    (other,) = prepared(sink, "job1", 0, ["c"])
    aborted = run("transactions", "abort", "--job", "job", *where, "--yes")
    assert aborted.status == 0
    assert [row[0] for row in aborted.of("abort")] == [handle.transactional_id for handle in mine]
    assert state_of(sink, other.transactional_id) == "Ongoing"
    committer(sink, "job1").commit(0, (other,))


def test_a_transaction_of_another_client_is_aborted(run, broker, out):
    name = f"other-{uuid.uuid4().hex[:8]}"
    writer = transactional(broker.bootstrap, name)
    writer.producer.begin_transaction()
    writer.write(out, [{"value": b"a"}])
    assert run("transactions", "abort", name, "--yes").of("abort") == [[name, "aborted", "-"]]
    with pytest.raises(KafkaException):
        writer.end(commit=True)
    wait_for_end(broker.bootstrap, out, 2)
    assert read_all(broker.bootstrap, out) == []


def test_what_a_durable_list_names_is_not_aborted_but_completed(run, sink, where, out, broker):
    handles = prepared(sink, "job", 0, ["a"], ["b"])
    place = (sink.transactional_id_prefix, sink.destination, "-")
    die_in_commit(sink, "job", handles)
    for arguments in ([handles[0].transactional_id], ["--job", "job"]):
        refused = run("transactions", "abort", *arguments, *where, "--yes")
        assert refused.status == 1
        assert {row[1] for row in refused.of("abort")} == {"refused"}
        given = f"--prefix {sink.transactional_id_prefix} --commit-topic {sink.commit_topic}"
        assert f"headrace transactions commit --job job {given}" in refused.out
    assert {state_of(sink, handle.transactional_id) for handle in handles} == {"Ongoing"}
    assert run("transactions", "list", *where).of("list") == [["job", "0", "recorded", "2", *place]]

    completed = run("transactions", "commit", "--job", "job", *where)
    assert (completed.status, completed.of("committed")) == (0, [["job", "0", "2", "kept"]])
    assert "fenced" in completed.err
    eventually(lambda: read_all(broker.bootstrap, out), ["a", "b"])
    assert run("transactions", "list", *where).of("list") == [["job", "0", "completed", "0", *place]]
    nothing = run("transactions", "commit", "--job", "job", *where)
    assert (nothing.status, nothing.out) == (0, "")


@pytest.mark.parametrize(("step", "nth"), [("record", 1), ("end", 1), ("clean_up", 2)])
def test_a_batch_write_whose_driver_died_in_its_commit_is_finished_and_forgotten(run, sink, where, out, broker, step, nth):
    die_in_commit(sink, ONE_OFF, prepared(sink, ONE_OFF, 0, ["a"], ["b"]), step, nth=nth)
    loser = sink.begin(Attempt(ONE_OFF, 0, 0, 1))  # one that continues would find that the write is decided, and abort itself
    loser.write(rows(["lost"]))
    loser._rows.flush(loser._sender)
    transactional_id = loser._producer.transactional_id
    completed = run("transactions", "commit", "--all", *where)
    assert (completed.status, completed.of("committed")) == (0, [[ONE_OFF, "0", "2", "deleted"]])
    eventually(lambda: read_all(broker.bootstrap, out), ["a", "b"])
    assert sink.recorded_epochs() == {}
    eventually(lambda: state_of(sink, transactional_id), "CompleteAbort")
    loser.abort()


def test_what_timed_out_after_it_was_recorded_is_copied(run, sink, where, out, broker):
    handles = prepared(sink, ONE_OFF, 0, ["a", "b"])
    die_in_commit(sink, ONE_OFF, handles)
    Transactions(sink.cluster()).init(handles[0].transactional_id, 10_000)  # as its timeout would: aborted and fenced
    assert run("transactions", "commit", "--job", ONE_OFF, *where).status == 0
    eventually(lambda: read_all(broker.bootstrap, out), ["a", "b"])


def test_a_commit_that_cannot_be_is_an_error(run, sink, where):
    die_in_commit(sink, "job", prepared(sink, "job", 0, ["a"]))
    for arguments, message in (
        (["--job", "nobody", *where], "jobs that have one: job"),
        (["--job", "job", "--commit-topic", sink.commit_topic], f"--prefix {sink.transactional_id_prefix}"),
    ):
        ran = run("transactions", "commit", *arguments)
        assert (ran.status, ran.out) == (1, "")
        assert message in ran.err
    other = run("transactions", "commit", "--all", "--commit-topic", sink.commit_topic)
    assert (other.status, other.out) == (0, "")
    assert f"job job needs --prefix {sink.transactional_id_prefix}" in other.err
    assert run("transactions", "commit", "--all", *where).status == 0


def test_the_older_transaction_protocol(run, topic):
    if os.environ.get("HEADRACE_BOOTSTRAP"):
        pytest.skip("it sets the cluster's transaction.version")
    with start_broker() as old:
        rig.set_transaction_version(old.address(1), 1)
        create_topic(old.bootstrap, name := topic(), 2)
        sink = kafka_sink(old.bootstrap, name, "headrace-commits")
        die_in_commit(sink, "job", prepared(sink, "job", 0, ["a"], ["b"]), "end")
        (loser,) = prepared(sink, "other", 0, ["c"])
        aborted = run("transactions", "abort", "--job", "other", "--yes", bootstrap=old.bootstrap)
        assert aborted.of("abort") == [[loser.transactional_id, "aborted", "-"]]
        completed = run("transactions", "commit", "--all", bootstrap=old.bootstrap)
        assert completed.of("committed") == [["job", "0", "2", "kept"]]
        eventually(lambda: read_all(old.bootstrap, name), ["a", "b"])

        def kinds():
            return sorted(row[7] for row in run("dump", name, bootstrap=old.bootstrap).of("batch"))

        eventually(kinds, ["ABORT", "COMMIT", "COMMIT", "aborted", "committed", "committed"])


# --- verify --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def source(broker, topic):
    return created(broker.bootstrap, topic, 2)


def test_a_clean_copy_passes(run, broker, source, out, sink):
    write(broker.bootstrap, source, [b"%d" % number for number in range(2000)])
    write(broker.bootstrap, source, [b"%d" % number for number in range(2000, 3000)], partition=1)
    committer(sink, "job").commit(0, prepared(sink, "job", 0, map(str, range(1500)), map(str, range(1500, 3000))))
    sink.begin(Attempt("job", 1, 0, 0)).abort()
    transaction = sink.begin(Attempt("job", 1, 0, 1))
    transaction.write(pa.RecordBatch.from_pydict({"value": pa.array([b"1"])}))
    transaction.abort()  # what is aborted is not a duplicate
    eventually(lambda: len(read_all(broker.bootstrap, out)), 3000)  # a commit is answered before its markers are written
    ran = run("verify", "--input", source, "--output", out, "--commit-topic", sink.commit_topic)
    assert ran.out == "3000 records in, 3000 out, 0 duplicates, 0 lost, 0 foreign\n"
    assert ran.status == 0


def test_injected_faults_are_found_and_named(run, broker, source, out):
    write(broker.bootstrap, source, [b"a", b"b", b"c"])
    write(broker.bootstrap, source, [b"d"], partition=1)
    write(broker.bootstrap, out, [b"a", b"b", b"b", b"x"])
    write(broker.bootstrap, out, [b"a"], partition=1)
    ran = run("verify", "--input", source, "--output", out)
    assert ran.status == 1
    assert ran.out.splitlines()[-1] == "4 records in, 5 out, 2 duplicates, 2 lost, 1 foreign"
    assert ran.of("foreign") == [[out, "0", "3", "x"]]
    assert sorted(ran.of("lost")) == [[source, "0", "2", "c"], [source, "1", "0", "d"]]
    assert {row[3] for row in ran.of("duplicate")} == {"a", "b"}
    assert run("verify", "--input", source, "--output", out, "--examples", "0").lines == [ran.lines[-1]]


def test_records_are_reported_apart_by_key_or_by_headers(run, broker, source, out):
    before = [{"key": b"k%d" % n, "value": b"before", "headers": [("id", b"%d" % n)]} for n in range(3)]
    after = [{"key": b"k%d" % n, "value": b"after", "headers": [("id", b"%d" % n)]} for n in (2, 0, 1)]
    write_records(broker.bootstrap, source, before)
    write_records(broker.bootstrap, out, after)
    names = ("verify", "--input", source, "--output", out)
    assert run(*names, "--identity", "key").status == 0
    assert run(*names, "--by", "key").status == 0
    assert run(*names, "--id-header", "id").status == 0
    assert run(*names).out.endswith("3 records in, 3 out, 0 duplicates, 3 lost, 3 foreign\n")


@pytest.mark.parametrize(("options", "missing"), [
    (("--id-header", "orderid"), "6 records of both have no header orderid"),
    (("--by", "key"), "6 records of both have no key"),
    (("--origin-headers", "topic,partition,offset"), "3 output records have no origin headers"),
])  # fmt: skip
def test_what_could_not_be_compared_is_no_success(run, broker, source, out, options, missing):
    for topic in (source, out):
        write_records(broker.bootstrap, topic, [{"value": b"%d" % n, "headers": [("order_id", b"%d" % n)]} for n in range(3)])
    ran = run("verify", "--input", source, "--output", out, *options)
    assert (ran.status, ran.out) == (1, "3 records in, 3 out, 0 duplicates, 0 lost, 0 foreign\n")
    assert missing in ran.err


def test_disorder_is_found_where_the_output_says_where_it_came_from(run, broker, source, out):
    write(broker.bootstrap, source, [b"0", b"1", b"2"])
    headers = [[("t", source.encode()), ("p", b"0"), ("o", b"%d" % offset)] for offset in range(3)]
    write_records(broker.bootstrap, out, [{"value": b"%d" % n, "headers": headers[n]} for n in (0, 2, 1)])
    names = ("verify", "--input", source, "--output", out)
    assert run(*names).status == 0
    ran = run(*names, "--origin-headers", "t,p,o")
    assert (ran.status, ran.of("disorder")) == (1, [[out, "0", "2", "1"]])


def test_a_partially_committed_epoch_is_reported_from_one_that_is_under_way(run, broker, source, out, sink, where):
    write(broker.bootstrap, source, [b"a", b"b"])
    handles = prepared(sink, "job", 0, ["a"], ["b"])
    die_in_commit(sink, "job", handles, "end")
    names = ("verify", "--input", source, "--output", out, "--commit-topic", sink.commit_topic)

    def epochs():
        return run(*names).of("epoch")

    eventually(epochs, [["job", "0", "1", "0", "1", "0", "not partially committed"]])
    Transactions(sink.cluster()).end(handles[1].producer, handles[1].protocol, TransactionResult.ABORT)
    eventually(epochs, [["job", "0", "1", "1", "0", "0", "partially committed"]])
    assert run(*names).status == 1
    run("transactions", "commit", "--job", "job", *where)
    eventually(lambda: read_all(broker.bootstrap, out), ["a", "b"])
    assert run(*names).out == "2 records in, 2 out, 0 duplicates, 0 lost, 0 foreign\n"


def test_what_an_open_transaction_hides_is_said(run, broker, source, out, sink):
    write(broker.bootstrap, source, [b"a"])
    (handle,) = prepared(sink, "job", 0, ["a"])
    ran = run("verify", "--input", source, "--output", out)
    assert ran.out.endswith("1 records in, 0 out, 0 duplicates, 1 lost, 0 foreign\n")
    assert f"{out}-{handle.ranges[0].partition}: an open transaction hides 1 offsets from offset 0 on" in ran.err
    committer(sink, "job").commit(0, (handle,))


# --- dump and lag --------------------------------------------------------------------------------------------------------
def test_a_dump_shows_what_readers_do_not_see(run, broker, out):
    write(broker.bootstrap, out, [b"plain"], **{"compression.type": "gzip"})
    writer = transactional(broker.bootstrap, f"dump-{uuid.uuid4().hex[:8]}")
    writer.transaction(out, [b"kept", b"too"])
    writer.transaction(out, [b"dropped"], commit=False)
    wait_for_end(broker.bootstrap, out, 6)
    writer.producer.begin_transaction()
    writer.write(out, [{"key": b"k", "value": b"pend\ting"}])

    ran = run("dump", out, "--partition", "0", "--records")
    assert ran.status == 0
    assert [(row[1], row[2], row[3], row[7]) for row in ran.of("batch")] == [
        ("0", "0", "1", "-"), ("1", "2", "2", "committed"), ("3", "3", "1", "COMMIT"), ("4", "4", "1", "aborted"),
        ("5", "5", "1", "ABORT"), ("6", "6", "1", "open"),
    ]  # fmt: skip
    assert ran.of("batch")[0][9] in ("gzip", "none")  # librdkafka sends uncompressed what would grow
    assert all(row[8].isdigit() for row in ran.of("batch") if row[7] in ("COMMIT", "ABORT"))
    assert [(row[1], row[3], row[4], row[5]) for row in ran.of("record")] == [
        ("0", "null", "plain", "-"), ("1", "null", "kept", "committed"), ("2", "null", "too", "committed"),
        ("4", "null", "dropped", "aborted"), ("6", "k", "pend\\ting", "open"),
    ]  # fmt: skip
    part = run("dump", out, "--partition", "0", "--from", "2", "--limit", "2")
    assert [row[1] for row in part.of("batch")] == ["1", "3"]
    assert "--from 4" in part.err
    assert [row[0] for row in run("dump", out).of("batch")] == ["0"] * 6
    for wrong in (["--partition", "2"], ["--partition", "0", "--from", "99"]):
        ran = run("dump", out, *wrong)
        assert (ran.status, ran.out) == (2, "")
    writer.end(commit=True)


def test_lag_is_counted_to_where_readers_stop(run, broker, out, topic):
    group = topic()
    write(broker.bootstrap, out, [b"%d" % number for number in range(10)])
    write(broker.bootstrap, out, [b"%d" % number for number in range(7)], partition=1)
    writer = transactional(broker.bootstrap, f"lag-{uuid.uuid4().hex[:8]}")
    writer.producer.begin_transaction()
    writer.write(out, [{"value": b"open"}] * 3)

    nothing = run("lag", "--group", group)
    assert (nothing.status, nothing.out) == (1, "")
    assert "committed nothing" in nothing.err
    commit(broker.bootstrap, group, {(out, 0): 4})
    ran = run("lag", "--group", group)
    assert ran.of("partition") == [[out, "0", "4", "10", "13", "6"]]
    assert ran.of("total") == [["6", "1", "0"]]
    commit(broker.bootstrap, group, {(out, 1): 7})
    writer.end(commit=True)
    wait_for_end(broker.bootstrap, out, 14)
    ran = run("lag", "--group", group, "--topic", out)
    assert ran.of("partition") == [[out, "0", "4", "14", "14", "10"], [out, "1", "7", "7", "7", "0"]]
    assert ran.of("total") == [["10", "2", "0"]]


def test_lag_is_looked_at_again_until_interrupted(broker, out, topic):
    group = topic()
    commit(broker.bootstrap, group, {(out, 0): 0})
    arguments = ["lag", "--group", group, "--watch", "0.1", "--bootstrap", broker.bootstrap]
    with subprocess.Popen([sys.executable, "-c", MAIN, *arguments], stdout=subprocess.PIPE, text=True) as process:
        looks = 0
        while looks < 3:
            line = process.stdout.readline()
            assert line
            looks += line == "total\t0\t1\t0\n"
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0


# --- how it ends ---------------------------------------------------------------------------------------------------------
def headrace(*arguments, **environment):
    known = {name: value for name, value in os.environ.items() if name != "HEADRACE_BOOTSTRAP"}
    settings = {"capture_output": True, "text": True, "timeout": 60, "env": {**known, **environment}}
    return subprocess.run([sys.executable, "-c", MAIN, *arguments], check=False, **settings)


@pytest.mark.parametrize("arguments", [
    ["transactions", "list"], ["lag", "--group", "g"], ["verify", "--input", "a", "--output", "b"], ["dump", "t"],
], ids=lambda arguments: arguments[0])  # fmt: skip
def test_a_wrong_address_is_one_clear_error(run, arguments):
    ran = run(*arguments, *("--property", "default.api.timeout.ms=1500"), bootstrap="127.0.0.1:1")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("headrace: ")
    assert "127.0.0.1:1" in ran.err
    assert ran.err.count("\n") == 1


def test_the_environment_names_the_cluster_and_missing_topics_are_errors(broker):
    listed = headrace("transactions", "list", "--prefix", "nobody", HEADRACE_BOOTSTRAP=broker.bootstrap)
    assert (listed.returncode, listed.stderr) == (0, "")
    unnamed = headrace("transactions", "list")
    assert (unnamed.returncode, unnamed.stdout) == (2, "")
    missing = headrace("dump", "no-such-topic", HEADRACE_BOOTSTRAP=broker.bootstrap)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no-such-topic" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_the_commands_work_over_sasl_with_a_properties_file(run, tmp_path):
    if os.environ.get("HEADRACE_BOOTSTRAP"):
        pytest.skip("an external cluster has its own listeners and users")
    with start_broker(security=("SASL_PLAINTEXT",), users={"alice": "hunter2"}) as secured:
        file = tmp_path / "client.properties"
        lines = (
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=PLAIN",
            "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\",
            '    username="alice" password="hunter2";',
        )
        file.write_text("\n".join(lines))
        create_topic(secured.bootstrap, "t")
        write(secured.bootstrap, "t", [b"a"])
        address = secured.listeners["SASL_PLAINTEXT"]
        assert run("verify", "--input", "t", "--output", "t", "--properties-file", str(file), bootstrap=address).status == 0
        assert run("transactions", "list", "--properties-file", str(file), bootstrap=address).status == 0
        file.write_text(file.read_text().replace("hunter2", "hunter3"))
        wrong = run("dump", "t", "--properties-file", str(file), bootstrap=address)
        assert wrong.status == 1
        assert "hunter" not in wrong.err + wrong.out
