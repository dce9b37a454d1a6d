"""Random small plans over `format("headrace")`, and the same plans over a table in memory that has the same rows.

    python -m tests.values.plans --plans 20000

A case reads two views of a `FakeKafka` in one of some ways, and computes plans over them: in one action or in several, in
`foreachBatch`, or as streams. The oracle is Spark itself. Rows are compared as multisets of JSON texts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from headrace.spark import session_builder
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka.state.logs.batches import NewRecord
from tests.helpers.spark_tools import ROOT, stop_session

RESULTS = Path(__file__).with_name("results.json")
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # Plans are small, and each is another one: to compile them would take most of the time.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
KEYS = (None, b"", b"k0", b"k1", b"k2", b"\0\xff", "\u05d0\U0001f600".encode())
VALUES = (b"1", None, b"22", b"", b"-3", b"x" * 64, b"null", b"\0")
HEADERS: tuple[list[tuple[str, bytes | None]], ...] = ([], [("h", b"\1")], [("h", None), ("h", b"")], [("", b"x"), ("i", None)])
PAST_END = 2**60
"""Milliseconds beyond Spark's timestamps: null, by `badTimestamps=null`."""
TIMES = (0, 1, 1_700_000_000_000, 1_700_000_000_001, 253_402_300_800_000, 2**63 // 1000 - 1, PAST_END)
TOPICS = {"a": (17, 9, 0), "b": (23,)}
"""Topics that stay as they are: how many records their partitions have."""
GROWING = "g"
FOR_EVER = {"retention.ms": "-1"}
GROWING_SPLIT = (GROWING, 0)
GROWTH = 3
ROW_TYPE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


# --- plans: texts of SQL, in which @v and @w are the views ------------------------------------------------------------

LITERALS = {
    "key": ("X''", "X'6B30'", "X'6B32'", "X'00FF'"),
    "value": ("X''", "X'31'", "X'3232'", "X'7A'"),
    "topic": ("'a'", "'b'", "'g'", "'z'"),
    "partition": ("0", "1", "2", "7"),
    "offset": ("-1", "0", "4", "8", "16", "22", "9223372036854775807"),
    "timestamp": ("TIMESTAMP'1970-01-01'", "TIMESTAMP'2023-11-14 22:13:20'", "TIMESTAMP'9999-12-31 23:59:59.999999'"),
    "timestampType": ("0", "1"),
    "headers": ("array(named_struct('key', 'h', 'value', X'01'))", "array(named_struct('key', '', 'value', X'78'))"),
}
COMPARISONS = (
    "{c} = {l}",
    "{c} = {l}",
    "{c} = {l}",
    "{c} = {l}",
    "{c} <=> {l}",
    "{c} < {l}",
    "{c} >= {l}",
    "{c} BETWEEN {l} AND {m}",
    "{c} IN ({l}, {m})",
    "{c} NOT IN ({l}, {m})",
    "{c} IS NULL",
    "{c} IS NOT NULL",
    "{c} <=> NULL",
    "NOT ({c} = {l})",
)
CONDITIONS = (
    "timestamp IS NOT NULL",
    "timestamp IS NULL",
    "topic LIKE 'a%'",
    "length(value) > 1",
    "try_cast(CAST(value AS STRING) AS INT) > 0",
    "size(headers) = 1",
    "get(headers, 0).value IS NULL",
    "year(timestamp) > 2000",
    "offset % 2 = 0",
    "partition + offset = 4",
    "coalesce(key, value) IS NULL",
)
EXPRESSIONS = (
    *COLUMNS,
    "offset * 2 AS twice",
    "CAST(value AS STRING) AS text",
    "transform(headers, h -> h.key) AS names",
    "timestamp IS NULL AS timeless",
    "key IS NULL AS keyless",
    "coalesce(timestamp, TIMESTAMP'2000-01-01') AS at",
    "(SELECT max(offset) FROM @v) AS top",
    "(SELECT count(*) FROM @v WHERE partition = 1) AS ones",
    "(SELECT min(timestamp) FROM @w WHERE timestamp IS NOT NULL) AS first",
)
AGGREGATES = (
    "count(*)",
    "count(key)",
    "count(timestamp)",
    "sum(offset)",
    "min(timestamp)",
    "max(value)",
    "count(DISTINCT partition, topic)",
    "sort_array(collect_list(offset))",
    "count_if(timestamp IS NULL)",
    "count(*) FILTER (WHERE partition = 0)",
    "max_by(value, struct(topic, partition, offset))",
)
WINDOWS = (
    "row_number() OVER (PARTITION BY {p} ORDER BY topic, partition, offset)",
    "lag(value) OVER (PARTITION BY {p} ORDER BY topic, partition, offset)",
    "count(*) OVER (PARTITION BY {p})",
    "sum(offset) OVER (PARTITION BY {p} ORDER BY topic, partition, offset ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
)
SAME_RECORD = "x.topic = y.topic AND x.partition = y.partition AND x.offset = y.offset"


class Drawn:
    """Plans of what Hypothesis draws."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, options: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(options))

    def some(self, options: Sequence[str], most: int = 3) -> list[str]:
        return self._draw(st.lists(st.sampled_from(options), min_size=1, max_size=most, unique=True))

    def condition(self) -> str:
        column = self.pick((*COLUMNS, "topic", "partition", "offset"))
        one = self.pick(COMPARISONS).format(c=column, l=self.pick(LITERALS[column]), m=self.pick(LITERALS[column]))
        match self.pick(("", "", "AND", "OR", "other")):
            case "":
                return one
            case "other":
                return self.pick(CONDITIONS)
            case both:
                return f"({one}) {both} ({self.condition()})"

    def records(self, depth: int) -> str:
        """A relation of whole records: the same eight columns, some records twice, or not at all."""
        if depth == 0:
            return self.pick(("SELECT * FROM @v", "SELECT * FROM @v", "SELECT * FROM @w"))
        inner, where = f"({self.records(depth - 1)})", self.condition()
        match self.pick(("where", "where", "where", "union", "with", "set", "exists", "in", "scalar", "limit", "distinct")):
            case "where":
                return f"SELECT * FROM {inner} WHERE {where}"
            case "union":
                return f"(SELECT * FROM {inner} WHERE {where}) UNION ALL ({self.records(depth - 1)})"
            case "with":
                return f"WITH c AS {inner} SELECT * FROM c WHERE {where} UNION ALL SELECT * FROM c WHERE {self.condition()}"
            case "set":
                how = self.pick(("UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL"))
                return f"{inner} {how} (SELECT * FROM @v WHERE {where})"
            case "exists":
                no, on = self.pick(("", "NOT ")), self.pick((SAME_RECORD, "x.key = y.key", "x.offset = y.offset + 1"))
                return f"SELECT * FROM {inner} x WHERE {no}EXISTS (SELECT 1 FROM (SELECT * FROM @v WHERE {where}) y WHERE {on})"
            case "in":
                no, column = self.pick(("", "NOT ")), self.pick(("key", "offset", "timestamp"))
                return f"SELECT * FROM {inner} WHERE {column} {no}IN (SELECT {column} FROM @v WHERE {where})"
            case "scalar":
                least = self.pick(("max(offset)", "avg(offset)", "min(partition)"))
                return f"SELECT * FROM {inner} WHERE offset >= (SELECT {least} FROM @v WHERE {where})"
            case "limit":
                how = self.pick(("LIMIT 1", "LIMIT 7", "LIMIT 7 OFFSET 3"))
                return f"SELECT * FROM {inner} ORDER BY topic, partition, offset {self.pick(('', 'DESC '))}{how}"
            case _:
                return f"SELECT DISTINCT * FROM {inner}"

    def plan(self) -> str:
        rows = f"({self.records(self.pick((0, 1, 1, 1, 2)))})"
        match self.pick(("records", "project", "project", "aggregate", "aggregate", "join", "join", "window")):
            case "records":
                return f"SELECT * FROM {rows}"
            case "project":
                return f"SELECT {', '.join(self.some(EXPRESSIONS))} FROM {rows}"
            case "aggregate":
                found, by = ", ".join(self.some(AGGREGATES)), ", ".join(self.some(COLUMNS[:7], 2))
                return self.pick((f"SELECT {found} FROM {rows}", f"SELECT {by}, {found} FROM {rows} GROUP BY {by}"))
            case "join":
                how, other = self.pick(("JOIN", "JOIN", "LEFT JOIN", "FULL JOIN")), self.records(self.pick((0, 1)))
                columns = ", ".join(f"x.{a}, y.{b} AS {b}2" for a, b in [(self.pick(COLUMNS), self.pick(COLUMNS))])
                return f"SELECT x.offset, {columns} FROM {rows} x {how} ({other}) y ON {SAME_RECORD}"
            case _:
                by = self.pick(("topic", "key", "partition", "timestamp"))
                return f"SELECT topic, partition, offset, {self.pick(WINDOWS).format(p=by)} AS n FROM {rows}"

    def reading(self) -> Reading:
        starts = {name: [self.pick((0, 0, min(1, size), size // 2, size)) for size in sizes] for name, sizes in TOPICS.items()}
        sizes = {
            name: [self.pick((size, size, max(start, size - 1))) for start, size in zip(starts[name], counts, strict=True)]
            for name, counts in TOPICS.items()
        }
        chosen = self.pick((("a", "b"), ("a", "b"), ("a",), ("b",)))
        ranges = {
            (name, number): (start, end)
            for name in chosen
            for number, (start, end) in enumerate(zip(starts[name], sizes[name], strict=True))
        }
        return Reading(ranges, self.pick(({}, {}, {"minPartitions": "3"}, {"maxRecordsPerPartition": "5"})))


@dataclass(frozen=True)
class Reading:
    """(first offset, end) by topic and partition, and what else is asked of the read."""

    ranges: dict[tuple[str, int], tuple[int, int]]
    options: dict[str, str]


@dataclass(frozen=True)
class Case:
    """Two reads; how they are used: `view`, `sql`, `cached`, `batches`, `stream`; and the plans of each action."""

    pushdown: bool
    how: str
    v: Reading
    w: Reading
    grows: bool
    actions: list[list[str]]
    stream: Stream


@dataclass(frozen=True)
class Stream:
    """A streaming query: `sql` over the views, in which `distinct` columns are dropped by, in batches of `most` offsets."""

    sql: str
    mode: str
    distinct: list[str]
    most: int | None


@st.composite
def cases(draw: st.DrawFn, most_plans: int = 12) -> Case:
    """Cases with at most this many plans in an action."""
    drawn = Drawn(draw)
    how = drawn.pick(("view",) * 12 + ("sql", "sql", "cached", "cached", "batches", "stream"))
    actions = 1 if how in ("batches", "stream") else drawn.pick((1, 2, 3))
    plans = [[drawn.plan() for _ in range(max(1, most_plans // actions))] for _ in range(actions)]
    grows = how == "view" and drawn.pick((False, False, True))
    return Case(drawn.pick((False, True, True)), how, drawn.reading(), drawn.reading(), grows, plans, _stream(drawn))


def _stream(drawn: Drawn) -> Stream:
    where, most = drawn.condition(), drawn.pick((None, None, 11))
    match drawn.pick(("where", "union", "static", "self", "aggregate", "aggregate", "distinct")):
        case "where":
            return Stream(f"SELECT {', '.join(drawn.some(COLUMNS))} FROM @v WHERE {where}", "append", [], most)
        case "union":
            sql = f"SELECT * FROM @v WHERE {where} UNION ALL SELECT * FROM @v WHERE {drawn.condition()}"
            return Stream(sql, "append", [], most)
        case "static":
            of_static = f"SELECT * FROM @w WHERE {where} UNION ALL SELECT * FROM @w WHERE {drawn.condition()}"
            return Stream(f"SELECT x.*, y.value AS other FROM @v x JOIN ({of_static}) y ON {SAME_RECORD}", "append", [], most)
        case "self":
            sql = f"SELECT x.*, y.value AS other FROM @v x JOIN (SELECT * FROM @v WHERE {where}) y ON {SAME_RECORD}"
            return Stream(sql, "append", [], most)
        case "aggregate":
            by = ", ".join(drawn.some(COLUMNS[:7], 2))
            found = ", ".join(drawn.some([each for each in AGGREGATES if "DISTINCT" not in each]))
            mode = "complete" if most else drawn.pick(("complete", "update"))
            return Stream(f"SELECT {by}, {found} FROM @v WHERE {where} GROUP BY {by}", mode, [], most)
        case _:
            by = ["timestamp", *drawn.some(("topic", "partition", "key", "value"))]
            # Spark's watermark is never before 1970: a row of its first moment is late.
            near = "timestamp > TIMESTAMP'1970-01-01' AND timestamp < TIMESTAMP'2100-01-01'"
            sql = f"SELECT {', '.join(by)} FROM @v WHERE {near} AND ({where})"
            return Stream(sql, "append", by, most)


# --- what runs them -----------------------------------------------------------------------------------------------------


class DifferenceError(AssertionError):
    """A plan gave other rows than the oracle."""


class Bench:
    """A session, a Kafka with the topics, and the oracle's table. One case after the other."""

    def __init__(self, spark: SparkSession, kafka: FakeKafka, name: str = "headrace") -> None:
        """`name`: of the format under test."""
        self.spark, self.format = spark, name
        self.counts: Counter[str] = Counter()
        self._kafka, self._numbers = kafka, count()
        self._rows = {
            (topic, number): self._fill(topic, number, size)
            for topic, sizes in TOPICS.items()
            for number, size in enumerate(sizes)
        }
        kafka.create_topic(GROWING, configs=FOR_EVER)

    def pushes(self, case: Case) -> bool:
        """Not where a topic grows: with that setting Spark plans each use with a filter again, with later ends."""
        return case.pushdown and not case.grows

    def play(self, case: Case) -> None:
        """Raises DifferenceError."""
        self.counts["cases"] += 1
        self.counts[case.how] += 1
        self.spark.conf.set(PUSHDOWN, str(self.pushes(case)).lower())
        grown = GROWING_SPLIT, (self._end(), self._end() + GROWTH)
        v = Reading(case.v.ranges | dict([grown]), case.v.options) if case.grows else case.v
        if case.grows:
            self._grow()
        try:
            self._oracle(self.spark, "ov", v.ranges)
            self._oracle(self.spark, "ow", case.w.ranges)
            self._batch("w", case.w, "view")
            if case.how == "batches":
                self._play_batches(case)
            elif case.how == "stream":
                self._play_stream(case)
            else:
                self._batch("v", v, case.how)
                for number, plans in enumerate(case.actions):
                    # What is first asked plans the view: records that come later are in none of its uses.
                    asked = ["SELECT topic, partition, count(*) FROM @v GROUP BY 1, 2", *plans] if number == 0 else plans
                    self._compare(self.spark, asked)
                    if case.grows and number == 0:
                        self._grow()
        finally:
            self.spark.catalog.clearCache()

    def _fill(self, topic: str, partition: int, size: int) -> list[dict[str, Any]]:
        if partition == 0:
            self._kafka.create_topic(topic, partitions=len(TOPICS[topic]), configs=FOR_EVER)
        rows = []
        for offset in range(size):
            number = offset * 3 + partition + len(topic)
            key, value, at = KEYS[number % len(KEYS)], VALUES[number % len(VALUES)], TIMES[number * 5 % len(TIMES)]
            headers = HEADERS[number // 2 % len(HEADERS)]
            self._kafka.append(topic, NewRecord(value, key, headers, at), partition=partition)
            shown = [{"key": name, "value": data} for name, data in headers] or None
            time_us = None if at == PAST_END else at * 1000
            rows.append(dict(zip(COLUMNS, (key, value, topic, partition, offset, time_us, 0, shown), strict=True)))
        return rows

    def _end(self) -> int:
        return self._kafka.offsets(GROWING)[2]

    def _grow(self) -> None:
        self._kafka.append(GROWING, *(NewRecord(b"g", None, (), 1000) for _ in range(GROWTH)))

    def _oracle(self, spark: SparkSession, name: str, ranges: dict[tuple[str, int], tuple[int, int]]) -> None:
        rows = [row for split, (start, end) in ranges.items() if split != GROWING_SPLIT for row in self._rows[split][start:end]]
        for offset in range(*ranges.get(GROWING_SPLIT, (0, 0))):
            rows.append(dict(zip(COLUMNS, (None, b"g", GROWING, 0, offset, 1_000_000, 0, None), strict=True)))
        spark.createDataFrame(pa.Table.from_pylist(rows, schema=ROW_TYPE)).createOrReplaceTempView(name)

    def _options(self, reading: Reading, *, stream: bool = False) -> dict[str, str]:
        def named(which: int) -> str:
            found: dict[str, dict[str, int]] = {}
            for (topic, number), bounds in reading.ranges.items():
                found.setdefault(topic, {})[str(number)] = -1 if which and topic == GROWING else bounds[which]
            return json.dumps(found)

        options = {
            "kafka.bootstrap.servers": self._kafka.bootstrap,
            "subscribe": ",".join(sorted({topic for topic, _ in reading.ranges})),
            "includeHeaders": "true",
            "badTimestamps": "null",
            "startingOffsets": named(0),
            **reading.options,
        }
        return options if stream else {**options, "endingOffsets": named(1)}

    def _batch(self, name: str, reading: Reading, how: str) -> None:
        options = self._options(reading)
        if how == "sql":
            given_ = ", ".join(f"`{key}` '{value}'" for key, value in options.items())
            self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING {self.format} OPTIONS ({given_})")
            return
        frame = self.spark.read.format(self.format).options(**options).load()
        (frame.cache() if how == "cached" else frame).createOrReplaceTempView(name)

    def _compare(self, spark: SparkSession, plans: Sequence[str]) -> None:
        with ThreadPoolExecutor() as threads:
            both = threads.map(lambda prefix: _rows(spark, [plan.replace("@", prefix) for plan in plans]), ("", "o"))
            ours, theirs = both
        self.counts["plans"] += len(plans)
        for number, plan in enumerate(plans):
            _check(plan, ours[number], theirs[number])

    def _play_batches(self, case: Case) -> None:
        whole: dict[tuple[str, int], tuple[int, int]] = {}

        def each(frame: DataFrame, batch: int) -> None:
            spark = frame.sparkSession
            frame.createOrReplaceTempView("v")
            found = spark.sql("SELECT topic, partition, min(offset), max(offset) + 1 FROM v GROUP BY ALL").collect()
            ranges = {(row[0], row[1]): (row[2], row[3]) for row in found}
            for split, (start, end) in ranges.items():
                whole[split] = (whole.get(split, (start, end))[0], end)
                if start != (before := done.get(split, start)):
                    raise DifferenceError(f"batch {batch} starts at {split} {start}, the last one ended at {before}")
                done[split] = end
            self._oracle(spark, "ov", ranges)
            self._compare(spark, case.actions[0])

        done: dict[tuple[str, int], int] = {}
        self._run(self._stream_frame(case).writeStream.foreachBatch(each))
        expected = {split: bounds for split, bounds in self._to_end(case.v).items() if bounds[0] < bounds[1]}
        if whole != expected:
            raise DifferenceError(f"the batches have {whole}, not {expected}")

    def _play_stream(self, case: Case) -> None:
        self._stream_frame(case).createOrReplaceTempView("v")
        self._oracle(self.spark, "ov", self._to_end(case.v))
        stream, name = case.stream, f"out{next(self._numbers)}"
        frame, distinct = (
            self.spark.sql(re.sub(r"\boffset\b", "`offset`", stream.sql.replace("@", ""))),
            stream.sql.replace("@", "o"),
        )
        if stream.distinct:
            frame = frame.withWatermark("timestamp", "36500 days").dropDuplicates(stream.distinct)
            distinct = f"SELECT DISTINCT * FROM ({distinct})"
        self._run(frame.writeStream.format("memory").queryName(name).outputMode(stream.mode))
        ours, theirs = _rows(self.spark, [f"SELECT * FROM {name}", distinct])
        self.spark.catalog.dropTempView(name)
        self.counts["plans"] += 1
        _check(str(stream), ours, theirs)

    def _to_end(self, reading: Reading) -> dict[tuple[str, int], tuple[int, int]]:
        return {(topic, number): (start, TOPICS[topic][number]) for (topic, number), (start, _) in reading.ranges.items()}

    def _stream_frame(self, case: Case) -> DataFrame:
        options = self._options(case.v, stream=True)
        if case.stream.most is not None:
            options["maxOffsetsPerTrigger"] = str(case.stream.most)
        return self.spark.readStream.format(self.format).options(**options).load()

    def _run(self, writer: Any) -> None:
        with tempfile.TemporaryDirectory() as checkpoint:
            writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def _rows(spark: SparkSession, plans: Sequence[str]) -> list[Counter[str]]:
    """By plan, all in one action."""
    as_text = "to_json(struct(*), map('ignoreNullFields', 'false'))"
    whole = " UNION ALL ".join(f"SELECT {number} AS plan, {as_text} AS row FROM ({plan})" for number, plan in enumerate(plans))
    found: list[Counter[str]] = [Counter() for _ in plans]
    for number, row in spark.sql(re.sub(r"\boffset\b", "`offset`", whole)).collect():
        found[number][row] += 1
    return found


def _check(plan: str, ours: Counter[str], theirs: Counter[str]) -> None:
    if ours != theirs:
        more, less = list((ours - theirs).elements()), list((theirs - ours).elements())
        raise DifferenceError(f"{plan}\n{len(more)} rows too many: {more[:3]}\n{len(less)} rows missing: {less[:3]}")


def start_session() -> SparkSession:
    """One of `session_builder()`."""
    return _session(session_builder)


def start_plain_session() -> SparkSession:
    """As a user makes one who has not read our pages."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return _session(lambda: SparkSession.builder)


def _session(builder: Callable[[], SparkSession.Builder]) -> SparkSession:
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    session = builder().master("local[4]").appName("plans").config(map=SETTINGS).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def search(play: Callable[[Case], object], number: int, examples: int, most_plans: int) -> None:
    """Play as many cases, those of this seed. Raises DifferenceError for the first that differs."""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(cases(most_plans))
    def search_(case: Case) -> None:
        play(case)

    search_()


# --- the long run --------------------------------------------------------------------------------------------------------

SEED_CASES = 40
TURN_S = 600.0


def main() -> None:
    """Continue from the results: their seed and their counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", type=int, default=20_000, help="in all, those of the results included")
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("HEADRACE_VALUES_MINUTES", "600")))
    arguments = parser.parse_args()
    end, run = time.monotonic() + arguments.minutes * 60, LongRun(arguments.plans)
    for kind in cycle(SESSIONS):
        if run.done or time.monotonic() > end:
            break
        run.turn(kind, min(end, time.monotonic() + TURN_S))
    raise SystemExit(bool(run.found))


