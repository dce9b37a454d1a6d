"""Writing from Beam without a broker: what is refused by name, and at-least-once bundles on the local runner."""

from __future__ import annotations

from collections import Counter, defaultdict
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.sdf_utils import RestrictionTrackerView, ThreadsafeRestrictionTracker
from hypothesis import given
from hypothesis import strategies as st

from headrace.beam import WriteToKafka
from headrace.beam.kafka_write import BATCH_BYTES, _ToBatches
from headrace.connectors.base.sink import TwoPhaseSink
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.delta import DeltaSink
from headrace.enumerator.errors import FencedError, UsageError
from headrace.files import FileSink
from headrace.runners.beam.coders import RecordBatchCoder
from headrace.runners.beam.shard import CLEAN_UP_S
from headrace.runners.beam.write import PACK_BYTES, Shards, ShardsCoder, WriteExactlyOnce, _Heartbeats, _Pack
from headrace.sinks import Changes
from headrace.testing.memory_sink import MemorySink, MemoryTransactionLog
from tests.helpers.beam_shards import Runner

CONFIG = {"bootstrap.servers": "host:9092"}
FLINK = ["--runner=FlinkRunner", "--streaming"]
CHECKPOINTS = "--checkpointing_interval=1000"
FINISH = "--finish_bundle_before_checkpointing"
PAUSE = "--min_pause_between_checkpoints=500"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"key_serializer": "org.apache.kafka.common.serialization.LongSerializer"}, "key_serializer=.*LongSerializer"),
        ({"value_serializer": "org.apache.kafka.common.serialization.LongSerializer"}, "value_serializer=.*LongSerializer"),
        ({"delivery": "at-most-once"}, "delivery must be .*at-most-once"),
        ({"num_shards": 2}, "num_shards are of transactions: give delivery='exactly-once'"),
        ({"transactional_id_prefix": "a", "transaction_timeout_ms": 5}, "prefix, transaction_timeout_ms are of"),
        ({"delivery": "exactly-once", "num_shards": 0}, "shards must be a whole number, at least 1, not 0"),
        ({"delivery": "exactly-once", "transactional_id_prefix": "a b"}, "a b"),
        ({"producer_config": {}}, r"bootstrap\.servers"),
        ({"producer_config": {**CONFIG, "value.serializer": "x"}}, "value_serializer says it"),
        ({"producer_config": {**CONFIG, "transactional.id": "x"}}, "transactional_id_prefix"),
        ({"producer_config": {**CONFIG, "no.such.property": "x"}}, "no.such.property"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        WriteToKafka(**{"producer_config": CONFIG, "topic": "t", **arguments})


def test_a_byte_array_serializer_by_name_is_the_default() -> None:
    name = "org.apache.kafka.common.serialization.ByteArraySerializer"
    WriteToKafka(CONFIG, "t", name, name)


KAFKA = KafkaSink("host:9092", topic="t")


def packs_of(stage: _Pack, *bundle: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    stage.start_bundle()
    packs = [pack for element in bundle for pack in stage.process(element)]
    packs += [item.value for item in stage.finish_bundle()]
    assert list(stage.finish_bundle()) == []
    return [(shard, RecordBatchCoder().decode(rows)) for shard, rows in packs]


def test_a_bundle_becomes_few_packs() -> None:
    small = pa.RecordBatch.from_pydict({"value": [b"x"]})
    other = pa.RecordBatch.from_pydict({"value": [b"y"], "timestamp": pa.array([1], pa.timestamp("ms"))})
    large = pa.RecordBatch.from_pydict({"value": [b"z" * PACK_BYTES]})
    packs = packs_of(_Pack(KAFKA, 3), small, small, other, large, small)  # a schema is a pack's, and what is large goes at once
    assert [rows.num_rows for _, rows in packs] == [2, 1, 1, 1]


def test_packs_without_keys_go_to_the_shards_in_turn() -> None:
    stage, rows = _Pack(KAFKA, 3), pa.RecordBatch.from_pydict({"value": [b"x"]})
    assert {shard for _ in range(3) for shard, _ in packs_of(stage, rows)} == {0, 1, 2}
    large = pa.RecordBatch.from_pydict({"value": [b"z" * PACK_BYTES]})
    assert {shard for shard, _ in packs_of(stage, large, large, large)} == {0, 1, 2}


@given(
    st.integers(1, 5),
    st.lists(st.lists(st.lists(st.sampled_from([None, b"", b"a", b"b", b"c", b"d"]), max_size=9), max_size=4), max_size=4),
)
def test_records_of_one_key_stay_in_one_shard_and_in_order(shards: int, bundles: list[list[list[bytes | None]]]) -> None:
    stage, count = _Pack(KAFKA, shards), 0
    written: dict[bytes | None, list[int]] = defaultdict(list)
    found: dict[bytes | None, list[tuple[int, int]]] = defaultdict(list)
    for bundle in bundles:
        elements = []
        for keys in bundle:
            numbers = range(count, count := count + len(keys))
            columns = {"key": pa.array(keys, pa.binary()), "value": [b"%d" % n for n in numbers]}
            elements.append(pa.RecordBatch.from_pydict(columns))
            for key, number in zip(keys, numbers, strict=True):
                written[key].append(number)
        for shard, rows in packs_of(stage, *(element for element in elements if element.num_rows)):
            for row in rows.to_pylist():
                found[row["key"]].append((shard, int(row["value"])))
    for key, numbers in written.items():
        if key is None:
            assert sorted(number for _, number in found[key]) == numbers
        else:
            (shard,) = {shard for shard, _ in found[key]}
            assert found[key] == [(shard, number) for number in numbers]


def test_a_partition_that_a_row_names_is_of_one_shard() -> None:
    partitions = pa.array([7, None, 7, 4, None], pa.int32())
    rows = pa.RecordBatch.from_pydict({"value": [b"x"] * 5, "key": [b"a", b"a", b"b", b"a", None], "partition": partitions})
    by_key = KAFKA.shards_of(rows.drop_columns(["partition"]), 3).to_pylist()
    assert KAFKA.shards_of(rows, 3).to_pylist() == [1, by_key[1], 1, 1, None]


@pytest.mark.parametrize("column", ["key", "partition"])
def test_a_column_of_another_type_is_named_before_it_is_sharded(column: str) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"x"], column: [1.5]})
    with pytest.raises(UsageError, match=f"column '{column}' must be .* and is double"):
        list(_Pack(KAFKA, 2).process(rows))


