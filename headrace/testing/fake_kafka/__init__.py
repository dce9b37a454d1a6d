"""A Kafka cluster in this process, over real sockets: for tests of jobs that read and write Kafka, and of what goes wrong.

    from headrace.testing import FakeKafka

    with FakeKafka() as kafka:
        kafka.create_topic("orders")
        ...

`state` is the brokers' memory and rules, without any I/O; `api` has one module for each API key; `dispatch` and `server` are
the way to a socket. Every answer is held against a real broker's by tests/integration/kafka/test_fake_kafka_against_kafka.py.
"""

from headrace.testing.fake_kafka.clock import Clock, StoppedClock
from headrace.testing.fake_kafka.codes import ErrorCode
from headrace.testing.fake_kafka.faults import (
    Action,
    Before,
    Between,
    CutAfter,
    CutBefore,
    Delay,
    Fault,
    LoseAnswer,
    Refuse,
    Repeat,
    Rewrite,
    Throttle,
    UnfiredFaultError,
)
from headrace.testing.fake_kafka.kafka import FakeKafka, ReadRecord
from headrace.testing.fake_kafka.state.logs.batches import NewRecord

__all__ = [
    "Action",
    "Before",
    "Between",
    "Clock",
    "CutAfter",
    "CutBefore",
    "Delay",
    "ErrorCode",
    "FakeKafka",
    "Fault",
    "LoseAnswer",
    "NewRecord",
    "ReadRecord",
    "Refuse",
    "Repeat",
    "Rewrite",
    "StoppedClock",
    "Throttle",
    "UnfiredFaultError",
]