SESSIONS = {"builder": start_session, "plain": start_plain_session}


class LongRun:
    """Counts of the results file, and more of them."""

    def __init__(self, plans: int) -> None:
        kept = self._kept().get("plans", {"counts": {}, "found": [], "next_seed": 0})
        self.counts: Counter[str] = Counter(kept["counts"])
        self.found: list[str] = kept["found"]
        self._seed, self._plans = kept["next_seed"], plans

    @property
    def done(self) -> bool:
        return self.counts["plans"] >= self._plans

    def turn(self, kind: str, end: float) -> None:
        """With a session of this kind, until this time at the latest."""
        session = SESSIONS[kind]()
        with FakeKafka() as kafka:
            bench = Bench(session, kafka)

            def play(case: Case) -> None:
                if not self.done and time.monotonic() < end:
                    bench.counts.clear()
                    bench.play(case)
                    self.counts += bench.counts
                    self.counts[f"plans of {kind} sessions"] += bench.counts["plans"]
                    self.counts[f"plans with pushdown {'on' if bench.pushes(case) else 'off'}"] += bench.counts["plans"]
                    self._write()

            while not self.done and time.monotonic() < end:
                self._seed += 1
                try:
                    search(play, self._seed, SEED_CASES, 20)
                except Exception as error:  # noqa: BLE001 - whatever a plan ends with
                    self.found.append(f"seed {self._seed}: {error}"[:2000])
                    self._write()
        stop_session(session)

    def _write(self) -> None:
        kept = self._kept()
        kept["plans"] = {"counts": self.counts, "found": self.found, "next_seed": self._seed}
        RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")

    def _kept(self) -> dict[str, Any]:
        return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


if __name__ == "__main__":
    main()
