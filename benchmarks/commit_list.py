"""How large the list of a wide epoch is, and how long its commit and its recovery take: `python -m benchmarks.commit_list`.

By default 1,000 tasks that each write to 200 partitions (`--tasks`, `--partitions`). The broker is the fake one, in a process
of its own: Python, and without a disk. A real one answers faster, and adds its log's latency to each of the 1,000 ends, 16 at
a time. Every row is counted after the commit, and after the recovery of an epoch whose driver died when
its list was durable. Sizes and seconds, by the steps of `Committer`, go to benchmarks/results/commit-list.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.sink import Attempt, CommitList, Committer
from headrace.connectors.kafka.client.fetch import fetch_once
from headrace.connectors.kafka.client.positions import Latest
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.format.record_batch import stored_batches
from headrace.connectors.kafka.write.handles import KafkaHandle, KafkaHandleSerializer
from headrace.connectors.kafka.write.sink import KafkaSink, _commit_log
from headrace.testing import DyingCommitter, FakeKafka, Killed

RESULTS = Path(__file__).parent / "results" / "commit-list.json"
JOB, TOPIC, LISTS_TOPIC = "wide", "out", "commits"
LISTS = CommitListSerializer(KafkaHandleSerializer())


def serve(partitions: int, pipe: Connection) -> None:
    """The broker's process: says where it is, then how many rows are visible each time it is asked, until it is instructed to
    end.
    """
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC, partitions=partitions)
        pipe.send(kafka.bootstrap)
        while pipe.recv():
            pipe.send(len(kafka.records(TOPIC)))


@contextmanager
def broker(partitions: int) -> Iterator[tuple[str, Callable[[], int]]]:
    """Its address, and what counts the rows that readers see."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(partitions, theirs), daemon=True)
    process.start()

    def visible() -> int:
        ours.send(True)  # noqa: FBT003 - continue
        return int(ours.recv())

    try:
        yield str(ours.recv()), visible
    finally:
        ours.send(False)  # noqa: FBT003
        process.join()


class Timed:
    """A committer that notes how long each of its methods took, one entry for each call."""

    def __init__(self, inner: Committer[KafkaHandle]) -> None:
        """Of this one."""
        self._inner = inner
        self.seconds: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method, timed."""
        method = getattr(self._inner, name)

        def timed(*arguments: Any) -> Any:  # noqa: ANN401 - whatever it takes and returns
            started = time.perf_counter()
            answer = method(*arguments)
            self.seconds.setdefault(name, []).append(round(time.perf_counter() - started, 3))
            return answer

        return timed


def sink_at(bootstrap: str) -> KafkaSink:
    """As a new process has it: nothing of the commit topic is read yet."""
    _commit_log.cache_clear()
    return KafkaSink(bootstrap, topic=TOPIC, commit_topic=LISTS_TOPIC)


def prepared(sink: KafkaSink, epoch: int, tasks: int, partitions: int) -> tuple[KafkaHandle, ...]:
    """Each task writes a row to each partition."""
    rows = pa.RecordBatch.from_pydict({"value": ["row"] * partitions, "partition": pa.array(range(partitions), pa.int32())})
    handles = []
    for task in range(tasks):
        with sink.begin(Attempt(JOB, epoch, task, 0)) as transaction:
            transaction.write(rows)
            handles.append(transaction.prepare())
    return tuple(handle for handle in handles if handle is not None)


def stored_bytes(sink: KafkaSink) -> tuple[int, int]:
    """How many bytes of batches the commit topic has, and the largest of them: what a broker must take at once."""
    position, sizes = 0, [0]
    end = sink.cluster().list_offsets({(LISTS_TOPIC, 0): Latest()}, Isolation.READ_UNCOMMITTED)[LISTS_TOPIC, 0].offset or 0
    while position < end:
        for batch in stored_batches(fetch_once(sink.cluster(), LISTS_TOPIC, 0, position, Isolation.READ_UNCOMMITTED).records):
            position = batch.last_offset + 1
            sizes.append(len(batch.data))
    return sum(sizes), max(sizes)


def whole_commit(sink: KafkaSink, tasks: int, partitions: int) -> dict[str, Any]:
    """Epoch 0, from the handles to "completed"."""
    handles = prepared(sink, 0, tasks, partitions)
    timed, started = Timed(sink.committer(JOB)), time.perf_counter()
    JobCommitter(JOB, cast(Committer[KafkaHandle], timed)).commit(0, handles)
    return {"seconds": round(time.perf_counter() - started, 3), "steps_s": timed.seconds}


def recovery(bootstrap: str, tasks: int, partitions: int) -> dict[str, Any]:
    """Epoch 1: its driver dies when the list is durable; what the next one does."""
    sink = sink_at(bootstrap)
    handles = prepared(sink, 1, tasks, partitions)
    data = LISTS.serialize(CommitList(1, handles, destination=TOPIC))
    before, _ = stored_bytes(sink)
    dying = DyingCommitter(sink.committer(JOB), "record", "after")
    try:
        JobCommitter(JOB, dying).commit(1, handles)
    except Killed:
        after, largest = stored_bytes(sink)
    assert dying.died
    timed, started = Timed(sink_at(bootstrap).committer(JOB)), time.perf_counter()
    JobCommitter(JOB, cast(Committer[KafkaHandle], timed)).recover()
    return {
        "list_bytes": len(data),
        "stored_bytes": after - before,  # compressed, with the markers of its transaction
        "largest_batch_bytes": largest,
        "seconds": round(time.perf_counter() - started, 3),
        "steps_s": timed.seconds,
    }


def measure(tasks: int, partitions: int) -> dict[str, Any]:
    """Both, each checked by what readers see."""
    with broker(partitions) as (bootstrap, visible):
        commit = whole_commit(sink_at(bootstrap), tasks, partitions)
        assert visible() == tasks * partitions
        recovered = recovery(bootstrap, tasks, partitions)
        assert visible() == 2 * tasks * partitions
    return {"commit": commit, "recovery": recovered}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--to", type=Path, default=RESULTS)
    given = parser.parse_args()
    result = {
        "tasks": given.tasks,
        "partitions": given.partitions,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        **measure(given.tasks, given.partitions),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    given.to.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
