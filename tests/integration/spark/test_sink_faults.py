"""Faults of Spark itself under an exactly-once write: repeated attempts, processes that die, and some that come back too late.

Each is shown to have happened; then every record is in the output once, or in the dead letters if it cannot be decoded, and
nothing is still open.
"""

import json

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException

from headrace.connectors.kafka.write.transactions import Transactions
from tests.helpers.kafka_tools import set_config
from tests.helpers.sink_rig import eventually, kafka_sink, read_all
from tests.helpers.spark_jobs import SparkJob, frozen, standalone_cluster, thawed

pytestmark = pytest.mark.timeout(400)
RECORDS, BATCH = 100, 50
BAD_EVERY = 5
SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def value_of(number):
    """One in this many is none that the schema has."""
    return f"bad {number}" if number % BAD_EVERY == 0 else f'{{"n":{number}}}'


WANTED = sorted(map(value_of, range(RECORDS)))


class Copy:
    """A topic to be copied, bad records among good ones, and what has become of it."""

    def __init__(self, topics, folder):
        self.topics, self.folder = topics, folder
        self.source, self.output, self.dead = topics.create(2), topics.create(2), topics.create(2)
        for partition in range(2):
            topics.send(self.source, map(value_of, range(partition * BATCH, (partition + 1) * BATCH)), partition)
        typed = {"valueFormat": "json-schema", "valueSchema": SCHEMA}
        self.read = topics.options(self.source, startingOffsets="earliest", maxOffsetsPerTrigger=BATCH) | typed
        self.read["onBadRecord"] = "keep"
        # What headrace.spark.with_dead_letters makes, as expressions that a driver is reported
        letter = f"'{self.dead}' AS topic, deadLetter.key AS key, deadLetter.value AS value, deadLetter.headers AS headers"
        self.select = ["value", f"CASE WHEN deadLetter IS NOT NULL THEN STRUCT({letter}) END AS deadLetter"]
        self.write = {
            "kafka.bootstrap.servers": topics.bootstrap, "topic": self.output, "commitTopic": f"{self.output}-commits",
            "transactionalIdPrefix": self.output[:100],
        }  # fmt: skip
        self.typed_write = self.write | typed

    def job(self, name, fault=None, **more):
        given = {"read": self.read, "select": self.select, "write": self.typed_write, "tasks": 2}
        given["session"] = "warm_session_builder"  # it starts in half the time
        given |= more
        return SparkJob(self.folder, name, given, fault)

    def committed(self):
        return self._both("read_committed")

    def uncommitted(self):
        return self._both("read_uncommitted")

    def _both(self, isolation):
        good, bad = (read_all(self.topics.bootstrap, name, isolation) for name in (self.output, self.dead))
        assert not any(value.startswith("bad") for value in good)
        assert not any(value.startswith("{") for value in bad)
        return sorted(good + bad)

    def ongoing(self):
        sink = kafka_sink(self.topics.bootstrap, self.output, self.write["commitTopic"])
        return Transactions(sink.cluster()).ongoing(self.write["transactionalIdPrefix"])

    def is_whole(self):
        return len(self.committed()) >= RECORDS


@pytest.fixture
def copy(topics, tmp_path):
    return Copy(topics, tmp_path)


def fault(owner, method, when, what):
    return {
        "module": "headrace.connectors.kafka.write.sink", "owner": owner, "method": method, "when": when, "nth": 1,
        "what": what,
    }  # fmt: skip


def test_a_task_that_fails_is_tried_again(spark, copy):
    """Its first attempt has written more by then than waits for a request to be full."""

    def fails_at_first(batches):
        yield from batches
        if TaskContext.get().attemptNumber() == 0 and TaskContext.get().partitionId() == 0:
            raise RuntimeError("injected")

    rows = spark.range(0, 50_000, 1, 2).selectExpr("concat(id, repeat('-', 500)) AS value")
    rows.mapInArrow(fails_at_first, "value string").write.format("headrace").options(**copy.write).mode("append").save()
    assert sorted(value.rstrip("-") for value in copy.committed()) == sorted(map(str, range(50_000)))
    assert len(copy.uncommitted()) > 50_000
    assert copy.ongoing() == []


