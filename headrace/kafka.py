"""Kafka as a source and a sink.

`KafkaSource("host:9092", topics=["flights"]).batches()` reads Arrow record batches in the caller's own process, with no engine.
`KafkaSink("host:9092", topic="out")` writes exactly once, `AtLeastOnceKafkaSink` at least once. A runner, or your own program,
drives them (`headrace.connectors.base.sink`). `KafkaLease`: where a Spark job's supervisors agree which of them leads.
"""

from headrace.connectors.base.dead_letters import DeadLetters
from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.client.sasl import SaslConfig
from headrace.connectors.kafka.lease import KafkaLease
from headrace.connectors.kafka.read.source import KafkaBatches, KafkaSource
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.sink import KafkaSink

__all__ = [
    "At", "AtLeastOnceKafkaSink", "Committed", "DeadLetters", "Earliest", "KafkaBatches", "KafkaLease", "KafkaSink",
    "KafkaSource", "KafkaSplit", "Latest", "Position", "SaslConfig", "Timestamp",
]  # fmt: skip