def test_shards_of_before_a_restore_are_called_though_there_are_fewer_now() -> None:
    stage = _Heartbeats(2)
    tracker = RestrictionTrackerView(ThreadsafeRestrictionTracker(stage.create_tracker(stage.initial_restriction(Shards(5)))))
    assert list(stage.process(Shards(5), tracker)) == [(shard, b"") for shard in range(5)]
    assert ShardsCoder().decode(ShardsCoder().encode(Shards(5))) == Shards(5)


def test_shards_of_any_earlier_time_are_called() -> None:
    left = OffsetRange(3, 1 << 62)  # after three calls of a job that had one shard
    for shards, called in (1, 1), (4, 4), (1, 4), (2, 4):
        stage = _Heartbeats(shards)
        tracker = ThreadsafeRestrictionTracker(stage.create_tracker(left))
        assert list(stage.process(Shards(1), RestrictionTrackerView(tracker))) == [(shard, b"") for shard in range(called)]
        left = tracker.deferred_status()[0]


@pytest.mark.parametrize("sink", [MemorySink(MemoryTransactionLog()), DeltaSink("table")])
def test_each_use_of_one_transform_has_transactions_of_other_names(sink: TwoPhaseSink[Any]) -> None:
    write = WriteExactlyOnce(sink)
    pipeline = beam.Pipeline(options=PipelineOptions([*FLINK, CHECKPOINTS, FINISH, PAUSE]))
    batches = pipeline | beam.Create([], reshuffle=False)
    for use in "ab":
        _ = batches | use >> write
    writers = DoFns()
    pipeline.visit(writers)
    runs = [stage._run for stage in writers.found if hasattr(stage, "_run")]
    assert len(set(runs)) == 2
    assert Counter(runs)[runs[0]] == len(runs) / 2


class DoFns(PipelineVisitor):
    def __init__(self) -> None:
        self.found: list[beam.DoFn] = []

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        if isinstance(transform_node.transform, beam.ParDo):
            self.found.append(transform_node.transform.fn)


def exactly_once(options: list[str], runner: str | None = None, sink: Any = None) -> None:
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions(options))
    batches = pipeline | beam.Impulse() | beam.Map(lambda _: pa.RecordBatch.from_pydict({"value": [b"x"]}))
    _ = batches | WriteExactlyOnce(sink or MemorySink(MemoryTransactionLog()))


into_table = partial(exactly_once, sink=DeltaSink("table"))


def test_a_table_has_no_shards_and_takes_no_changes_by_key() -> None:
    with pytest.raises(UsageError, match="DeltaSink is written where its rows are, and has no shards"):
        WriteExactlyOnce(DeltaSink("table"), 2)
    with pytest.raises(UsageError, match=r"DeltaSink with changes by key may refuse an epoch.*Write changes by key from Spark"):
        WriteExactlyOnce(DeltaSink("table", changes=Changes(("id",))))


def test_a_sink_that_cleans_up_only_when_it_has_fenced_is_written_and_a_zombie_is_shut_out(tmp_path: Path) -> None:
    runner = Runner(FileSink(str(tmp_path)))
    runner.call(["a"])
    runner.checkpointed()
    runner.call(["b"])
    zombie = copy(runner)
    runner.restored()
    runner.call(["b"])
    runner.quiet()
    assert sorted(pq.read_table(path)["value"].to_pylist() for path in tmp_path.glob("*.parquet")) == [[b"a"], [b"b"]]
    assert not list(tmp_path.glob(f"_headrace/{runner.job}/*"))
    zombie.now_s += CLEAN_UP_S
    with pytest.raises(FencedError):
        zombie.call()


DATAFLOW = ["--project=project", "--region=region", "--temp_location=gs://bucket/t", "--staging_location=gs://bucket/s"]