def test_a_task_whose_process_dies_after_it_prepared_is_tried_again(copy):
    with copy.job("driver", master="local[2,4]", fault=fault("KafkaTransaction", "prepare", "after", "die")) as job:
        job.wait_for(copy.is_whole)
        job.finish()
        assert job.mark.exists()
    assert copy.committed() == WANTED
    assert len(copy.uncommitted()) > RECORDS
    assert copy.ongoing() == []


def test_a_commit_that_fails_before_its_list_is_durable_is_aborted(spark, copy, tmp_path):
    """The topic of the lists takes none for a while."""
    frame = spark.readStream.format("headrace").options(**copy.read).load().selectExpr(*copy.select)
    writer = frame.repartition(2).writeStream.format("headrace").options(**copy.typed_write)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    kafka_sink(copy.topics.bootstrap, copy.output, copy.write["commitTopic"]).commit_log().create()
    lists = (copy.topics.bootstrap, "topic", copy.write["commitTopic"])
    set_config(*lists, max__message__bytes="100")  # markers are smaller
    with pytest.raises(StreamingQueryException, match="MESSAGE_TOO_LARGE"):
        writer.start().awaitTermination()
    assert len(copy.uncommitted()) == BATCH
    assert copy.ongoing() == []  # Spark has called abort
    assert copy.committed() == []
    set_config(*lists, max__message__bytes=None)
    writer.start().awaitTermination()
    eventually(copy.committed, WANTED)


@pytest.mark.long
def test_a_commit_that_fails_after_its_list_is_durable_is_left_alone_by_abort_and_completed_by_the_next_start(copy):
    with copy.job("driver", fault=fault("KafkaCommitter", "end_all", "before", "fail")) as job:
        assert job.wait() != 0
        assert "injected" in job.log()
    assert copy.committed() == []
    assert copy.ongoing() != []  # what was prepared is on the list, and nothing has undone it
    with copy.job("driver") as job:
        job.wait_for(copy.is_whole)
        job.finish()
    assert copy.ongoing() == []
    assert copy.committed() == WANTED == copy.uncommitted()


def test_a_zombie_driver_fails_and_changes_nothing(copy):
    """It is frozen before it makes a list durable, and continues when another has copied everything."""
    with copy.job("zombie", fault=fault("KafkaCommitter", "record", "before", "stop")) as zombie:
        zombie.wait_until_stopped()
        with copy.job("driver") as job:
            job.wait_for(copy.is_whole)
            zombie.thaw()
            assert zombie.wait() != 0
            assert "another driver of job" in zombie.log()
            copy.topics.send(copy.source, ["more"])
            job.wait_for(lambda: len(copy.committed()) > RECORDS)
            job.finish()
    assert copy.committed() == sorted([*WANTED, "more"])
    assert copy.ongoing() == []


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
    "spark.network.timeout": "600s",  # a frozen executor is not given up
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}


@pytest.mark.long
def test_an_executor_is_frozen_a_speculative_attempt_wins_and_then_the_executor_continues(copy, tmp_path):
    """Spark starts a second attempt only on another host: hence a cluster of two. A shuffle would read from the frozen one."""
    hold = fault("KafkaTransaction", "prepare", "before", "hold")
    copy.read["minPartitions"] = "2"
    with (
        standalone_cluster(tmp_path, ["127.0.0.1", "127.0.0.2"]) as master,
        # not a warm session, whose Python processes are not children of an executor
        copy.job("driver", session="session_builder", master=master, settings=SPECULATION, tasks=None, fault=hold) as job,
    ):
        job.wait_for(job.mark.exists)
        zombie = job.marked()
        executor = frozen(zombie)
        job.wait_for(copy.is_whole)
        assert len(copy.uncommitted()) == RECORDS
        job.mark.unlink()
        zombie.resume()
        job.wait_for(lambda: len(copy.uncommitted()) > RECORDS)
        assert copy.committed() == WANTED
        thawed(executor)
        copy.topics.send(copy.source, ["more"])
        job.wait_for(lambda: len(copy.committed()) > RECORDS)
        job.finish()
    assert copy.committed() == sorted([*WANTED, "more"])
    assert copy.ongoing() == []
