"""Witnesses behind a source on Flink: workers import this; each line is JSON, appended at once, and survives kills."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.coders import PickleCoder
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec
from confluent_kafka import KafkaError, KafkaException, Producer


def note(path: str, line: Mapping[str, Any]) -> None:
    with Path(path).open("a") as file:
        file.write(json.dumps({"at_s": time.time(), "worker": os.getpid(), **line}) + "\n")


def notes(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def span(batch: pa.RecordBatch) -> tuple[str, tuple[int, int, int]]:
    """(partition, (first offset, last offset, records)) of a batch of one partition."""
    offsets = batch.column("offset")
    name = f"{batch.column('topic')[0].as_py()}-{batch.column('partition')[0].as_py()}"
    return name, (offsets[0].as_py(), offsets[-1].as_py(), batch.num_rows)


class Seen(beam.DoFn):
    """Alongside the reader: every batch, as it was emitted. After a rewind batches come again."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def process(self, element: tuple[str, tuple[int, int, int]]) -> Iterable[Any]:
        partition, (first, last, _) = element
        note(self._path, {"seen": partition, "first": first, "last": last})
        yield element


class Checked(beam.DoFn):
    """Behind the reader, in state that goes back with it: every offset of a partition once, in order, from the first."""

    STATE_PARAM = beam.DoFn.StateParam(ReadModifyWriteStateSpec("next", PickleCoder()))

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def process(self, element: tuple[str, tuple[int, int, int]], state: Any = STATE_PARAM) -> None:
        partition, (first, last, records) = element
        expected, wrong = state.read() or (0, 0)
        if first != expected or last - first + 1 != records:
            wrong += 1
        state.write((last + 1, wrong))
        note(self._path, {"checked": partition, "count": last + 1, "wrong": wrong, "got": [expected, first, last, records]})


class Counted(beam.DoFn):
    """Behind an aggregation: how many records a window had when it closed."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def process(self, element: int, window: Any = beam.DoFn.WindowParam) -> None:
        note(self._path, {"window": float(window.start), "count": element})


@dataclass
class OracleResult:
    """What the state of the job reports about a partition."""

    count: int
    wrong: int


class Witness:
    """The lines of a job, read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, batches: Any) -> None:
        """Put the witnesses behind the source."""
        spans = batches | beam.Map(span).with_output_types(tuple[str, tuple[int, int, int]])
        seen = spans | "Seen" >> beam.ParDo(Seen(self.path)).with_output_types(tuple[str, tuple[int, int, int]])
        _ = seen | "Checked" >> beam.ParDo(Checked(self.path))

    def outcomes(self) -> dict[str, OracleResult]:
        """By partition, the last word of the job's state."""
        return {line["checked"]: OracleResult(line["count"], line["wrong"]) for line in notes(self.path) if "checked" in line}

    def first_since(self, at_s: float) -> dict[str, int]:
        """By partition, the offset at which reading started after that time."""
        firsts: dict[str, int] = {}
        for line in notes(self.path):
            if "seen" in line and line["at_s"] > at_s:
                firsts.setdefault(line["seen"], line["first"])
        return firsts

    def windows(self) -> dict[float, int]:
        """By the start of the window, its records; a window that closed twice would count twice."""
        counts: dict[float, int] = defaultdict(int)
        for line in notes(self.path):
            if "window" in line:
                counts[line["window"]] += line["count"]
        return counts


class Flow:
    """Writes to partitions without end, until it is stopped; knows how many each has got."""

    def __init__(self, bootstrap: str, pause_s: float = 0.02) -> None:
        self.written: dict[tuple[str, int], int] = defaultdict(int)
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "topic.metadata.refresh.interval.ms": 200,
            "log_level": 0,
        })  # fmt: skip
        self.partitions: list[tuple[str, int]] = []
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, topic: str, partition: int) -> None:
        """Write to this one too."""
        self.partitions.append((topic, partition))

    def stop(self) -> dict[str, int]:
        """The records of every partition, all acknowledged."""
        self._stopped.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return {f"{topic}-{partition}": count for (topic, partition), count in self.written.items()}

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            for topic, partition in tuple(self.partitions):
                try:
                    self._producer.produce(topic, b"x" * 100, partition=partition)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                        raise
                    continue  # the producer has not heard of it yet
                self.written[topic, partition] += 1
            self._producer.poll(0)
