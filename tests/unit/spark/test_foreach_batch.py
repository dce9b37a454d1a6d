"""One batch of a query is written to two destinations under one name and number, and the driver dies anywhere on the way.

Two topics of a Kafka in this process, two folders. Two tables: `tests/integration/sql/test_sql_sink.py`. With Spark, all three
kinds at once: `tests/integration/spark/test_foreach_batch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from headrace.files import FileSink
from headrace.sinks import Committer, TwoPhaseSink
from headrace.testing import DyingCommitter, FakeKafka, Killed
from headrace.testing.sink_conformance import DEATHS
from tests.helpers.batch_writes import written
from tests.helpers.file_rig import batch_of, visible
from tests.helpers.sink_rig import kafka_sink, rows


@dataclass
class Destination:
    sink: TwoPhaseSink[Any]
    batch: Callable[[Sequence[str]], pa.RecordBatch]
    seen: Callable[[], list[str]]


@pytest.fixture(params=["topics", "folders"])
def destinations(request, tmp_path) -> Iterator[list[Destination]]:
    if request.param == "folders":
        sinks = [FileSink(str(tmp_path / name)) for name in ("a", "b")]
        yield [Destination(sink, batch_of, lambda sink=sink: visible(sink)) for sink in sinks]
        return
    with FakeKafka() as kafka:
        for topic in ("a", "b"):
            kafka.create_topic(topic)

        def seen(topic: str) -> list[str]:
            return sorted(record.value.decode() for record in kafka.records(topic))

        yield [Destination(kafka_sink(kafka.bootstrap, topic, "commits"), rows, partial(seen, topic)) for topic in ("a", "b")]


def write_batch(
    destinations: Sequence[Destination], epoch: int, committers: Sequence[Callable[[Committer[Any]], Committer[Any]]] = ()
) -> None:
    for number, to in enumerate(destinations):
        own = {"committer": committers[number]} if committers else {}
        written(to.sink, "report", epoch, *[to.batch([f"{epoch}{task}"]) for task in ("x", "y")], **own)


@pytest.mark.parametrize("first_or_second", [0, 1])
@pytest.mark.parametrize(("step", "when", "nth"), [death for death in DEATHS if death[1] == "after"])
def test_a_batch_that_is_written_to_two_destinations_is_in_each_once(destinations, step, when, nth, first_or_second):
    """Shows 3, findings: Sinks 1. The batch is run again from its beginning, as Spark does."""
    died: list[DyingCommitter[Any]] = []

    def dying(committer: Committer[Any]) -> Committer[Any]:
        died.append(DyingCommitter(committer, step, when, nth))
        return died[-1]

    def living(committer: Committer[Any]) -> Committer[Any]:
        return committer

    write_batch(destinations, 0)
    with pytest.raises(Killed):
        write_batch(destinations, 1, (dying, living) if first_or_second == 0 else (living, dying))
    assert [one.died for one in died] == [True]
    write_batch(destinations, 1)
    write_batch(destinations, 2)
    assert [to.seen() for to in destinations] == [["0x", "0y", "1x", "1y", "2x", "2y"]] * 2
