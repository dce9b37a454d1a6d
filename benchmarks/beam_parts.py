"""What runs in Beam's workers, which import it: the stage that counts, behind every system; the reader of confluent-kafka."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider

from benchmarks.local_systems import CHUNK, CONFLUENT_SETTINGS
from benchmarks.topics import KEY_BYTES, TIMEOUT_S

KEY = np.dtype(f">i{KEY_BYTES}")
POLL_S = 1.0

Record = tuple[bytes, bytes]


class Count(beam.DoFn):
    """Counts, bundle by bundle, and writes down what it counted: the keys, and a line of JSON. Emits nothing.

    Every instance has files of its own. A bundle that is run again writes again, so records that come twice are seen.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def setup(self) -> None:
        """Once per instance."""
        self._file = self._folder / uuid.uuid4().hex

    def start_bundle(self) -> None:
        """Before each bundle."""
        self._keys: list[bytes] = []
        self._value_bytes = 0

    def finish_bundle(self) -> None:
        """After each bundle, as soon as its last element was counted."""
        if not self._keys:
            return
        last_s = time.time()
        keys = b"".join(self._keys)
        with self._file.with_suffix(".keys").open("ab") as file:
            file.write(keys)
        bundle = Bundle(len(keys) // KEY_BYTES, self._value_bytes, self._first_s, self._first_records, last_s)
        with self._file.with_suffix(".bundles").open("a") as lines:
            lines.write(json.dumps(asdict(bundle)) + "\n")

    def _begin(self, records: int) -> None:
        """The bundle's first element has come, with this many records."""
        self._first_s = time.time()
        self._first_records = records


class CountRecords(Count):
    """Of key and value."""

    def process(self, element: Record) -> None:
        """A record."""
        if not self._keys:
            self._begin(1)
        self._keys.append(element[0])
        self._value_bytes += len(element[1])


class CountBatches(Count):
    """Of Arrow batches."""

    def process(self, element: pa.RecordBatch) -> None:
        """A batch."""
        if not self._keys:
            self._begin(element.num_rows)
        self._keys.append(_joined(element.column("key")))
        self._value_bytes += pc.sum(pc.binary_length(element.column("value"))).as_py()


def _joined(column: pa.BinaryArray) -> bytes:
    """All its values, one after the other."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return data[int(ends[column.offset]) : int(ends[column.offset + len(column)])].to_pybytes()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Bundle:
    """What a bundle had. Times are seconds since 1970, of one machine's clock."""

    records: int
    value_bytes: int
    first_s: float
    first_records: int  # of its first element
    last_s: float


def bundles(folder: Path) -> list[Bundle]:
    """All that were written down so far."""
    lines: list[str] = []
    for file in folder.glob("*.bundles"):
        text = file.read_text()
        lines += text[: text.rfind("\n") + 1].splitlines()
    return [Bundle(**json.loads(line)) for line in lines]


def counted_once(folder: Path, records: int) -> int:
    """How many of the records 0 to `records` were counted, if each exactly once; else -1."""
    keys = np.concatenate([np.fromfile(file, KEY) for file in folder.glob("*.keys")] or [np.empty(0, KEY)])
    return len(keys) if np.array_equal(np.sort(keys), np.arange(records)) else -1


@dataclass(frozen=True)
class Partition:
    """What the reader of confluent-kafka is given: a partition, all of it."""

    bootstrap: str
    topic: str
    number: int


class ReadPartition(beam.DoFn, RestrictionProvider):
    """confluent-kafka in a splittable DoFn, a record an element: as in Beam's guide, and made fast.

    Records come from `consume` in batches, and the restriction is claimed once a batch, up to its last offset. A call reads its
    partition to the end: it never waits for a runner to call it again.
    """

    def initial_restriction(self, element: Partition) -> OffsetRange:
        """From the first record to the last."""
        from confluent_kafka import TopicPartition

        consumer = self._consumer(element)
        ends = consumer.get_watermark_offsets(TopicPartition(element.topic, element.number), timeout=TIMEOUT_S)
        consumer.close()
        return OffsetRange(*ends)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        """Beam's own."""
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: Partition, restriction: OffsetRange) -> int:
        """Records."""
        return restriction.size()  # type: ignore[no-any-return]

    def process(
        self,
        element: Partition,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - Beam's way to ask for it
    ) -> Iterator[Record]:
        """To the end."""
        from confluent_kafka import TopicPartition

        restriction = tracker.current_restriction()
        at = restriction.start
        consumer = self._consumer(element)
        consumer.assign([TopicPartition(element.topic, element.number, at)])
        while at < restriction.stop:
            messages = consumer.consume(min(CHUNK, restriction.stop - at), POLL_S)
            if not messages:
                continue
            at = messages[-1].offset() + 1
            if not tracker.try_claim(at - 1):
                break
            for message in messages:
                yield message.key(), message.value()
        consumer.close()

    def _consumer(self, element: Partition) -> Any:
        from confluent_kafka import Consumer

        return Consumer({"bootstrap.servers": element.bootstrap, "group.id": "bench", **CONFLUENT_SETTINGS})


class ReadWithConfluent(beam.PTransform[Any, Any]):
    """A topic's partitions, spread over the workers."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self._partitions = [Partition(bootstrap, topic, number) for number in range(partitions)]

    def expand(self, pbegin: Any) -> Any:
        """Called by Beam."""
        return (
            pbegin
            | "Partitions" >> beam.Create(self._partitions)
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(ReadPartition()).with_output_types(Record)
        )
