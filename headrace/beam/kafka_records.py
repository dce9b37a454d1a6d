"""The records that `ReadFromKafka` gives, as Beam knows them by their types."""

# No `from __future__ import annotations` here, and no `bytes | None`: Beam makes the schema of a row of its annotations, and of
# text and of unions it makes pickled objects, which neither SQL nor another language reads.

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import pyarrow as pa
from apache_beam.coders import RowCoder
from apache_beam.coders.typecoders import registry

_TYPE_NAMES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


class KafkaHeader(NamedTuple):
    """A header of a record."""

    key: str
    value: Optional[bytes]  # noqa: UP045 - see above


class KafkaRecord(NamedTuple):
    """A record with its metadata: names, order and types of Beam's rows.

    `timestamp` is in milliseconds since 1970, and -1 where it is null.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Optional[bytes]  # noqa: UP045 - see above
    value: Optional[bytes]  # noqa: UP045 - see above
    headers: Optional[Sequence[KafkaHeader]]  # noqa: UP045 - see above
    timestampTypeId: int  # noqa: N815 - Beam's name
    timestampTypeName: str  # noqa: N815 - Beam's name


registry.register_coder(KafkaRecord, RowCoder)


def as_pairs(batch: pa.RecordBatch) -> Iterable[tuple[bytes | None, bytes | None]]:
    return zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)


def as_kafka_records(batch: pa.RecordBatch) -> Iterable[KafkaRecord]:
    names = ("topic", "partition", "offset", "key", "value", "headers", "timestampType")
    columns = [batch.column(name).to_pylist() for name in names]
    times = [-1 if micros is None else micros // 1000 for micros in batch.column("timestamp").cast(pa.int64()).to_pylist()]
    return (
        KafkaRecord(topic, partition, offset, millis, key, value, _headers(headers), kind, _TYPE_NAMES[kind])
        for millis, topic, partition, offset, key, value, headers, kind in zip(times, *columns, strict=True)
    )


def _headers(headers: list[dict[str, Any]] | None) -> list[KafkaHeader]:
    return [KafkaHeader(header["key"], header["value"]) for header in headers or ()]
