"""Kafka as a source and a sink.

`KafkaSource(...).batches()` reads Arrow record batches in the caller's own process, with no engine. `KafkaSink` writes exactly
once; its `config` is `ClientConfig.from_properties({"bootstrap.servers": ...})`.
"""

from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.read.source import KafkaBatches, KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.connectors.kafka.write.sink import AtLeastOnceKafkaSink, KafkaSink

__all__ = [
    "At",
    "AtLeastOnceKafkaSink",
    "ClientConfig",
    "Committed",
    "Earliest",
    "KafkaBatches",
    "KafkaSink",
    "KafkaSource",
    "KafkaSplit",
    "Latest",
    "Position",
    "Timestamp",
]
