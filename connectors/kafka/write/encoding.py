"""From rows to record batches: columns that no record has left out, rows to their topics, records into batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.nested import plain, plain_type
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.format.encode import MAX_BATCH_BYTES, Codec, EncodedBatch, RecordEncoder
from headrace.connectors.kafka.write.produce import BatchSender, OutBatch
from headrace.connectors.kafka.write.transactions import Producer
from headrace.enumerator.errors import UsageError

TOPIC_COLUMN = "topic"
_TEXTS = (pa.string(), pa.large_string(), pa.null())
_OF_NO_RECORD = ("offset", "timestampType")
_READ_FROM = (*_OF_NO_RECORD, "partition", TOPIC_COLUMN)


def without_origin(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without what no record has. Rows with an offset are as a source has read them: where that was is left out, too."""
    left_out = _READ_FROM if "offset" in rows.schema.names else _OF_NO_RECORD
    return rows.drop_columns([name for name in left_out if name in rows.schema.names])


def record_encoder(config: ClientConfig, partitions: int, producer: Producer) -> RecordEncoder:
    """For the topic of so many partitions, in the name of this producer."""
    # As in Java, a batch.size of 0 gives every record its own batch, and a batch has to fit a request.
    batch_bytes = MAX_BATCH_BYTES if config.batch_size is None else max(1, config.batch_size)
    return RecordEncoder(
        partitions,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transactional=producer.transactional_id is not None,
        codec=Codec(config.compression_type),
        max_batch_bytes=min(batch_bytes, config.max_request_size or batch_bytes),
        compression_level=config.compression_level,
    )


class TopicRows:
    """Rows on their way to record batches: an encoder for each topic, all for one producer."""

    def __init__(
        self, cluster: KafkaCluster, topic: str | None, encoder: Callable[[int], RecordEncoder], commit_topic: str | None = None
    ) -> None:
        """`encoder` makes one for this many partitions. No row may name the `commit_topic`."""
        self._cluster, self._topic, self._encoder, self._commit_topic = cluster, topic, encoder, commit_topic
        self._encoders: dict[str, RecordEncoder] = {}

    def write(self, rows: pa.RecordBatch, sender: BatchSender, dead: pa.RecordBatch | None = None) -> None:
        """Make batches, and send what is full. Of `dead` each names its topic, also where all other rows have one."""
        now_ms = time.time_ns() // 1_000_000
        others = [] if dead is None else each_to_its_own(dead)
        for topic, part in [*(self._by_topic(rows) if rows.num_rows else ()), *others]:
            if topic == self._commit_topic:
                raise UsageError(f"a row names the topic {topic!r}, which holds the lists of transactions: choose another one")
            if topic not in self._encoders:
                partitions = len(self._cluster.topics([topic])[topic].partitions)
                self._encoders[topic] = self._encoder(partitions)
            sender.send(topic, self._out(topic, self._encoders[topic].append(part, now_ms)))

    def push(self, sender: BatchSender) -> None:
        """Send all rows, full batches or not."""
        for topic, encoder in self._encoders.items():
            sender.send(topic, self._out(topic, encoder.flush()))
        sender.push()

    def flush(self, sender: BatchSender) -> None:
        for topic, encoder in self._encoders.items():
            sender.send(topic, self._out(topic, encoder.flush()))
        sender.flush()

    def _out(self, topic: str, encoded: Sequence[EncodedBatch]) -> list[OutBatch]:
        """Raises UsageError for a record that alone is more than a request may hold."""
        most = self._cluster.config.max_request_size
        for batch in encoded:
            if most is not None and batch.records == 1 and len(batch.data) > most:
                raise UsageError(
                    f"a record for {topic}-{batch.partition} takes {len(batch.data)} bytes, and max.request.size is {most}: "
                    "raise it, and max.message.bytes of the topic if need be"
                )
        return [OutBatch(batch.partition, batch.data, batch.records) for batch in encoded]

    def _by_topic(self, rows: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        has_column = TOPIC_COLUMN in rows.schema.names
        if self._topic is not None:
            return [(self._topic, rows.drop_columns([TOPIC_COLUMN]) if has_column else rows)]
        if not has_column:
            raise UsageError(
                f"no topic: give the option 'topic', or a column {TOPIC_COLUMN!r}; there are {rows.schema.names}. "
                "With a column 'offset' it is where the row was read, and is not written to"
            )
        return each_to_its_own(rows)


def topic_names(rows: pa.RecordBatch) -> pa.StringArray:
    """Of the rows' own column, which may be any kind of text. Raises UsageError for another, and for a row without one."""
    names = rows.column(TOPIC_COLUMN)
    if plain_type(names.type) not in _TEXTS:
        raise UsageError(f"column {TOPIC_COLUMN!r} must be string, and is {names.type}; cast it")
    names = plain(names).cast(pa.string())
    if names.null_count:
        raise UsageError(f"null topic present in the data: {names.null_count} of {rows.num_rows} rows have none")
    return names


def each_to_its_own(rows: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, without its name."""
    names, rest = topic_names(rows), rows.drop_columns([TOPIC_COLUMN])
    return [(name, rest.filter(pc.equal(names, name))) for name in names.unique().to_pylist()]
