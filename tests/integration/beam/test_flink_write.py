"""WriteToKafka on a real Flink: exactly once through SIGKILLs, a savepoint and a new submission, judged by another client."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest

from headrace.beam import ReadFromKafka, SplitDeadLetters, WriteToKafka
from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.write.transactions import Transactions
from headrace.formats import JsonFormat
from headrace.kafka import Earliest
from headrace.testing.servers.flink import FlinkCluster
from headrace.testing.servers.kafka import BrokerCluster, create_topic
from tests.helpers import flink_rig as rig
from tests.helpers.flink_rig import Numbers, frozen_workers, job, kill_and_restart, python_workers
from tests.helpers.kafka_rig import write_records
from tests.helpers.kafka_tools import created
from tests.helpers.sink_rig import read_all, read_pairs
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.flink, pytest.mark.broker, pytest.mark.timeout(600)]
END = 1500
KEYS = 5


def key_of(number: int) -> bytes | None:
    return b"%d" % (number % KEYS) if number % KEYS else None


def writing(folder: Path, bootstrap: str, topic: str, **arguments: object) -> Callable[[beam.Pipeline], None]:
    def build(pipeline: beam.Pipeline) -> None:
        numbers = pipeline | beam.Impulse() | beam.ParDo(Numbers(str(folder / "begun"), end=END, per_call=50))
        keyed = beam.Map(lambda number: (key_of(number), b"%08d" % number))
        pairs = numbers | keyed.with_output_types(tuple[bytes | None, bytes])
        _ = pairs | WriteToKafka({"bootstrap.servers": bootstrap}, topic, **arguments)

    return build


def all_numbers() -> list[str]:
    return [f"{number:08d}" for number in range(END)]


def check_order(bootstrap: str, topic: str) -> None:
    of_keys: dict[bytes, list[str]] = defaultdict(list)
    for key, value in read_pairs(bootstrap, topic):
        if key is not None:
            of_keys[key].append(value)
    assert of_keys.keys() == {b"%d" % key for key in range(1, KEYS)}
    for values in of_keys.values():
        assert values == sorted(values)


def open_transactions(bootstrap: str, prefix: str) -> list[str]:
    return Transactions(shared_cluster(ClientConfig(bootstrap=bootstrap))).ongoing(f"{prefix}.")


def test_each_record_is_seen_once_through_kills_a_zombie_and_a_savepoint_and_in_its_keys_order_after_a_kill(
    flink: FlinkCluster, broker: BrokerCluster, topic: Callable[[], str], tmp_path: Path
) -> None:
    bootstrap = broker.bootstrap
    name = created(bootstrap, topic, partitions=2)
    prefix = name[-30:].strip("-")
    build = writing(tmp_path, bootstrap, name, delivery="exactly-once", transactional_id_prefix=prefix, num_shards=3)

    def seen() -> int:
        rows = read_all(bootstrap, name)
        assert [row for row, times in Counter(rows).items() if times > 1] == []
        return len(rows)

    with job(flink, build) as first:
        before = seen()
        eventually(lambda: seen() > before)
        eventually(lambda: open_transactions(bootstrap, prefix))  # so that there is something to go wrong
        kill_and_restart(flink, first)
        restored = seen()
        eventually(lambda: seen() >= min(restored + 1, END))
        # Not later: what a zombie that continues cleans up away is copied, and comes behind what was written since.
        check_order(bootstrap, name)
        with frozen_workers(flink) as zombies:
            kill_and_restart(flink, first)
            assert zombies < python_workers(flink)
        savepoint = rig.savepoint_at_last(flink, first)  # what zombies do may fail the job again
    with job(flink, build, savepoint=savepoint):
        eventually(lambda: seen() == END, seconds=120)
        assert read_all(bootstrap, name) == all_numbers()
        eventually(lambda: open_transactions(bootstrap, prefix) == [])
    # Whether a kill finds a transaction without a checkpoint is chance; test_beam_shard.py makes each such crash happen
    assert (tmp_path / "begun").read_text() == "begun\n"


@pytest.mark.long
def test_bad_records_among_good_ones_are_dead_letters_and_each_is_seen_once_through_a_kill(flink, broker, topic):
    source, output, dead = names = [topic() for _ in range(3)]
    for name in names:
        create_topic(broker.bootstrap, name, partitions=2)
    config, values, written = {"bootstrap.servers": broker.bootstrap}, JsonFormat(pa.struct([("n", pa.int64())])), 0
    columns = ("key", "value", "deadLetter")
    exactly_once = {"delivery": "exactly-once", "num_shards": 2}

    def build(pipeline: beam.Pipeline) -> None:
        bad = {"value_format": values, "on_bad_record": "keep"}
        read = ReadFromKafka(config, [source], start=Earliest(), output="arrow", columns=columns, **bad)
        records, bad = pipeline | read | SplitDeadLetters()
        _ = records | "Good" >> WriteToKafka(config, output, value_format=values, **exactly_once)
        _ = bad | "Bad" >> WriteToKafka(config, dead, **exactly_once)

    def more() -> None:
        nonlocal written
        for partition in range(2):
            numbers = range(written + partition, written + 100, 2)
            records = [{"value": b"bad %d" % n if n % 5 == 0 else b'{"n":%d}' % n} for n in numbers]
            write_records(broker.bootstrap, source, records, partition)
        written += 100

    def seen(isolation: str = "read_committed") -> list[str]:
        rows, bad = (read_all(broker.bootstrap, name, isolation) for name in (output, dead))
        assert not any("bad" in row for row in rows)
        assert all("bad" in row for row in bad)
        return sorted(rows + bad)

    with job(flink, build) as running:
        more()
        eventually(lambda: len(seen()) == written)
        more()
        eventually(lambda: len(seen("read_uncommitted")) > len(seen()))  # written, and not committed yet
        kill_and_restart(flink, running)
        more()
        eventually(lambda: len(seen()) >= written, seconds=120)
        assert seen() == sorted(f"bad {n}" if n % 5 == 0 else f'{{"n":{n}}}' for n in range(written))


@pytest.mark.long
def test_at_least_once_loses_nothing_through_a_kill(flink, broker, topic, tmp_path):
    bootstrap = broker.bootstrap
    name = created(bootstrap, topic, partitions=2)
    with job(flink, writing(tmp_path, bootstrap, name)) as running:
        eventually(lambda: read_all(bootstrap, name))
        kill_and_restart(flink, running)
        eventually(lambda: sorted(set(read_all(bootstrap, name))) == all_numbers(), seconds=120)
