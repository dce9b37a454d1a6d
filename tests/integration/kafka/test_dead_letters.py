"""Dead letters put back to a real Kafka by processes that are killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest

from headrace.connectors.base.dead_letters import LETTER_TYPE, addressed
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.testing.servers.kafka import create_topic
from tests.helpers.python_path import python_path
from tests.helpers.sink_rig import read_pairs

pytestmark = pytest.mark.broker

DYING = """
import os, signal, sys
from headrace.cli import main
from headrace.cli.letters import replay
from headrace.connectors.kafka.write.sink import KafkaCommitter

replay.MOST_LETTERS = 40
calls, step, when, nth = 0, sys.argv.pop(1), sys.argv.pop(1), 2
real = getattr(KafkaCommitter, step)

def dying(self, *arguments):
    global calls
    calls += 1
    if calls == nth and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = real(self, *arguments)
    if calls == nth:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

if step != "fence":
    setattr(KafkaCommitter, step, dying)
main()
"""


def replay(broker, letters, step="fence", when="before"):
    command = [sys.executable, "-c", DYING, step, when, "dead-letters", "replay", letters, "--bootstrap", broker.bootstrap]
    environment = os.environ | {"PYTHONPATH": python_path()}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


def letter(topic, number):
    settings = {"__connect.errors.topic": topic, "__connect.errors.partition": "0", "__connect.errors.offset": str(number)}
    headers = [{"key": name, "value": value.encode()} for name, value in settings.items()]
    return {"key": b"%d" % number, "value": b"bad %d" % number, "headers": headers}


def test_replay_killed_before_and_after_its_list_is_durable_and_repeated_is_exact(broker, topic):
    origin, letters = topic(), topic()
    for name in (origin, letters):
        create_topic(broker.bootstrap, name)
    column = addressed(pa.array([letter(origin, number) for number in range(160)], LETTER_TYPE), letters)
    transaction = AtLeastOnceKafkaSink(broker.bootstrap).begin(Attempt("j", 0, 0, 0))
    transaction.write(pa.record_batch([column], ["deadLetter"]))
    transaction.prepare()
    for step, when in [("check", "after"), ("end", "before")]:
        assert replay(broker, letters, step, when).returncode == -signal.SIGKILL
    done = replay(broker, letters)
    assert done.returncode == 0, done.stderr
    found = Counter(value for _, value in read_pairs(broker.bootstrap, origin))
    assert found == Counter(f"bad {number}" for number in range(160))
    assert done.stdout.splitlines() == [f"replayed\t{origin}\t40", "already replayed\t120"]
