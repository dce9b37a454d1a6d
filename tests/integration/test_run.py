"""A pipeline against a real Kafka: the lines of its guide."""

import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer

from headrace.errors import RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka import create_topic
from tests.helpers.python_path import ROOT, started
from tests.helpers.sink_rig import read_pairs

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]
TIMEOUT_S = 90.0
RECORDS = 2000


def test_the_lines_of_the_guide_copy_a_topic_exactly_once_with_4_workers_killed_and_restarted(broker, topic, tmp_path):
    source, target = topic(), topic()
    for name in (source, target):
        create_topic(broker.bootstrap, name, 4)
    produced = 0

    def more() -> None:
        nonlocal produced
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap.split(","))
        for number in range(produced, produced + RECORDS):
            producer.send(source, b"%d" % number)
        producer.close()
        produced += RECORDS

    def copied(at_least: int) -> Callable[[], None]:
        def check() -> None:
            assert run.poll() is None, log.read_text()
            if len(read_pairs(broker.bootstrap, target)) < at_least:
                raise RetriableError(log.read_text())

        return check

    job, log = tmp_path / "job.py", tmp_path / "log"
    job.write_text(lines_of_the_guide(broker.bootstrap, source, target, tmp_path / "checkpoints"))
    run = started(job, log)
    try:
        more()
        wait_until(copied(RECORDS), "the first records", TIMEOUT_S)
        more()  # which it is copying when it is killed
        run.send_signal(signal.SIGKILL)
        run.wait()
        run = started(job, log)
        more()
        wait_until(copied(produced), "all records", TIMEOUT_S)
        run.send_signal(signal.SIGTERM)
        assert run.wait(TIMEOUT_S) == 0, log.read_text()
    finally:
        run.kill()
        run.wait()
    assert Counter(int(value) for _, value in read_pairs(broker.bootstrap, target)) == Counter(range(produced))


def lines_of_the_guide(bootstrap: str, source: str, target: str, checkpoints: Path) -> str:
    """With these in place of its address, topics and folder, and checkpoints oftener than every 10 s."""
    guide = (ROOT / "docs" / "how-to" / "run-without-an-engine.md").read_text()
    (lines,) = re.findall(r"```python\n(# job.py\n.*?)```", guide, re.DOTALL)
    names = {"127.0.0.1:9092": bootstrap, '"flights"': f'"{source}"', '"loud"': f'"{target}"'}
    settings = {"/var/lib/headrace/loud": str(checkpoints), "workers=4": "workers=4, interval_s=0.2"}
    for there, here in {**names, **settings}.items():
        assert there in lines
        lines = lines.replace(there, here)
    return lines
