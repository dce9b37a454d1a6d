"""Kafka as a source and a sink.

`KafkaSource(...).batches()` reads Arrow record batches in the caller's own process, with no engine. `KafkaSink` writes exactly
once; its `config` is `ClientConfig.from_properties({"bootstrap.servers": ...})`.
"""

from headrace.connectors.kafka.positions import At, Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.properties import ClientConfig
from headrace.connectors.kafka.sink import AtLeastOnceKafkaSink, KafkaSink
from headrace.connectors.kafka.source import KafkaBatches, KafkaSource
from headrace.connectors.kafka.split import KafkaSplit

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
