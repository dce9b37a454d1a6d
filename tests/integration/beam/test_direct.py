"""The Beam transform on Beam's own local runners, with a real broker.

DirectRunner is two runners: Prism, a program that Beam downloads, and where it cannot be had one in Python that runs one stage
after the other and so can read only what ends. What streams is tested on Prism: HEADRACE_PRISM names the program, else Go
builds it, once per user (`tests.servers.prism`); without Go these tests are skipped, or fail with HEADRACE_REQUIRE_PRISM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows

from headrace.beam import KafkaHeader, KafkaRecord, ReadFromKafka
from headrace.enumerator.errors import UsageError
from headrace.kafka import KafkaSource, Latest
from headrace.testing.servers.kafka import add_partitions, create_topic
from tests.helpers.beam_rig import BeamRun, on_direct
from tests.helpers.kafka_rig import commit, committed, transactional, wait_for_end, write, write_records
from tests.helpers.kafka_tools import created
from tests.helpers.python_path import python_path
from tests.helpers.waiting import eventually
from tests.servers.prism import prism_program

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


@pytest.fixture
def config(bootstrap):
    return {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}


def numbers(prefix, count):
    return [f"{prefix}{number}".encode() for number in range(count)]


class TestBounded:
    def test_every_record_comes_once_as_a_pair_of_bytes(self, bootstrap, config, topic):
        name = created(bootstrap, topic, partitions=3)
        for partition in range(3):
            records = [{"key": b"k", "value": value} for value in numbers(f"{partition}/", 500)]
            write_records(bootstrap, name, [*records, {"key": None, "value": None}], partition)
        with beam.Pipeline("DirectRunner") as pipeline:
            pairs = pipeline | ReadFromKafka(config, [name], stop=Latest())
            expected = [(b"k", value) for partition in range(3) for value in numbers(f"{partition}/", 500)]
            assert_that(pairs, equal_to([*expected, (None, None), (None, None), (None, None)]))

    def test_with_metadata_and_of_two_topics(self, bootstrap, config, topic):
        names = [topic(), topic()]
        for name in names:
            create_topic(bootstrap, name)
            record = {"key": b"k", "value": b"v", "headers": [("h", b"1")], "timestamp": 1_700_000_000_123}
            write_records(bootstrap, name, [record])
        with on_direct() as pipeline:
            records = pipeline | ReadFromKafka(config, names, with_metadata=True, stop=Latest())
            fields = (0, 0, 1_700_000_000_123, b"k", b"v", [KafkaHeader("h", b"1")], 0, "CreateTime")
            assert_that(records, equal_to([KafkaRecord(name, *fields) for name in names]))

    def test_batches_of_a_pattern_redistributed(self, bootstrap, config):
        stem = f"pattern-{uuid.uuid4().hex[:8]}"
        for number in range(3):
            create_topic(bootstrap, f"{stem}.{number}")
            write(bootstrap, f"{stem}.{number}", numbers("v", 10))
        with on_direct() as pipeline:
            given = {"output": "arrow", "columns": ["value"], "redistribute": True}
            batches = pipeline | ReadFromKafka(config, pattern=rf"{stem}\..*", stop=Latest(), **given)
            shape = beam.Map(lambda batch: (isinstance(batch, pa.RecordBatch), batch.num_rows, batch.schema.names))
            assert_that(batches | shape, equal_to([(True, 10, ["value"])] * 3))

    @pytest.mark.parametrize(("isolation", "expected"), [(None, [b"no", b"yes"]), ("read_committed", [b"yes"])])
    def test_isolation(self, bootstrap, config, topic, isolation, expected):
        name = created(bootstrap, topic)
        writer = transactional(bootstrap, f"beam-{uuid.uuid4()}")
        writer.transaction(name, [b"no"], commit=False)
        writer.transaction(name, [b"yes"])
        wait_for_end(bootstrap, name, 4)
        with on_direct() as pipeline:
            pairs = pipeline | ReadFromKafka(config, [name], stop=Latest(), isolation_level=isolation)
            assert_that(pairs | beam.Values(), equal_to(expected))

    def test_create_time_is_the_records_event_time(self, bootstrap, config, topic):
        name = created(bootstrap, topic, partitions=2)
        for partition in range(2):
            records = [{"value": b"x", "timestamp": 1_700_000_000_000 + 1000 * second} for second in range(30)]
            write_records(bootstrap, name, records, partition)
        with on_direct() as pipeline:
            policy = ReadFromKafka.create_time_policy
            records = pipeline | ReadFromKafka(config, [name], stop=Latest(), timestamp_policy=policy)
            windows = records | beam.WindowInto(FixedWindows(10))
            assert_that(windows | beam.combiners.Count.Globally().without_defaults(), equal_to([20, 20, 20]))

    def test_it_starts_at_the_groups_offsets_and_commits_its_own_when_bundles_are_final(self, bootstrap, config, topic):
        name, group = created(bootstrap, topic), f"g-{uuid.uuid4().hex[:8]}"
        write(bootstrap, name, numbers("v", 10))
        commit(bootstrap, group, {(name, 0): 4})
        read = {"stop": Latest(), "commit_offset_in_finalize": True}
        with on_direct() as pipeline:
            pairs = pipeline | ReadFromKafka({**config, "group.id": group}, [name], **read)
            assert_that(pairs | beam.Values(), equal_to(numbers("v", 10)[4:]))
        assert committed(bootstrap, group, (name, 0)) == [10]
        with on_direct() as pipeline:
            pairs = pipeline | ReadFromKafka({**config, "group.id": group}, [name], **read)
            assert_that(pairs, equal_to([]))

    def test_offsets_are_left_alone_unless_asked_for(self, bootstrap, config, topic):
        name, group = created(bootstrap, topic), f"g-{uuid.uuid4().hex[:8]}"
        write(bootstrap, name, numbers("v", 10))
        with on_direct() as pipeline:
            pairs = pipeline | ReadFromKafka({**config, "group.id": group}, [name], stop=Latest())
            assert_that(pairs | beam.Values(), equal_to(numbers("v", 10)))
        assert committed(bootstrap, group, (name, 0)) == [None]

    def test_a_number_of_records_of_a_topic_without_an_end(self, bootstrap, config, topic):
        """The one way that Beam's own transform is tried out."""
        name = created(bootstrap, topic, partitions=3)
        write(bootstrap, name, numbers("v", 10), partition=1)
        with on_direct() as pipeline:
            pairs = pipeline | ReadFromKafka(config, [name], max_num_records=7)
            assert_that(pairs | beam.combiners.Count.Globally(), equal_to([7]))


