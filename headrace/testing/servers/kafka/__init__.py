"""Real Kafka brokers for tests, benchmarks and trying things out: `with start_broker() as cluster: ...`.

Where they come from, in this order: the cluster that HEADRACE_BOOTSTRAP names; containers, where a Docker engine
answers; Apache Kafka itself, downloaded once by the Ivy inside PySpark and run by the machine's Java.
"""

from headrace.testing.servers.kafka.brokers import BrokerCluster
from headrace.testing.servers.kafka.security import Certificates
from headrace.testing.servers.kafka.start import start_broker
from headrace.testing.servers.kafka.topics import add_partitions, create_topic, delete_topic

__all__ = ["BrokerCluster", "Certificates", "add_partitions", "create_topic", "delete_topic", "start_broker"]
