"""A record batch as two, for a topic that takes smaller ones only (KIP-126)."""

from __future__ import annotations

import pyarrow as pa

from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.format.decode import decode
from headrace.connectors.kafka.format.encode import Codec, EncodedBatch, RecordEncoder
from headrace.connectors.kafka.format.record_batch import stored_batches

_INT32_MAX = 0x7FFFFFFF
_COLUMNS = ("key", "value", "headers", "timestamp")


def halved(data: bytes | bytearray | memoryview, config: ClientConfig) -> list[EncodedBatch]:
    """The records of a batch of at least two in two batches, with its producer, sequences and codec, and the level of `config`.

    Their `partition` is 0: a batch does not say its own.
    """
    batch = next(stored_batches(memoryview(data)))
    decoded = decode(data, topic="", partition=0, start=0, columns=_COLUMNS, max_batch_bytes=_INT32_MAX)
    rows = pa.Table.from_batches([each.records for each in decoded]).combine_chunks().to_batches()[0]
    half = rows.num_rows // 2
    found: list[EncodedBatch] = []
    for part in (rows.slice(0, half), rows.slice(half)):
        encoder = RecordEncoder(
            1,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            transactional=batch.is_transactional,
            codec=Codec(batch.compression),
            max_batch_bytes=_INT32_MAX,
            compression_level=config.compression_level if batch.compression == config.compression_type else None,
            first_sequences={0: (batch.base_sequence + sum(each.records for each in found)) & _INT32_MAX},
        )
        found += [*encoder.append(part, 0), *encoder.flush()]
    return found
