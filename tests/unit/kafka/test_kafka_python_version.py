"""Which versions of kafka-python are taken, and what it does without Python's assertions."""

import subprocess
import sys

import pytest

from headrace.connectors.kafka.client.wire import _check_version
from headrace.testing import FakeKafka

COUNT = """
import sys
from headrace.kafka import KafkaSource, Latest
print(sum(batch.num_rows for batch in KafkaSource(sys.argv[1], topics=["t"], stop=Latest()).batches()))
"""


@pytest.mark.parametrize("version", ["3.0.11", "3.1.0", "2.3.0", "4.0"])
def test_an_untried_kafka_python_is_refused_with_what_to_install(version):
    with pytest.raises(ImportError, match=r"pip install 'kafka-python>=3.0.12,<3.1'"):
        _check_version(version)


@pytest.mark.parametrize("version", ["3.0.12", "3.0.13", "3.0.99.post1"])
def test_a_tried_kafka_python_is_taken(version):
    _check_version(version)


@pytest.mark.full  # all modules are compiled again
def test_kafka_is_read_without_the_assertions_of_python():
    """Regression: kafka-python reads a byte in one, so the handshake failed, and the login was blamed."""
    with FakeKafka() as kafka:
        kafka.create_topic("t", partitions=1)
        kafka.append("t", b"a")
        command = [sys.executable, "-OO", "-c", COUNT, kafka.bootstrap]
        assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == "1\n"
