"""Reading a topic in a Beam pipeline: on Beam's runner in Python and on Flink. Runs in a child of the harness.

`headrace` gives Arrow batches; `headrace-records`, `confluent` (a splittable DoFn over confluent-kafka) and `kafkaio` (Java's
KafkaIO, through Beam's own Python wrapper) an element for every record. All of them give key and value, and behind each is
the same stage, which counts.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
from apache_beam.io import kafka
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from benchmarks.beam_java import expansion_service
from benchmarks.beam_parts import Bundle, CountBatches, CountRecords, ReadWithConfluent, bundles, counted_once
from benchmarks.harness import Context, Measurement
from benchmarks.topics import Shape
from headrace.beam import ReadFromKafka
from headrace.enumerator.errors import RetriableError
from headrace.kafka import Latest
from headrace.runners.waiting import wait_until
from headrace.testing.servers.flink import FlinkCluster, start_flink

HERE = Path(__file__).parent
BEAM_SYSTEMS = ("headrace", "headrace-records", "confluent", "kafkaio")
LOOK_S = 0.25
MOST_S = 300.0

Runner = Literal["direct", "flink"]
_processes = ExitStack()  # they end with this process


@dataclass(frozen=True)
class BeamRead:
    """The topic for batches, and the smaller one for systems that emit every record: what counts is records per second."""

    runner: Runner
    batches: Shape
    records: Shape

    def shape(self, system: str) -> Shape:
        """The system's topic."""
        return self.batches if system == "headrace" else self.records


def beam_read(context: Context, work: BeamRead) -> Measurement:
    """One pipeline that reads the whole topic. Records per second between the first element counted and the last.

    Starting a pipeline takes seconds, of which no system is free, and which do not grow with the topic; the time from the
    submission is in the details.
    """
    shape = work.shape(context.system)
    folder = Path(tempfile.mkdtemp(dir=context.scratch))
    counts = CountBatches(folder) if context.system == "headrace" else CountRecords(folder)

    def build(pipeline: beam.Pipeline) -> None:
        _ = (
            pipeline
            | "Source" >> _SOURCES[context.system](context.bootstrap, shape, work.runner)
            | "Tally" >> beam.ParDo(counts)
        )

    measured = run_counted(work.runner, build, folder, shape.records)
    right = sum(bundle.value_bytes for bundle in bundles(folder)) == shape.records * shape.value_bytes
    return measured if right else replace(measured, records=-1)


def direct_read(bootstrap: str, shape: Shape, folder: Path) -> int:
    """One read of the whole topic by Beam's runner in Python: the bytes of its values. `folder`: for what workers tell."""
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | _headrace(bootstrap, shape, "direct") | beam.ParDo(CountBatches(folder))
    return sum(bundle.value_bytes for bundle in bundles(folder))


def run_counted(runner: Runner, build: Build, folder: Path, records: int) -> Measurement:
    """One run of a pipeline whose last stage counts this many records, each once, into `folder`."""
    started_s = time.time()
    _RUNNERS[runner](build, lambda: sum(bundle.records for bundle in bundles(folder)) >= records)
    return _measured(bundles(folder), counted_once(folder, records), records, started_s)


def _measured(found: list[Bundle], records: int, expected: int, started_s: float) -> Measurement:
    first, last_s = min(found, key=lambda bundle: bundle.first_s), max(bundle.last_s for bundle in found)
    steady_s, total_s = last_s - first.first_s, last_s - started_s
    detail = {
        "steady_s": steady_s,
        "first_records": first.first_records,
        "total_s": total_s,
        "records_per_s_in_all": expected / total_s,
        "bundles": len(found),
    }
    return Measurement((expected - first.first_records) / steady_s, records, expected, detail)


Source = Callable[[str, Shape, Runner], Any]
Build = Callable[[beam.Pipeline], None]


def _headrace(bootstrap: str, shape: Shape, _: Runner) -> ReadFromKafka:
    return ReadFromKafka(_config(bootstrap), [shape.topic], stop=Latest(), output="arrow", columns=["key", "value"])


def _headrace_records(bootstrap: str, shape: Shape, _: Runner) -> ReadFromKafka:
    return ReadFromKafka(_config(bootstrap), [shape.topic], stop=Latest())


def _confluent(bootstrap: str, shape: Shape, _: Runner) -> ReadWithConfluent:
    return ReadWithConfluent(bootstrap, shape.topic, shape.partitions)


def _kafkaio(bootstrap: str, shape: Shape, runner: Runner) -> kafka.ReadFromKafka:
    return kafka.ReadFromKafka(
        {**_config(bootstrap), "max.poll.records": "10000"},
        [shape.topic],
        # Its one way to end, and Beam's runner in Python runs nothing behind it until it has ended.
        max_num_records=shape.records if runner == "direct" else None,
        expansion_service=_expansion_service(),
    )


def _config(bootstrap: str) -> dict[str, str]:
    return {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}


_SOURCES: Mapping[str, Source] = {
    "headrace": _headrace,
    "headrace-records": _headrace_records,
    "confluent": _confluent,
    "kafkaio": _kafkaio,
}


def _on_direct(build: Build, _all_counted: Callable[[], bool]) -> None:
    # By name: "DirectRunner" is Prism where that can be downloaded, and this one elsewhere.
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        build(pipeline)


def _on_flink(build: Build, all_counted: Callable[[], bool]) -> None:
    """Flink's runner never ends a job that takes checkpoints, so the job is cancelled; first a checkpoint has all of it."""
    flink = _flink()
    pipeline = beam.Pipeline(options=PipelineOptions(flink.options()))
    build(pipeline)
    job_id = flink.submit(pipeline)

    def look() -> None:
        view = flink.job(job_id)
        if view.failure is not None:  # the job would be started again, and would not be measured then
            raise RuntimeError(f"the job failed: {view.failure[1]}")
        if not all_counted():
            raise RetriableError(f"it is {view.state}, {dict(view.tasks)}")

    wait_until(look, "the job did not count all records", MOST_S, LOOK_S)
    flink.wait_checkpoint(job_id)
    flink.cancel(job_id)


@functools.cache
def _expansion_service() -> str:
    """This process's Java, for KafkaIO."""
    return _processes.enter_context(expansion_service())


@functools.cache
def _flink() -> FlinkCluster:
    """This process's Flink: a TaskManager with two slots."""
    return _processes.enter_context(start_flink(environment={"PYTHONPATH": str(HERE.parent)}))


_RUNNERS: Mapping[Runner, Callable[[Build, Callable[[], bool]], None]] = {"direct": _on_direct, "flink": _on_flink}
