"""Typed values under `headrace run`: each process asks the registry by itself, and what it does not answer is an outage."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.enumerator.errors import DeadlineExceededError, UsageError
from headrace.formats import RegisteredAvroFormat, SchemaRegistry
from headrace.kafka import KafkaSource, Latest
from headrace.run import RunSettings
from headrace.runners.job_file import PipelineFile
from headrace.runners.local.processes import forked_apart
from headrace.runners.local.supervisor import supervise
from headrace.testing import FakeKafka
from tests.helpers.schema_registry import FakeRegistry

FIRST = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
LATER = {**FIRST, "fields": [*FIRST["fields"], {"name": "b", "type": "string", "default": "?"}]}
OUT = {"type": "record", "name": "S", "fields": [{"name": "sum", "type": "long"}]}

JOB = """
from headrace import Pipeline
from headrace.formats import RegisteredAvroFormat, SchemaRegistry
from headrace.kafka import KafkaSink, KafkaSource, Latest
from tests.helpers.run_jobs import one_more

registry = SchemaRegistry({registry!r})
pipeline = Pipeline(
    KafkaSource(
        {kafka!r},
        topics=["in"],
        stop=Latest(),
        value=RegisteredAvroFormat.of_subject(registry, "in-value"),
        on_bad_record="skip",
    ),
    KafkaSink({kafka!r}, topic="out", value=RegisteredAvroFormat.of_subject(registry, "out-value")),
    one_more,
)
"""


@pytest.mark.timeout(120)
def test_values_of_two_schemas_of_a_registry_are_changed_as_columns_by_two_workers_and_written_once(tmp_path):
    with FakeKafka() as kafka, FakeRegistry() as registry:
        for topic in ("in", "out"):
            kafka.create_topic(topic, partitions=2)
        for subject, schema in (("in-value", FIRST), ("in-value", LATER), ("out-value", OUT)):
            registry.register(subject, schema)
        for number in range(50):
            encoded = bytes([2 * number])  # zigzag, one byte
            kafka.append("in", b"\0\0\0\0\1" + encoded, partition=0)
            kafka.append("in", b"\0\0\0\0\2" + encoded + b"\2x", partition=1)
        kafka.append("in", b"no Avro")
        job = tmp_path / "job_of_typed_values.py"
        job.write_text(JOB.format(kafka=kafka.bootstrap, registry=registry.url))
        settings = RunSettings(str(tmp_path / "checkpoints"), workers=2, interval_s=0.5)
        supervise(PipelineFile.parse(f"{job}:pipeline"), settings, forked_apart)
        value = RegisteredAvroFormat.of_subject(SchemaRegistry(registry.url), "out-value")
        out = KafkaSource(kafka.bootstrap, topics=["out"], stop=Latest(), value=value)
        found = [row["value"]["sum"] for batch in out.batches() for row in batch.to_pylist()]
        assert Counter(found) == Counter([*range(1, 51)] * 2)


def test_a_registry_that_is_away_when_a_process_loads_the_pipeline_is_no_mistake_of_the_file(tmp_path):
    """It was reported as one, and such an error of one worker ends the whole run without a restart."""
    job = tmp_path / "job_without_registry.py"
    job.write_text(JOB.format(kafka="localhost:1", registry="http://127.0.0.1:1").replace("1')", "1', deadline_s=0.1)"))
    with pytest.raises(DeadlineExceededError, match="cannot be reached"):
        PipelineFile.parse(f"{job}:pipeline").load()
    job.write_text("1 / 0")
    with pytest.raises(UsageError, match=r"cannot be loaded: ZeroDivisionError: .*py:1"):
        PipelineFile.parse(f"{job}:pipeline").load()
