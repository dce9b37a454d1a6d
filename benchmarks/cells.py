"""What `read_throughput.py`, `write_throughput.py`, `table_write.py` and `typed_read.py` measure: cells with their targets."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from benchmarks.copy_systems import copy_topic
from benchmarks.harness import Cell, Setting, Target, Task
from benchmarks.local_systems import LOCAL_SYSTEMS, LocalRead, local_read
from benchmarks.spark_systems import (
    OTHERWISE_SET,
    SPARK_SYSTEMS,
    Read,
    Start,
    Stream,
    Ticks,
    available_now,
    batch_read,
    first_batch,
    first_trigger,
    trigger_time,
)
from benchmarks.table_systems import TableWrite, parts, write_table
from benchmarks.topics import Contents, Shape, fill, trickling
from benchmarks.typed_systems import (
    TYPED_LOCAL_SYSTEMS,
    TYPED_SPARK_SYSTEMS,
    TYPED_TOPIC_SYSTEMS,
    TypedTopic,
    typed_decode,
    typed_read,
    typed_topic,
    undecoded,
)
from benchmarks.typed_topics import TypedShape

TICK_S = 0.1
CODECS = ("none", "lz4", "zstd")


@dataclass(frozen=True)
class Size:
    """How much is read; and how often, by default."""

    rounds: int
    small_records: int  # of 100 B
    large_records: int  # of 1 KiB
    backlog_records: int  # streamed in steps
    long_backlog_records: int  # streamed at once
    step: int
    triggers: int
    slow_records: int
    start_records: int = 10_000
    copied_records: int = 1_000_000
    copied_per_trigger: int = 50_000
    table_records: int = 3_000_000
    table_per_trigger: int = 500_000

    def shape(self, value_bytes: int, codec: str) -> Shape:
        """The topic of that record size."""
        return Shape(self.small_records if value_bytes < 1024 else self.large_records, value_bytes, codec)


# A query takes about two seconds to start and to stop, so a backlog has to take much longer than that.
FULL = Size(5, 6_000_000, 1_000_000, 6_000_000, 20_000_000, 100_000, 12, 300_000)
QUICK = Size(
    3,
    600_000,
    100_000,
    300_000,
    600_000,
    100_000,
    5,
    100_000,
    copied_records=200_000,
    copied_per_trigger=10_000,
    table_records=300_000,
    table_per_trigger=100_000,
)


def cells(size: Size) -> list[Cell]:
    """All cells; in quick mode fewer record sizes and codecs."""
    quick = size is QUICK
    shapes = (
        [size.shape(100, "none"), size.shape(1024, "lz4")]
        if quick
        else [size.shape(value_bytes, codec) for value_bytes in (100, 1024) for codec in CODECS]
    )
    return [
        *(_batch(shape, aggregate) for shape in shapes for aggregate in (False, True)),
        *(_one_column(shape) for shape in shapes),
        *(_trigger(partitions, size.triggers) for partitions in (8, 100)),
        *_starts(Shape(size.start_records, 100)),
        *_settings(size.shape(100, "none"), size.triggers),
        _stream(Shape(size.backlog_records, 100), size.step),
        _stream(Shape(size.long_backlog_records, 100), None),
        *(_local(shape, size.slow_records) for shape in shapes),
    ]


def write_cells(size: Size) -> list[Cell]:
    """What `write_throughput.py` measures: a topic copied to another."""
    shapes = [Shape(size.copied_records, 100), Shape(size.copied_records // 5, 1024)]
    whole = [_copy(shape, None, ("headrace", "jvm", "flink")) for shape in shapes]
    triggers = Shape(20 * size.copied_per_trigger, 100)
    return [*whole, _copy(triggers, size.copied_per_trigger, ("headrace", "jvm"))]  # Flink has no triggers


def table_cells(size: Size) -> list[Cell]:
    """What `table_write.py` measures: a topic written to tables."""
    return [*(_table(size, table_format, systems) for table_format, systems in TABLE_SYSTEMS.items()), _parts(size)]


TABLE_SYSTEMS = {"delta": ("headrace", "delta-spark", "headrace-run"), "iceberg": ("headrace", "headrace-run")}


def _table(size: Size, table_format: str, systems: tuple[str, ...]) -> Cell:
    shape = Shape(size.table_records, 100)
    return Cell(
        "table",
        table_format,
        f"{shape}, to {table_format.capitalize()}, {size.table_per_trigger:,} a trigger",
        "records/s",
        systems,
        write_table,
        TableWrite(shape, table_format, size.table_per_trigger),
        (Target("delta-spark", "at least", 1.5),) if "delta-spark" in systems else (),
        _filled(shape),
    )


def _parts(size: Size) -> Cell:
    shape = Shape(size.table_per_trigger, 100)
    work = TableWrite(shape, "delta", size.table_per_trigger)
    return Cell(
        "table parts", "delta", f"{shape}, to Delta in one process", "records/s", ("headrace",), parts, work, (), _filled(shape)
    )


def _copy(shape: Shape, per_trigger: int | None, systems: tuple[str, ...]) -> Cell:
    limit = "in one batch" if per_trigger is None else f"{per_trigger:,} a trigger"
    return Cell(
        "write",
        f"{shape.value_bytes} B {limit}",
        f"{shape}, {limit}",
        "records/s",
        systems,
        copy_topic,
        Stream(shape, per_trigger),
        (Target("jvm", "at least", 1.0),),
        _filled(shape),
    )


@dataclass(frozen=True)
class TypedSize:
    """How many records of 10 and of 50 fields are read on Spark; and of 10 fields by a slow client, and in memory.

    `skipped`: of 50 fields, where two are wanted. That is read so fast that of fewer the start of a query would be measured.
    """

    rounds: int
    narrow: int
    wide: int
    skipped: int
    slow: int
    in_memory: int


FULL_TYPED = TypedSize(5, 3_000_000, 600_000, 2_000_000, 300_000, 200_000)
QUICK_TYPED = TypedSize(3, 300_000, 60_000, 120_000, 50_000, 20_000)


def typed_cells(size: TypedSize) -> list[Cell]:
    """What `typed_read.py` measures. In memory there are a fifth as many wide values, as they have five times the fields."""
    narrow, wide = TypedShape("avro", 10, size.narrow), TypedShape("avro", 50, size.wide)
    texts = [TypedShape("json", 10, size.narrow // 3), TypedShape("json", 50, size.wide // 3)]
    few = size.in_memory // 5
    skipped = TypedShape("avro", 50, size.skipped, wanted=2)
    return [
        *(_typed("avro", shape, 2.0) for shape in (narrow, wide)),
        _typed("avro two", skipped, 5.0),
        replace(_typed("avro undecoded", skipped, 5.0), title="the same topic, as bytes", task=undecoded, targets=()),
        *(_typed("json", shape, 1.5) for shape in texts),
        _typed_topic(TypedTopic(narrow, size.slow)),
        *(_typed_local(TypedShape("avro", *each)) for each in ((10, size.in_memory), (50, few), (50, few, 2))),
    ]


def _typed(group: str, shape: TypedShape, times: float) -> Cell:
    target = (Target("jvm", "at least", times),)
    return Cell(
        f"typed {group}",
        f"{shape.fields}",
        str(shape),
        "records/s",
        TYPED_SPARK_SYSTEMS,
        typed_read,
        shape,
        target,
        _filled(shape),
    )


def _typed_topic(work: TypedTopic) -> Cell:
    target = (Target("confluent", "at least", 50.0),)
    title = f"{work.shape}, from a topic"
    setting = _filled(work.shape)
    return Cell("typed local", "topic", title, "records/s", TYPED_TOPIC_SYSTEMS, typed_topic, work, target, setting)


def _typed_local(shape: TypedShape) -> Cell:
    name = f"{shape.fields}" if shape.wanted is None else f"{shape.wanted} of {shape.fields}"
    target = (Target("confluent", "at least", 50.0),)
    title = f"{shape}, in memory"
    return Cell("typed local", name, title, "records/s", TYPED_LOCAL_SYSTEMS, typed_decode, shape, target, _nothing)


@contextmanager
def _nothing(_bootstrap: str) -> Iterator[None]:
    yield


def _filled(shape: Contents) -> Setting:
    return functools.partial(_fill, shape)


@contextmanager
def _fill(shape: Contents, bootstrap: str) -> Iterator[None]:
    fill(bootstrap, shape)
    yield


def _batch(shape: Shape, aggregate: bool) -> Cell:  # noqa: FBT001 - both values of a choice are meant
    sink = "aggregate" if aggregate else "noop"
    return Cell(
        "batch",
        f"{shape.value_bytes} B {shape.codec} {sink}",
        f"{shape}, to {'an aggregate' if aggregate else 'noop'}",
        "records/s",
        SPARK_SYSTEMS,
        batch_read,
        Read(shape, aggregate=aggregate),
        (Target("jvm", "at least", 2.2), Target("ceiling", "at least", 0.85)),
        _filled(shape),
    )


def _one_column(shape: Shape) -> Cell:
    return Cell(
        "value only",
        f"{shape.value_bytes} B {shape.codec}",
        f"{shape}, to noop",
        "records/s",
        SPARK_SYSTEMS,
        batch_read,
        Read(shape, columns=("value",)),
        (Target("jvm", "at least", 4.0),),
        _filled(shape),
    )


def _trigger(partitions: int, triggers: int) -> Cell:
    topic = f"bench-ticks-{partitions}p"
    return Cell(
        "trigger",
        f"{partitions} partitions",
        f"{partitions} partitions, a record in each every {TICK_S * 1000:.0f} ms",
        "ms",
        SPARK_SYSTEMS,
        trigger_time,
        Ticks(topic, partitions, triggers),
        (Target("jvm", "at most", 0.6),),
        functools.partial(trickling, topic=topic, partitions=partitions, interval_s=TICK_S),
    )


def _stream(shape: Shape, per_trigger: int | None) -> Cell:
    limit = "unlimited" if per_trigger is None else f"{per_trigger:,} a trigger"
    return Cell(
        "stream",
        limit,
        f"{shape.records:,} records of {shape}, {limit}",
        "records/s",
        SPARK_SYSTEMS,
        available_now,
        Stream(shape, per_trigger),
        (Target("jvm", "at least", 2.0),),
        _filled(shape),
    )


def _starts(shape: Shape) -> list[Cell]:
    target = (Target("jvm", "at most", 1.0), Target("ceiling", "at most more", 1.0))
    titles: tuple[tuple[str, str, Task], ...] = (
        ("first batch", "the first batch read of a new session", first_batch),
        ("first trigger", "the first trigger after a restart", first_trigger),
    )
    return [
        Cell("start", name, title, "s", SPARK_SYSTEMS, task, Start(shape), target, _filled(shape), fresh=True)
        for name, title, task in titles
    ]


def _settings(shape: Shape, triggers: int) -> list[Cell]:
    """Whether it helps to set Spark otherwise. Unix sockets carry records, checksum files cost what writes a checkpoint."""
    systems = ("headrace", *OTHERWISE_SET)
    read, trigger = _batch(shape, aggregate=False), _trigger(8, triggers)
    return [
        replace(read, group="settings read", systems=systems[:2], targets=()),
        replace(trigger, group="settings trigger", systems=systems, targets=()),
    ]


def _local(shape: Shape, slow_records: int) -> Cell:
    return Cell(
        "local",
        f"{shape.value_bytes} B {shape.codec}",
        str(shape),
        "records/s",
        LOCAL_SYSTEMS,
        local_read,
        LocalRead(shape, slow_records),
        tuple(Target(system, "at least", 10.0) for system in LOCAL_SYSTEMS[1:]),
        _filled(shape),
    )
