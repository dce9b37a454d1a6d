"""`ReadFromKafka`: the arguments and the output of `apache_beam.io.kafka.ReadFromKafka`, and some of our own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from headrace.beam.kafka_records import KafkaRecord, as_kafka_records, as_pairs
from headrace.beam.typed_rows import AsRows, row_type
from headrace.connectors.base.arguments import at_least, mapping, text, truth
from headrace.connectors.formats.value_format import ValueFormat
from headrace.connectors.kafka.client.positions import Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.sasl import SaslConfig
from headrace.connectors.kafka.format.decode import ALL_COLUMNS, MAX_UNCOMPRESSED_BYTES, BadTimestamps
from headrace.connectors.kafka.read.bad_batches import BadBatches
from headrace.connectors.kafka.read.discovery import NoMatch, Positions
from headrace.connectors.kafka.read.source import DISCOVERY_INTERVAL_S, KafkaSource
from headrace.connectors.kafka.read.typed import BadRecords
from headrace.enumerator.errors import UsageError
from headrace.runners.beam.event_time import ColumnTime, EventTime, ProcessingTime
from headrace.runners.beam.read import READ_S, ReadFromSource, to_records
from headrace.runners.beam.read_limit import Limit

log: logging.Logger = logging.getLogger(__name__)

Output = Literal["records", "arrow", "rows"]
"""What elements are: pairs or KafkaRecords, record batches, or rows with a Beam schema."""

FETCH_BUDGET_BYTES = 32 << 20
"""Bound on what one reader holds fetched ahead, in bytes: it has many partitions, and a process has a reader for each slot."""

_EARLIEST = Earliest()


@dataclass(frozen=True, slots=True)
class LogAppendTime:
    """The broker's time of appending; an error for topics that keep the producer's."""

    def micros(self, batch: pa.RecordBatch) -> pa.Int64Array:
        kinds = batch.column("timestampType")
        if not pc.all(pc.equal(kinds, 1)).as_py():  # 1 is LogAppendTime
            topic = batch.column("topic")[0].as_py()
            raise UsageError(
                f"timestamp_policy LogAppendTime needs topics with message.timestamp.type=LogAppendTime, and {topic} "
                "has records without it; set that on the topic, or use CreateTime"
            )
        return ColumnTime("timestamp").micros(batch)


class ReadFromKafka(beam.PTransform[Any, Any]):
    """Reads Kafka topics: change the import from `apache_beam.io.kafka`, and no Java is needed.

    Arguments, defaults and output are those of Beam's transform: `(key, value)` tuples of bytes, or with `with_metadata` named
    tuples with the fields of Beam's rows (`KafkaRecord`). `consumer_config` has the Java client's property names; where reading
    starts is, in this order: `start_read_time` (milliseconds since 1970), the committed offsets of `group.id`,
    `auto.offset.reset` (default latest).

    What differs, because no Java runs here:

    - deserializers other than the byte-array ones, and `consumer_factory_fn_class`, are refused by name; decode in a Map.
    - `expansion_service` is ignored with a warning; `consumer_polling_timeout` and `allow_duplicates` have no effect.
    - `enable.auto.commit=true` is taken as `commit_offset_in_finalize`: an offset is committed once what was read up to it is
      durable. On Flink that is two completed checkpoints later, since its runner finalises bundles ahead of the checkpoint; so
      there a read with an end takes two checkpoints longer, and without --checkpointing_interval it is refused.
    - a partition that appears is read from its first record, looked for every `dynamic_read_poll_interval_seconds` (default
      300).

    Beyond it, all by keyword, the arguments of `headrace.kafka.KafkaSource` with its defaults (`pattern` and `partitions` need
    `topics=None`; with a `stop` the read ends there by itself), but:

    - `start`: default None, what Beam's arguments say; a position overrides them all.
    - `isolation_level`: default None, the property `isolation.level`, else read_uncommitted, as for the Java client;
      `KafkaSource` itself has read_committed.
    - `bad_timestamps`: "null" keeps a record whose timestamp does not fit 64-bit microseconds, which is an error by default; it
      is -1 in a `KafkaRecord`, and such a record happens at the beginning of time.
    - `bad_batches`, `max_uncompressed_batch_bytes`: as for `KafkaSource`.
    - `fetch_budget_bytes`: default 32 MiB, as a process has a reader for each slot.
    - `value_format`, `key_format`, `on_bad_record`: `value`, `key` and `on_bad_record` of `KafkaSource`, for typed columns.
      They need `output="arrow"` or `"rows"`. With "keep" the columns that tell of bad records are there by default.

    And of our own: `output="arrow"` for record batches with `columns`; `output="rows"` for an element a record, a Beam row with
    the same columns and a schema that Beam's SQL and other languages read; `read_s`, how long one call reads, in seconds;
    `num_readers`, how many readers share the partitions (default: the pipeline's option --parallelism, else 4);
    `start_from_savepoint`, path or URI of a savepoint of `headrace run` that a job without state starts with, in place of all
    that says where reading starts. It is read when the pipeline is built.

    Raises UsageError for what cannot be honoured, when the pipeline is built, in the caller's thread, and StateError for a
    savepoint of another source or a damaged one. Does no I/O then.
    """

    byte_array_deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    processing_time_policy = "ProcessingTime"
    create_time_policy = "CreateTime"
    log_append_time = "LogAppendTime"

    def __init__(
        self,
        consumer_config: Mapping[str, Any],
        topics: Sequence[str] | None = None,
        key_deserializer: str = byte_array_deserializer,
        value_deserializer: str = byte_array_deserializer,
        start_read_time: int | None = None,
        max_num_records: int | None = None,
        max_read_time: float | None = None,
        commit_offset_in_finalize: bool = False,  # noqa: FBT001, FBT002 - Beam's argument
        timestamp_policy: str = processing_time_policy,
        consumer_polling_timeout: float | None = 2,
        with_metadata: bool = False,  # noqa: FBT001, FBT002 - Beam's argument
        expansion_service: object = None,
        redistribute: bool = False,  # noqa: FBT001, FBT002 - Beam's argument
        redistribute_num_keys: int = 0,
        allow_duplicates: bool = False,  # noqa: FBT001, FBT002 - Beam's argument
        dynamic_read_poll_interval_seconds: float | None = None,
        consumer_factory_fn_class: str | None = None,
        consumer_factory_fn_params: Mapping[str, Any] | None = None,
        *,
        pattern: str | None = None,
        partitions: Mapping[str, Sequence[int]] | None = None,
        start: Positions | None = None,
        start_of_new_partitions: Position = _EARLIEST,
        stop: Positions | None = None,
        isolation_level: str | None = None,
        sasl: SaslConfig | None = None,
        fail_on_data_loss: bool = True,
        columns: Sequence[str] | None = None,
        fetch_budget_bytes: int = FETCH_BUDGET_BYTES,
        no_match: NoMatch = "latest",
        bad_timestamps: BadTimestamps = "error",
        bad_batches: BadBatches = "error",
        max_uncompressed_batch_bytes: int = MAX_UNCOMPRESSED_BYTES,
        value_format: ValueFormat | None = None,
        key_format: ValueFormat | None = None,
        on_bad_record: BadRecords = "fail",
        output: Output = "records",
        read_s: float = READ_S,
        num_readers: int | None = None,
        start_from_savepoint: str | None = None,
    ) -> None:
        super().__init__()
        _no_java(expansion_service, key_deserializer, value_deserializer, consumer_factory_fn_class, consumer_factory_fn_params)
        _refuse_contradictions(output, with_metadata, columns, (value_format, key_format))
        config = _Config.of(consumer_config, commit=commit_offset_in_finalize)
        self._event_time = _event_time(timestamp_policy)
        limit = None if max_num_records is None and max_read_time is None else Limit(max_num_records, max_read_time)
        source = KafkaSource(
            config.bootstrap,
            topics=topics,
            pattern=pattern,
            partitions=partitions,
            start=config.start(start_read_time) if start is None else start,
            start_of_new_partitions=start_of_new_partitions,
            stop=stop,
            **config.arguments(isolation_level, sasl),
            fail_on_data_loss=fail_on_data_loss,
            discovery_interval_s=dynamic_read_poll_interval_seconds or DISCOVERY_INTERVAL_S,
            fetch_budget_bytes=fetch_budget_bytes,
            no_match=no_match,
            bad_timestamps=bad_timestamps,
            max_uncompressed_batch_bytes=max_uncompressed_batch_bytes,
        )
        source = replace(source, value=value_format, key=key_format, on_bad_record=on_bad_record, bad_batches=bad_batches)
        source = _with_columns(source, columns, _columns(output, with_metadata, self._event_time), self._event_time)
        self._read = _read(source, self._event_time, limit, read_s, num_readers, start_from_savepoint, publish=config.commit)
        self._redistribution = _redistribution(redistribute, redistribute_num_keys, allow_duplicates)
        self._elements = _elements(output, with_metadata, source.schema, self._event_time)

    def expand(self, pbegin: Any) -> Any:
        """Called by Beam."""
        batches = pbegin | "ReadFromSource" >> self._read
        if self._redistribution is not None:
            batches = batches | "Redistribute" >> self._redistribution
        if self._elements is None:
            return batches
        label, made = self._elements
        return batches | label >> made


@dataclass(frozen=True, slots=True)
class _Config:
    """A consumer configuration, taken apart: what says how to read, and `properties`, what says how to connect."""

    bootstrap: str
    group: str | None
    isolation_level: str
    reset: str
    commit: bool
    properties: Mapping[str, str]

    @classmethod
    def of(cls, consumer_config: Mapping[str, Any], *, commit: bool) -> _Config:
        """Names and values as the Java consumer has them; `commit`: offsets are committed, whatever the configuration says.

        Raises UsageError naming what cannot be honoured.
        """
        mapping("consumer_config", consumer_config)
        truth("commit_offset_in_finalize", commit)
        given = {str(name).lower(): _text(value) for name, value in consumer_config.items()}
        for name in ("key.deserializer", "value.deserializer"):
            if name in given:
                raise UsageError(f"consumer_config must not hold {name}: the argument {name.replace('.', '_')} says it")
        reset = given.pop("auto.offset.reset", "latest").lower()
        if reset not in ("earliest", "latest"):
            raise UsageError(f"auto.offset.reset must be earliest or latest, not {reset!r}")
        auto_commit = given.pop("enable.auto.commit", "false").lower()
        if auto_commit not in ("true", "false"):
            raise UsageError(f"enable.auto.commit must be true or false, not {auto_commit!r}")
        if auto_commit == "true":
            log.warning(
                "enable.auto.commit=true is taken as commit_offset_in_finalize: offsets are committed when they are durable"
            )
        if "bootstrap.servers" not in given:
            raise UsageError("consumer_config must hold bootstrap.servers")
        commit = commit or auto_commit == "true"
        if commit and "group.id" not in given:
            raise UsageError("committing offsets needs a group: set group.id in consumer_config")
        return cls(
            given.pop("bootstrap.servers"),
            given.pop("group.id", None),
            given.pop("isolation.level", str(Isolation.READ_UNCOMMITTED)),
            reset,
            commit,
            given,
        )

    def arguments(self, isolation_level: str | None, sasl: SaslConfig | None) -> dict[str, Any]:
        """What of it are arguments of the source; `isolation_level`, `sasl`: those that are said otherwise."""
        level = self.isolation_level if isolation_level is None else isolation_level
        return {"group": self.group, "isolation_level": level, "properties": self.properties, "sasl": sasl}

    def start(self, start_read_time: int | None) -> Position:
        """KafkaIO's order: the time, the group's committed offsets, auto.offset.reset."""
        if start_read_time is not None:
            at_least("start_read_time", start_read_time, 0)
            return Timestamp(start_read_time)
        reset = Earliest() if self.reset == "earliest" else Latest()
        return reset if self.group is None else Committed(self.group, fallback=reset)


def _read(
    source: KafkaSource,
    event_time: EventTime,
    limit: Limit | None,
    read_s: float,
    num_readers: int | None,
    start_from_savepoint: str | None,
    *,
    publish: bool,
) -> ReadFromSource:
    return ReadFromSource(
        source,
        output="arrow",
        event_time=event_time,
        discovery_interval_s=source.discovery_interval_s,
        publish=publish,
        limit=limit,
        read_s=read_s,
        num_readers=num_readers,
        start_from_savepoint=start_from_savepoint,
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _no_java(
    expansion_service: object,
    key_deserializer: str,
    value_deserializer: str,
    factory_class: str | None,
    factory_params: Mapping[str, Any] | None,
) -> None:
    """Raise UsageError for what only Java could do; an expansion service is ignored, and said to be."""
    if expansion_service is not None:
        log.warning("ReadFromKafka ignores expansion_service: no Java is used")
    for name, deserializer in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
        if deserializer != ReadFromKafka.byte_array_deserializer:
            raise UsageError(
                f"{name}={deserializer!r} is a Java class, and no Java runs here: "
                "keys and values come as bytes, decode them in a Map"
            )
    if factory_class is not None or factory_params is not None:
        raise UsageError(
            "consumer_factory_fn_class names a Java class, and no Java runs here: give what it would set in consumer_config"
        )


def _refuse_contradictions(
    output: str,
    with_metadata: bool,  # noqa: FBT001 - passed on
    columns: Sequence[str] | None,
    formats: Sequence[ValueFormat | None],
) -> None:
    truth("with_metadata", with_metadata)
    if output not in get_args(Output):
        raise UsageError(f'output must be "records", "arrow" or "rows", not {output!r}')
    if with_metadata and output != "records":
        raise UsageError(f'with_metadata is for output="records"; with output="{output}" name the columns')
    if columns is not None and output == "records":
        raise UsageError('columns is for output="arrow" and output="rows"')
    if output == "records" and any(each is not None for each in formats):
        raise UsageError('value_format and key_format are for output="arrow" and output="rows", which have typed columns')


def _redistribution(
    redistribute: bool,  # noqa: FBT001 - Beam's arguments, as they were given
    redistribute_num_keys: int,
    allow_duplicates: bool,  # noqa: FBT001
) -> beam.PTransform[Any, Any] | None:
    truth("redistribute", redistribute)
    truth("allow_duplicates", allow_duplicates)  # which changes nothing
    at_least("redistribute_num_keys", redistribute_num_keys, 0)
    return beam.Reshuffle(redistribute_num_keys or None) if redistribute else None


def _elements(
    output: str,
    with_metadata: bool,  # noqa: FBT001 - passed on
    schema: pa.Schema,
    event_time: EventTime,
) -> tuple[str, Any] | None:
    """The stage, with its name, that makes elements of batches; None where these are the elements."""
    if output == "arrow":
        return None
    if output == "rows":
        return "ToRows", to_records(AsRows(schema), event_time, row_type(schema))
    if with_metadata:
        return "ToRecords", to_records(as_kafka_records, event_time, KafkaRecord)
    return "ToPairs", to_records(as_pairs, event_time, tuple[bytes | None, bytes | None])


def _event_time(timestamp_policy: str) -> EventTime:
    policies: dict[str, EventTime] = {
        ReadFromKafka.processing_time_policy: ProcessingTime(),
        ReadFromKafka.create_time_policy: ColumnTime("timestamp"),
        ReadFromKafka.log_append_time: LogAppendTime(),
    }
    if text("timestamp_policy", timestamp_policy) not in policies:
        raise UsageError(f"timestamp_policy must be one of {', '.join(policies)}, not {timestamp_policy!r}")
    return policies[timestamp_policy]


def _columns(output: str, with_metadata: bool, event_time: EventTime) -> Sequence[str]:  # noqa: FBT001 - passed on
    if output != "records":
        return ALL_COLUMNS
    if with_metadata:
        return (*ALL_COLUMNS, "headers")
    match event_time:
        case ColumnTime(column):
            return ("key", "value", column)
        case LogAppendTime():
            return ("key", "value", "topic", "timestamp", "timestampType")
    return ("key", "value")


def _with_columns(
    source: KafkaSource, asked: Sequence[str] | None, default: Sequence[str], event_time: EventTime
) -> KafkaSource:
    """The source with the columns that are asked for, or the default ones and those that tell of bad records."""
    source = source.with_columns([*default, *source.typed.bad_columns()] if asked is None else asked)
    needed = set(_columns("records", with_metadata=False, event_time=event_time)) - {"key", "value"}
    if missing := sorted(needed - set(source.schema.names)):
        raise UsageError(f"timestamp_policy needs the columns {', '.join(missing)}: add them to columns")
    return source
