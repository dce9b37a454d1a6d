"""Acknowledged records of the input that are gone for good: unclean elections, records deleted, and topics recreated.

It is known to the record what is gone, so that all else has to come out: the load rests while a log may lose what it just got.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka import TopicPartition as KafkaPartition
from kafka.errors import KafkaError

from benchmarks.chaos.faults.fault import Fault, Kind, NotHappenedError
from benchmarks.chaos.losses import Due, Losses, gone, of_aged, of_deleted, of_truncated
from benchmarks.chaos.oracle import VALUE_BYTES
from benchmarks.chaos.subject import Subject, signalled
from benchmarks.chaos.testbed import CLIENT_ID, UNSAFE, Testbed
from benchmarks.restore.oracle import Log, read_log
from headrace.enumerator.errors import RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka import delete_topic

ANSWER_S = 30.0
ELECTION_S = 90.0
READ_S = 120.0
DELETE_S = 30.0
LOAD_S = 60.0
FEWEST, MOST = 20, 150
"""Records of a partition that are written while its leader is alone, or while the job is away."""

Wake = Callable[[Subject, list[psutil.Process]], Any]
"""How a job that was frozen continues when all is over."""


def woken(_subject: Subject, frozen: list[psutil.Process]) -> None:
    """The same process, with all that it has read ahead."""
    signalled(frozen, signal.SIGCONT)


def started_again(subject: Subject, _frozen: list[psutil.Process]) -> None:
    """Another one, from the last checkpoint."""
    subject.kill()


class Loss(Fault):
    """What all have in common: the load, the job, and the account."""

    due: Due

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, wake: Wake | None) -> None:
        """`wake`: for a job that is away while the records go; None: it runs."""
        super().__init__(testbed, subject, generator)
        self.topic = subject.names.source
        self._wake = wake
        self._frozen: list[psutil.Process] = []

    def heal(self) -> None:
        """The job continues, if it was away."""
        if self._wake is not None and self._frozen:
            self._wake(self.subject, self._frozen)

    def losses(self) -> Losses:
        """All that was acknowledged, and is in the log no more. The load rests, as the log is read up to where it ends."""
        output_check = self.subject.output_check
        with self.subject.load.resting():
            acknowledged = self.subject.load.offsets()
            logs = self._read()
        found = Losses(self.topic, gone(acknowledged, logs, output_check.gone), type(self).due)
        found.excuse(output_check)
        return found

    def _read(self) -> Mapping[int, Log]:
        read: list[Mapping[int, Log]] = []

        def attempt() -> None:
            try:
                read.append(read_log(self.testbed.bootstrap, self.topic, "read_uncommitted", VALUE_BYTES))
            except (KafkaException, TimeoutError) as error:
                raise RetriableError(str(error)) from error

        wait_until(attempt, "the input cannot be read", READ_S)
        return read[0]

    def write_and_leave(self, partition: int) -> None:
        """Until some more records of the partition are acknowledged. Meanwhile, at any moment, the job leaves, if it is to."""
        count = self.random.randint(FEWEST, MOST)
        before = self.random.randint(0, count)
        self._await_load(partition, before)
        if self._wake is not None:
            self._frozen = self.subject.freeze()
        self._await_load(partition, count - before)

    def span(self, partition: int) -> tuple[int, int]:
        """Where the partition's log starts and ends, as its leader shows. Raises RetriableError."""
        settings = {
            "bootstrap.servers": self.testbed.bootstrap,
            "group.id": "chaos-ends",
            "client.id": CLIENT_ID,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        try:
            begin, end = consumer.get_watermark_offsets(TopicPartition(self.topic, partition), ANSWER_S)
            return int(begin), int(end)
        except KafkaException as error:
            raise RetriableError(str(error)) from error
        finally:
            consumer.close()

    def _await_load(self, partition: int, count: int) -> None:
        least = self.subject.load.written()[partition] + count

        def check() -> None:
            if self.subject.load.produced()[partition] < least:
                raise RetriableError("the load waits")

        wait_until(check, f"the load does not write {count} records", LOAD_S)


class Unclean(Loss):
    """One of a partition's two replicas is killed, the other one continues alone and is killed one after another, and the first
    one leads.

    What the other one had alone is gone. Its numbers are used again, by what is written from then on.
    """

    due = staticmethod(of_truncated)

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, wake: Wake | None) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator, wake)
        self._partition = 0
        self._alone: Any = None
        self._lost = 0

    def apply(self) -> str:
        """Until the one that was not in sync leads."""
        if not self.testbed.in_sync([*self.subject.names.topics, *self.testbed.internal]):
            raise NotHappenedError("not all replicas are in sync: more would be lost than is meant to be")
        self._partition, found = self.random.choice(sorted(self.testbed.partitions(self.topic).items()))
        behind = next(node for node in found.replica_nodes if node != found.leader_id)
        self.testbed.cluster.kill(behind)
        self._await_partition(lambda now: list(now.isr_nodes) == [found.leader_id], "is not alone")
        self._alone = self.testbed.partitions(self.topic)[self._partition]
        self.write_and_leave(self._partition)
        with self.subject.load.resting():
            last = int(self.subject.load.offsets()[self._partition][-1])
            self.testbed.cluster.kill(found.leader_id)
            self.testbed.cluster.restart(behind)
            self._await_partition(lambda now: now.leader_id == behind, f"is not led by broker {behind}")
            self._lost = last + 1 - self.span(self._partition)[1]
        return f"partition {self._partition}: broker {found.leader_id} was alone, broker {behind} leads"

    def prove(self) -> str:
        """Its leader was not in sync, and its log is shorter than what was acknowledged."""
        now = self.testbed.partitions(self.topic)[self._partition]
        if now.leader_id in self._alone.isr_nodes or self._lost <= 0:
            raise NotHappenedError(f"broker {now.leader_id} leads, and {self._lost} records are gone")
        epochs = f"in epoch {now.leader_epoch}, after {self._alone.leader_epoch}"
        return f"broker {now.leader_id}, not in sync, leads {epochs}, and {self._lost} acknowledged records of it are gone"

    def heal(self) -> None:
        """All brokers run, and so does the job."""
        for node in self.testbed.nodes:
            if not self.testbed.cluster.is_running(node):
                self.testbed.cluster.restart(node)
        super().heal()

    def _await_partition(self, is_so: Callable[[Any], bool], what: str) -> None:
        def check() -> None:
            if not is_so(self.testbed.partitions(self.topic)[self._partition]):
                raise RetriableError("not yet")

        wait_until(check, f"partition {self._partition} {what}", ELECTION_S)


