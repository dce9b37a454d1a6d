"""Records that are gone, with failOnDataLoss on and off (KafkaDontFailOnDataLossSuite)."""

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from headrace.runners.spark.supervision.core import Ending
from headrace.runners.spark.supervision.exit_causes import end_by
from tests.helpers.kafka_rig import delete_records
from tests.helpers.spark_tools import numbers


class TestStreaming:
    @pytest.fixture
    def aged(self, query, topics):
        """A query that has read 0-4 and was stopped; then 5-14 came, and 0-9 are gone."""
        topic = topics.holding(range(5))
        query.run_available(topics.options(topic, startingOffsets="earliest"))
        topics.send(topic, range(5, 15))
        delete_records(topics.bootstrap, topic, 10)
        return topic

    def test_the_query_fails_and_names_the_lost_range(self, query, topics, aged):
        with pytest.raises(StreamingQueryException, match="offset 5 is out of range, available are 10 to 15") as failed:
            query.run_available(topics.options(aged))
        assert end_by(failed.value).ending is Ending.DATA_LOSS  # as a supervisor takes it
        assert query.values == numbers(range(5))

    def test_or_continues_after_it(self, query, topics, aged):
        query.run_available(topics.options(aged, failOnDataLoss="false"))
        assert query.values == numbers(range(5), range(10, 15))

    def test_a_deleted_topic_fails_the_query(self, query, topics):
        topic = topics.holding(range(5))
        query.run_available(topics.options(topic, startingOffsets="earliest"))
        topics.delete(topic)
        with pytest.raises(StreamingQueryException, match="partitions are gone") as failed:
            query.run_available(topics.options(topic))
        assert end_by(failed.value).ending is Ending.DATA_LOSS

    def test_a_topic_that_was_created_again_fails_the_query_though_it_has_as_many_records(self, query, topics):
        topic = topics.holding(range(5))
        query.run_available(topics.options(topic, startingOffsets="earliest"))
        self.create_again(topics, topic)
        with pytest.raises(StreamingQueryException, match="deleted and created again"):
            query.run_available(topics.options(topic))

    def test_or_is_read_from_its_first_record(self, query, topics):
        topic = topics.holding(range(5))
        query.run_available(topics.options(topic, startingOffsets="earliest"))
        self.create_again(topics, topic)
        query.run_available(topics.options(topic, failOnDataLoss="false"))
        assert query.values == numbers(range(5), range(10, 17))

    def test_a_topic_deleted_among_others_does_not_stop_them(self, query, topics):
        gone, stays = topics.create(), topics.create()
        topics.send(gone, ["1"])
        topics.send(stays, ["2"])
        options = topics.options(f"{gone},{stays}", startingOffsets="earliest", failOnDataLoss="false")
        query.run_available(options)
        topics.delete(gone)
        topics.send(stays, ["3"])
        query.run_available(options)
        assert query.values == ["1", "2", "3"]

    def test_once_tolerated_the_loss_of_a_topic_is_no_reason_to_fail_any_more(self, query, topics):
        gone, stays = topics.create(), topics.create()
        topics.send(gone, ["1"])
        topics.send(stays, ["2"])
        options = topics.options(f"{gone},{stays}", startingOffsets="earliest")
        query.run_available(options)
        topics.delete(gone)
        with pytest.raises(StreamingQueryException, match="partitions are gone"):
            query.run_available(options)
        query.run_available({**options, "failOnDataLoss": "false"})
        topics.send(stays, ["3"])
        query.run_available(options)
        assert query.values == ["1", "2", "3"]

    def test_nor_is_a_topic_that_is_subscribed_to_no_more(self, query, topics):
        left, stays = topics.create(), topics.create()
        topics.send(left, ["1"])
        topics.send(stays, ["2"])
        query.run_available(topics.options(f"{left},{stays}", startingOffsets="earliest"))
        query.run_available(topics.options(stays, failOnDataLoss="false"))
        topics.send(stays, ["3"])
        query.run_available(topics.options(stays))
        assert query.values == ["1", "2", "3"]

    def create_again(self, topics, topic):
        from headrace.testing.servers.kafka import create_topic

        topics.delete(topic)
        create_topic(topics.bootstrap, topic)
        topics.send(topic, range(10, 17))


class TestBatch:
    @pytest.fixture
    def aged(self, topics):
        topic = topics.holding(range(15))
        delete_records(topics.bootstrap, topic, 10)
        return topic

    def read(self, spark, topics, topic, **options):
        start = f'{{"{topic}":{{"0":5}}}}'
        reader = spark.read.format("headrace").options(**topics.options(topic, startingOffsets=start, **options))
        return sorted(row["value"].decode() for row in reader.load().collect())

    def test_an_explicit_start_that_is_gone_fails(self, spark, topics, aged):
        with pytest.raises(PySparkException, match="offset 5 is wanted, but only 10 to 15 are there"):
            self.read(spark, topics, aged)

    def test_or_starts_with_what_is_left(self, spark, topics, aged):
        assert self.read(spark, topics, aged, failOnDataLoss="false") == numbers(range(10, 15))
