"""Kafka as a sink without transactions: rows by an idempotent producer, visible at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.base.dead_letters import parted
from headrace.connectors.base.guard import AllOrNothing
from headrace.connectors.base.immediate import ImmediateSink
from headrace.connectors.base.sink import Attempt, Transaction
from headrace.connectors.kafka.client.cluster import enduring_cluster
from headrace.connectors.kafka.write.encoding import TopicRows, record_encoder
from headrace.connectors.kafka.write.produce import BatchSender, idempotent_sender
from headrace.connectors.kafka.write.sink import KafkaSinkOptions
from headrace.connectors.kafka.write.transactions import Transactions


@dataclass(frozen=True)
class AtLeastOnceKafkaSink(KafkaSinkOptions, ImmediateSink):
    """Rows written by an idempotent producer, visible at once, and written again after a failure.

    Columns, and the arguments of `KafkaSinkOptions`, as `KafkaSink`.
    """

    def begin(self, attempt: Attempt) -> _AtLeastOnceTransaction:
        """Does no I/O before its first row."""
        return _AtLeastOnceTransaction(self)


class _AtLeastOnceTransaction(Transaction[Any]):
    def __init__(self, sink: AtLeastOnceKafkaSink) -> None:
        self._sink = sink
        self._sender: BatchSender | None = None
        self._rows: TopicRows | None = None
        self._whole = AllOrNothing(sink.bootstrap, "the writer", self.abort)

    def write(self, batch: pa.RecordBatch) -> None:
        self._whole.check_rows(batch)
        if batch.num_rows == 0:
            return
        rest, dead = parted(batch)
        rows = self._sink.encoded(rest)
        with self._whole.steps():
            self._send(rows, dead)

    def _send(self, rows: pa.RecordBatch, dead: pa.RecordBatch | None) -> None:
        if self._sender is None or self._rows is None:
            config, cluster = self._sink.config, enduring_cluster(self._sink.config)
            producer = Transactions(cluster).init_idempotent()
            self._sender = idempotent_sender(cluster)
            self._rows = TopicRows(cluster, self._sink.topic, lambda partitions: record_encoder(config, partitions, producer))
        self._rows.write(rows, self._sender, dead)

    def prepare(self) -> None:
        self._whole.check()
        try:
            if self._sender is not None and self._rows is not None:
                self._rows.flush(self._sender)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._whole.end() and self._sender is not None:
            self._sender.close()
            self._sender = None