class AgedOut(Loss):
    """All that is acknowledged is deleted, as retention does, and the topic stays."""

    due = staticmethod(of_aged)

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, wake: Wake | None) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator, wake)
        self._begins: dict[int, int] = {}

    def apply(self) -> str:
        """Of every partition."""
        partitions = sorted(self.testbed.partitions(self.topic))
        self.write_and_leave(self.random.choice(partitions))
        offsets = self.subject.load.offsets()
        self._begins = {partition: int(offsets[partition][-1]) + 1 for partition in partitions}
        wait_until(self._delete, "the records were not deleted", DELETE_S)
        return self.topic

    def _delete(self) -> None:
        """A leader that is new does not know yet that all of its replicas have them."""
        try:
            with self.testbed.admin() as admin:
                admin.delete_records(
                    {KafkaPartition(self.topic, partition): begin for partition, begin in self._begins.items()}
                )
        except KafkaError as error:
            raise RetriableError(repr(error)) from error

    def prove(self) -> str:
        """The logs start there."""
        earliest = {partition: self.span(partition)[0] for partition in self._begins}
        if earliest != self._begins:
            raise NotHappenedError(f"the logs start at {earliest}, not at {self._begins}")
        return f"the logs start at {', '.join(map(str, earliest.values()))}"


class MadeAnew(Loss):
    """The topic is deleted, with what the job has not read of it yet, and recreated under the same name."""

    due = staticmethod(of_deleted)

    def __init__(self, testbed: Testbed, subject: Subject, generator: random.Random, wake: Wake | None) -> None:
        """Nothing yet."""
        super().__init__(testbed, subject, generator, wake)
        self._before = UUID(int=0)

    def apply(self) -> str:
        """Both at once, as far as brokers can."""
        self._before = self.testbed.topic_id(self.topic)
        partitions = self.testbed.partitions(self.topic)
        self.write_and_leave(self.random.choice(sorted(partitions)))
        with self.subject.load.resting():
            delete_topic(self.testbed.bootstrap, self.topic)
            self.testbed.make_topic(self.topic, len(partitions), UNSAFE)
        return self.topic

    def prove(self) -> str:
        """Its id is another one."""
        now = self.testbed.topic_id(self.topic)
        if now == self._before:
            raise NotHappenedError(f"the topic's id is still {now}")
        return f"topic id {now} in place of {self._before}"


AWAY: Sequence[tuple[str, Wake | None]] = ((", job frozen", woken), (", job killed", started_again))
ALL: Sequence[tuple[str, Wake | None]] = (("", None), *AWAY)


def _made(what: type[Loss], wake: Wake | None) -> Callable[[Testbed, Subject, random.Random], Fault]:
    return lambda testbed, subject, generator: what(testbed, subject, generator, wake)


KINDS = (
    *(Kind(f"unclean election{when}", "losses", _made(Unclean, wake), 1, 6, loses=True) for when, wake in ALL),
    *(Kind(f"input recreated{when}", "losses", _made(MadeAnew, wake), 1, 6, real=False, loses=True) for when, wake in ALL),
    *(Kind(f"records deleted{when}", "losses", _made(AgedOut, wake), 1, 6, real=False, loses=True) for when, wake in AWAY),
)
