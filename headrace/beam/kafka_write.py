"""`WriteToKafka`: the arguments of `apache_beam.io.kafka.WriteToKafka`, and how often a record may be written."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from headrace.connectors.base.arguments import mapping, truth
from headrace.connectors.beam.values import UNFIT, array_of, fields_of, same_but_for_units
from headrace.connectors.formats.value_format import ValueFormat
from headrace.connectors.kafka.client.sasl import SaslConfig
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.encoding import without_origin
from headrace.connectors.kafka.write.names import DEFAULT_PREFIX
from headrace.connectors.kafka.write.sink import KafkaSink
from headrace.enumerator.errors import UsageError
from headrace.runners.beam.write import WriteExactlyOnce, WriteImmediately

log: logging.Logger = logging.getLogger(__name__)

BATCH_RECORDS = 10_000
BATCH_BYTES = 4 << 20
"""A batch is handed on once it has this many records, or this many bytes of keys, values and headers, whichever is first."""
_PAIR_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_ROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("topic", pa.string()),
    ]
)


class WriteToKafka(beam.PTransform[Any, Any]):
    """Writes records to Kafka from Python: change the import from `apache_beam.io.kafka`, and no Java runs.

    Elements are pairs of bytes `(key, value)`, either may be None; with `with_headers` Beam rows that have `key` and `value`
    and may have `headers`, `topic`, `partition`, `timestamp`; or Arrow record batches with any of these columns. `topic` is for
    rows that name none, and for those with an `offset`, whose topic and partition are where they were read. Times, Beam's too,
    are cut to the milliseconds of Kafka or the unit of their format; any other value that would be changed is an error.

    Ours:

    - delivery: "at-least-once" (default): a bundle that fails is written again. Every runner. "exactly-once": readers with
      `isolation.level=read_committed` see each record once, two to three checkpoints after it was read. Flink only, with the
      options --checkpointing_interval, --min_pause_between_checkpoints (at least 500, in milliseconds) and
      --finish_bundle_before_checkpointing; others that break the promise are refused by name.
    - transactional_id_prefix: what all transactional ids start with, with exactly-once; default "headrace".
    - transaction_timeout_ms: after this many milliseconds the broker aborts what was not committed, with exactly-once: longer
      than an outage of the job. Default: transaction.timeout.ms of producer_config, else 15 minutes.
    - sasl: a `headrace.kafka.SaslConfig`, in place of the properties that say who logs in.
    - value_format, key_format: formats of `headrace.formats` that encode values and keys; default None: they are bytes. Batches
      then have typed columns, and a value may be a Beam row, a named tuple or a dict with the fields of the format.
    - num_shards: how many transactions are written in parallel, with exactly-once; default 4. Records of one key, or that
      name one partition, go through the same, and so keep their order.

    `producer_config` has the Java producer's names: bootstrap.servers, security.protocol, sasl.*, ssl.*, compression.type,
    ...

    Differences: serializers other than the byte-array one are refused by name, encode in a Map; `expansion_service` is ignored
    with a warning. Raises UsageError, when the pipeline is built, for what cannot be honoured.
    """

    byte_array_serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"

    def __init__(
        self,
        producer_config: Mapping[str, Any],
        topic: str,
        key_serializer: str = byte_array_serializer,
        value_serializer: str = byte_array_serializer,
        with_headers: bool = False,  # noqa: FBT001, FBT002 - Beam's argument
        expansion_service: object = None,
        *,
        delivery: Literal["at-least-once", "exactly-once"] = "at-least-once",
        transactional_id_prefix: str | None = None,
        transaction_timeout_ms: int | None = None,
        sasl: SaslConfig | None = None,
        num_shards: int | None = None,
        value_format: ValueFormat | None = None,
        key_format: ValueFormat | None = None,
    ) -> None:
        """See the class."""
        super().__init__()
        truth("with_headers", with_headers)
        for name, serializer in (("key_serializer", key_serializer), ("value_serializer", value_serializer)):
            if serializer != self.byte_array_serializer:
                raise UsageError(
                    f"{name}={serializer!r} is a Java class, and no Java runs here: give keys and values as bytes, "
                    "encode them in a Map"
                )
        if expansion_service is not None:
            log.warning("WriteToKafka ignores expansion_service: no Java is used")
        if delivery not in ("at-least-once", "exactly-once"):
            raise UsageError(f'delivery must be "at-least-once" or "exactly-once", not {delivery!r}')
        properties = _properties(producer_config)
        bootstrap = properties.pop("bootstrap.servers")
        # A row may name its topic, and the one given is for those that do not.
        self._topic = topic
        options: dict[str, Any] = {
            "topic": None if with_headers else topic,
            "properties": properties,
            "sasl": sasl,
            "value": value_format,
            "key": key_format,
        }
        self._write: beam.PTransform
        if delivery == "at-least-once":
            of_transactions = {
                "transactional_id_prefix": transactional_id_prefix,
                "transaction_timeout_ms": transaction_timeout_ms,
                "num_shards": num_shards,
            }
            if given := [name for name, value in of_transactions.items() if value is not None]:
                raise UsageError(f"{', '.join(given)} are of transactions: give delivery='exactly-once' too")
            self._write = WriteImmediately(AtLeastOnceKafkaSink(bootstrap, **options))
        else:
            sink = KafkaSink(
                bootstrap,
                transactional_id_prefix=DEFAULT_PREFIX if transactional_id_prefix is None else transactional_id_prefix,
                transaction_timeout_ms=transaction_timeout_ms,
                **options,
            )
            self._write = WriteExactlyOnce(sink, num_shards)
        self._with_headers = with_headers
        self._formats = {"key": key_format, "value": value_format}

    def expand(self, pcoll: Any) -> Any:
        """Called by Beam."""
        to_batches = beam.ParDo(_ToBatches(self._topic if self._with_headers else None, self._formats))
        batches = (
            pcoll
            | "InGlobalWindow" >> beam.WindowInto(GlobalWindows())
            | "ToBatches" >> to_batches.with_output_types(pa.RecordBatch)
        )
        return batches | "WriteToSink" >> self._write


def _properties(producer_config: Mapping[str, Any]) -> dict[str, str]:
    """Names and values as the Java producer has them; UsageError names what cannot be honoured."""
    mapping("producer_config", producer_config)
    given = {str(name).lower(): str(value) for name, value in producer_config.items()}
    for name in ("key.serializer", "value.serializer"):
        if name in given:
            raise UsageError(f"producer_config must not hold {name}: the argument {name.replace('.', '_')} says it")
    if "transactional.id" in given:
        raise UsageError(
            "producer_config must not hold transactional.id, as many transactions are written in parallel: "
            "give delivery='exactly-once' and transactional_id_prefix"
        )
    if "bootstrap.servers" not in given:
        raise UsageError("producer_config must hold bootstrap.servers")
    return given


class _ToBatches(beam.DoFn):
    """Pairs, rows and batches to batches, within a bundle.

    `row_topic`: of rows that name none; None where pairs come. `formats`: of key and value, where they are typed.
    """

    def __init__(self, row_topic: str | None, formats: Mapping[str, ValueFormat | None]) -> None:
        self._row_topic = row_topic
        self._types = {name: each.arrow_type for name, each in formats.items() if each is not None}
        self._waiting: list[dict[str, Any]] = []
        self._bytes = 0

    def start_bundle(self) -> None:
        self._waiting, self._bytes = [], 0

    def process(self, element: Any) -> Iterator[pa.RecordBatch]:
        if isinstance(element, pa.RecordBatch):
            yield element if self._row_topic is None else _with_topic(element, self._row_topic)
            return
        row = _pair(element) if self._row_topic is None else _row(element, self._row_topic)
        for name in ("key", "value"):
            value = row[name]
            if value is not None and not isinstance(value, bytes) and name not in self._types:
                kind = type(value).__name__
                raise UsageError(f"WriteToKafka takes a {name} of bytes, not {kind}: give {name}_format, or encode it in a Map")
        self._waiting.append(row)
        self._bytes += _size(row)
        if len(self._waiting) >= BATCH_RECORDS or self._bytes >= BATCH_BYTES:
            yield self._batch()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._waiting:
            yield GlobalWindows.windowed_value_at_end_of_window(self._batch())

    def _batch(self) -> pa.RecordBatch:
        rows, self._waiting, self._bytes = self._waiting, [], 0
        schema = _PAIR_SCHEMA if self._row_topic is None else _ROW_SCHEMA
        columns = {}
        for name, kind in zip(schema.names, schema.types, strict=True):
            try:
                columns[name] = array_of([row[name] for row in rows], self._types.get(name, kind), name, same_but_for_units)
            except UNFIT as error:
                what = "keys or values do not fit their format" if name in self._types else f"{name} does not fit {kind}"
                raise UsageError(f"WriteToKafka: {what}: {error}") from error
        return pa.record_batch(columns)


def _pair(element: Any) -> dict[str, Any]:
    try:
        key, value = element
    except (TypeError, ValueError):
        raise UsageError(f"WriteToKafka takes pairs (key, value), not {type(element).__name__}") from None
    return {"key": key, "value": value}


def _row(element: Any, topic: str) -> dict[str, Any]:
    headers, timestamp = getattr(element, "headers", None), getattr(element, "timestamp", None)
    is_read = hasattr(element, "offset")
    try:
        return {
            "key": element.key,
            "value": element.value,
            "headers": None if headers is None else [{"key": header.key, "value": header.value} for header in headers],
            "partition": None if is_read else getattr(element, "partition", None),
            "timestamp": None if is_read and timestamp == -1 else timestamp,  # as `KafkaRecord` has it
            "topic": topic if is_read else getattr(element, "topic", None) or topic,
        }
    except AttributeError as error:
        kind = type(error.obj).__name__
        what = "WriteToKafka with with_headers takes rows, and headers, with a key and a value"
        raise UsageError(f"{what}, not {kind}") from None


def _with_topic(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """For rows that name none."""
    batch = without_origin(batch)
    place = batch.schema.get_field_index("topic")
    if place < 0:
        return batch.append_column("topic", pa.repeat(topic, batch.num_rows))
    named = batch.column(place)
    return batch.set_column(place, "topic", pc.fill_null(named.cast(pa.string()), topic)) if named.null_count else batch


def _size(row: Mapping[str, Any]) -> int:
    headers = row.get("headers") or ()
    return sum(_weight(part) for item in (row, *headers) for part in (item["key"], item["value"]))


def _weight(value: Any) -> int:
    if isinstance(value, bytes | str):
        return len(value)
    fields = fields_of(value)
    if fields is not None:
        return sum(map(_weight, fields.values()))
    return sum(map(_weight, value)) if isinstance(value, list | tuple) else 8
