"""Which versions of kafka-python are taken."""

import pytest

from headrace.connectors.kafka.client.wire import _check_version


@pytest.mark.parametrize("version", ["3.0.11", "3.1.0", "2.3.0", "4.0"])
def test_an_untried_kafka_python_is_refused_with_what_to_install(version):
    with pytest.raises(ImportError, match=r"pip install 'kafka-python>=3.0.12,<3.1'"):
        _check_version(version)


@pytest.mark.parametrize("version", ["3.0.12", "3.0.13", "3.0.99.post1"])
def test_a_tried_kafka_python_is_taken(version):
    _check_version(version)