@pytest.mark.parametrize("runner", ["DirectRunner", "PrismRunner", "SparkRunner", "DataflowRunner"])
def test_exactly_once_names_the_runner_that_cannot(runner: str) -> None:
    with pytest.raises(UsageError, match=r"exactly-once' needs Flink's checkpoints, and \w*Runner takes none.*at-least-once"):
        exactly_once([CHECKPOINTS, FINISH, *DATAFLOW], runner)


@pytest.mark.parametrize(
    ("options", "named"),
    [([FINISH, PAUSE], "--checkpointing_interval"), ([CHECKPOINTS, PAUSE], FINISH), ([CHECKPOINTS, FINISH], PAUSE)],
)
def test_exactly_once_names_the_option_that_is_missing(options: list[str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        exactly_once([*FLINK, *options])


def test_exactly_once_refuses_transactions_that_time_out_first() -> None:
    sink = KafkaSink(CONFIG["bootstrap.servers"], topic="t", transaction_timeout_ms=2000)
    with pytest.raises(UsageError, match=r"time out after 2 s, and are committed 2 checkpoints or more after .* 2 s here"):
        exactly_once([*FLINK, CHECKPOINTS, FINISH, PAUSE], sink=sink)


def test_exactly_once_is_taken_by_flink_with_its_options() -> None:
    exactly_once([*FLINK, CHECKPOINTS, FINISH, PAUSE])
    into_table([*FLINK, CHECKPOINTS, FINISH, PAUSE])


def test_a_table_is_refused_where_others_are_and_with_unaligned_checkpoints() -> None:
    with pytest.raises(UsageError, match=r"needs Flink's checkpoints, and .*Runner takes none"):
        into_table([CHECKPOINTS, FINISH, PAUSE], "DirectRunner")
    with pytest.raises(UsageError, match=r"writing a table .*\n.*--checkpointing_interval"):
        into_table([*FLINK, FINISH, PAUSE])
    unaligned = "--unaligned_checkpoint_enabled"
    with pytest.raises(UsageError, match=f"{unaligned}: leave it out"):
        into_table([*FLINK, CHECKPOINTS, FINISH, PAUSE, unaligned])
    exactly_once([*FLINK, CHECKPOINTS, FINISH, PAUSE, unaligned])


@pytest.mark.parametrize(
    ("element", "named"),
    [(7, "pairs .*not int"), ((b"k", "text"), "value of bytes, not str"), ((1, b"v"), "key of bytes, not int")],
)
def test_elements_that_are_no_bytes_are_named(element: object, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        list(_ToBatches(None, {}).process(element))


def test_pairs_become_batches_of_a_bundle_and_batches_pass() -> None:
    stage = _ToBatches(None, {})
    stage.start_bundle()
    batch = pa.RecordBatch.from_pydict({"value": [b"x"]})
    assert list(stage.process(batch)) == [batch]
    assert list(stage.process((None, b"1"))) == []
    assert list(stage.process((b"k", None))) == []
    (out,) = stage.finish_bundle()
    assert out.value.to_pylist() == [{"key": None, "value": b"1"}, {"key": b"k", "value": None}]
    assert list(stage.finish_bundle()) == []


@pytest.mark.parametrize("headers", [False, True])
def test_records_of_220_kb_are_batched_by_their_bytes_and_not_by_10000(headers: bool) -> None:
    """10,000 of them are 2.2 GB, which no column of Arrow's `binary` holds: TypeError."""
    stage = _ToBatches("t" if headers else None, {})
    stage.start_bundle()
    large = b"x" * 220_000
    row = beam.Row(key=None, value=None, headers=[beam.Row(key="h", value=large)])
    batches = [batch for _ in range(100) for batch in stage.process(row if headers else (b"k", large))]
    batches += [item.value for item in stage.finish_bundle()]
    assert sum(batch.num_rows for batch in batches) == 100
    assert max(batch.nbytes for batch in batches) < BATCH_BYTES + 300_000


def test_flink_drops_the_fraction_of_a_pause_and_shards_are_still_not_called_without_a_pause() -> None:
    stage = _Heartbeats(2)
    tracker = ThreadsafeRestrictionTracker(stage.create_tracker(stage.initial_restriction(Shards(2))))
    list(stage.process(Shards(2), RestrictionTrackerView(tracker)))
    _, pause = tracker.deferred_status()
    assert int(pause.micros / 1e6) == 1


def test_rows_keep_headers_partition_timestamp_and_topic() -> None:
    stage = _ToBatches("default", {})
    stage.start_bundle()
    row = beam.Row(key=b"k", value=b"v", headers=[beam.Row(key="h", value=b"1")], topic="own", partition=3, timestamp=5)
    assert list(stage.process(row)) + list(stage.process(beam.Row(key=None, value=b"w"))) == []
    (out,) = stage.finish_bundle()
    first, second = out.value.to_pylist()
    assert (first["topic"], first["partition"], first["headers"]) == ("own", 3, [{"key": "h", "value": b"1"}])
    assert first["timestamp"].timestamp() == 0.005
    assert second == {"key": None, "value": b"w", "headers": None, "partition": None, "timestamp": None, "topic": "default"}