@pytest.fixture(scope="session")
def prism() -> Path:
    try:
        return prism_program(beam.__version__)
    except UsageError as error:
        if os.environ.get("HEADRACE_REQUIRE_PRISM"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def read_on_prism(prism: Path, tmp_path: Path) -> Iterator[Callable[..., Callable[[], list[bytes]]]]:
    """Starts a process that reads a topic until the test ends; what it gives shows the values that came by now."""
    processes = []

    def start(*names: str) -> Callable[[], list[bytes]]:
        out = tmp_path / f"values-{len(processes)}"
        out.touch()
        command = [sys.executable, "-m", "tests.helpers.prism_read", str(prism), *names, str(out)]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return lambda: out.read_bytes().splitlines()

    yield start
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_new_records_and_new_partitions_come_while_it_streams_and_offsets_follow(bootstrap, topic, read_on_prism):
    name, group = created(bootstrap, topic, partitions=2), f"g-{uuid.uuid4().hex[:8]}"
    write(bootstrap, name, numbers("a", 50))
    values = read_on_prism(bootstrap, name, group)
    eventually(lambda: len(values()) >= 50, "the records that were there")
    add_partitions(bootstrap, name, 3)
    write(bootstrap, name, numbers("b", 50), partition=2)
    write(bootstrap, name, numbers("c", 50), partition=1)
    eventually(lambda: len(values()) >= 150, "the records of the old partition and the new")
    eventually(lambda: committed(bootstrap, group, *((name, p) for p in range(3))) == [50, 50, 50], "the group's offsets")
    assert sorted(values()) == sorted(numbers("a", 50) + numbers("b", 50) + numbers("c", 50))


class TestRestored:
    """Direct runners restore nothing: here the stages are restored as a portable runner does it."""

    def values(self, run, count):
        found = []

        def enough():
            run.step(0)
            found[:] = [value for batch in run.delivered() for value in batch.column("value").to_pylist()]
            return len(found) >= count

        eventually(enough, f"{count} records")
        return sorted(found)

    def test_a_topic_that_was_added_to_the_configuration_is_read_from_its_first_record(self, bootstrap, topic):
        """It takes effect by discovery: the source is configured in the DoFn, and not by an element."""
        old, new = topic(), topic()
        for name in (old, new):
            create_topic(bootstrap, name)
            write(bootstrap, name, [f"{name} 1".encode()])
        first = BeamRun(KafkaSource(bootstrap, topics=[old]), None)
        assert self.values(first, 1) == [f"{old} 1".encode()]
        checkpoint = first.checkpoint()
        first.close()
        write(bootstrap, old, [f"{old} 2".encode()])
        second = BeamRun(KafkaSource(bootstrap, topics=[old, new]), checkpoint)
        assert self.values(second, 2) == sorted([f"{old} 2".encode(), f"{new} 1".encode()])
        second.close()

    def test_latest_is_not_asked_again(self, bootstrap, topic):
        name = created(bootstrap, topic, partitions=2)
        write(bootstrap, name, [b"before"])
        source = KafkaSource(bootstrap, topics=[name], start=Latest())
        first = BeamRun(source, None)
        checkpoint = first.checkpoint()
        first.close()
        write(bootstrap, name, [b"while it was down"])
        second = BeamRun(source, checkpoint)
        assert self.values(second, 1) == [b"while it was down"]
        second.close()
