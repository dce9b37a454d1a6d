"""Beam transforms that need no Java: `ReadFromSource` for any source, and what takes the place of `apache_beam.io.kafka`.

And the other way round, `BeamSource`: any bounded source of Beam as a source of headrace, for Spark
(`headrace.spark.read_source`) or your own process. Needs `pip install 'headrace[beam]'`.
"""

from headrace._extras import needs_extra as _needs_extra

with _needs_extra("beam", "apache_beam"):
    from headrace.beam.dead_letters import SplitDeadLetters
    from headrace.beam.kafka_read import ReadFromKafka
    from headrace.beam.kafka_records import KafkaHeader, KafkaRecord
    from headrace.beam.kafka_write import WriteToKafka
    from headrace.connectors.beam import BeamSource, schema_of
    from headrace.runners.beam.event_time import ColumnTime, EventTime, ProcessingTime
    from headrace.runners.beam.read import ReadFromSource
    from headrace.runners.beam.read_limit import Limit
    from headrace.runners.beam.write import WriteExactlyOnce

__all__ = [
    "BeamSource",
    "ColumnTime",
    "EventTime",
    "KafkaHeader",
    "KafkaRecord",
    "Limit",
    "ProcessingTime",
    "ReadFromKafka",
    "ReadFromSource",
    "SplitDeadLetters",
    "WriteExactlyOnce",
    "WriteToKafka",
    "schema_of",
]
