"""Dead letters put back to a real Kafka by processes that are killed in the middle."""

from collections import Counter

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.connectors.base.dead_letters import LETTER_TYPE, addressed
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.testing.servers.kafka import create_topic
from tests.helpers.killed_replay import killed_replay
from tests.helpers.sink_rig import read_pairs

pytestmark = pytest.mark.broker


def letter(topic, number):
    values = {"__connect.errors.topic": topic, "__connect.errors.partition": "0", "__connect.errors.offset": str(number)}
    headers = [{"key": name, "value": value.encode()} for name, value in values.items()]
    return {"key": b"%d" % number, "value": b"bad %d" % number, "headers": headers}


def test_replay_killed_before_and_after_its_list_is_durable_and_repeated_is_exact(broker, topic, tmp_path):
    origin, dead = topic(), topic()
    for name in (origin, dead):
        create_topic(broker.bootstrap, name)
    column = addressed(pa.array([letter(origin, number) for number in range(160)], LETTER_TYPE), dead)
    transaction = AtLeastOnceKafkaSink(broker.bootstrap).begin(Attempt("j", 0, 0, 0))
    transaction.write(pa.record_batch([column], ["deadLetter"]))
    transaction.prepare()
    folder = tmp_path / "checkpoints"
    for number, step in enumerate([("check", "after"), ("record", "after"), ("end", "before")]):
        killed_replay(broker.bootstrap, dead, folder, tmp_path / str(number), ("KafkaCommitter", *step))
    for _ in range(2):
        command = ["dead-letters", "replay", dead, "--checkpoints", str(folder), "--bootstrap", broker.bootstrap]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        found = Counter(value for _, value in read_pairs(broker.bootstrap, origin))
        assert found == Counter(f"bad {number}" for number in range(160))
