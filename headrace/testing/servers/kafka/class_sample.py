"""The broker whose classes are kept (class_archive.py): it is written to in a transaction, and read by a group.

    python -m headrace.testing.servers.kafka.class_sample FILE

It ends once the broker's JVM has ended, which then has written the file.
"""

from __future__ import annotations

import sys

from kafka import KafkaConsumer, KafkaProducer

from headrace.runners.spark_processes.class_archives import QUIET
from headrace.testing.servers.kafka.class_archive import MAKES_ARCHIVE
from headrace.testing.servers.kafka.start import start_broker
from headrace.testing.servers.kafka.topics import create_topic

TOPIC = "sample"
RECORDS = 100
READ_S = 30


def main(file: str) -> None:
    with start_broker(jvm_options=("-Xmx512m", f"{MAKES_ARCHIVE}{file}", QUIET)) as cluster:
        create_topic(cluster.bootstrap, TOPIC)
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=TOPIC)
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.send(TOPIC, str(number).encode())
        producer.commit_transaction()
        producer.close()
        consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=cluster.bootstrap,
            group_id=TOPIC,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=READ_S * 1000,
        )
        for _, _ in zip(range(RECORDS), consumer, strict=False):
            pass
        consumer.commit()
        consumer.close()
        for node in cluster.nodes:
            cluster.stop(node)


if __name__ == "__main__":
    main(sys.argv[1])
