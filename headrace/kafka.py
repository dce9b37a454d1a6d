"""Kafka as a source. `KafkaSource(...).batches()` reads Arrow record batches in the caller's own process, with no engine."""

from headrace.connectors.kafka.positions import At, Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.source import KafkaBatches, KafkaSource
from headrace.connectors.kafka.split import KafkaSplit

__all__ = [
    "At",
    "Committed",
    "Earliest",
    "KafkaBatches",
    "KafkaSource",
    "KafkaSplit",
    "Latest",
    "Position",
    "Timestamp",
]
