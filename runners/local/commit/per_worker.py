"""Commits at a sink where each worker writes under a sink job of its number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.connectors.base import capabilities
from headrace.connectors.base.sink import CommitList, Committer, HandleT, Outcome, TwoPhaseSink
from headrace.enumerator.errors import DeadlineExceededError, RetriableError, StateError
from headrace.runners.local.commit.strategy import EPOCH_BITS, CommitStrategy, SinkEpochs
from headrace.runners.local.events import WorkerHandle

_Result = TypeVar("_Result")


class PerWorkerCommit(CommitStrategy[HandleT]):
    """Each worker has its own job, and a committer."""

    def __init__(self, sink: TwoPhaseSink[HandleT], job: Callable[[int], str], number: int, driver: Committer[HandleT]) -> None:
        """`job`: of a worker's number. `number` and `driver`: the coordinator's own, and its committer of the run's job."""
        self._sink, self._job, self._number, self._driver = sink, job, number, driver
        self._writers: dict[int, Committer[HandleT]] = {}

    def is_possible(self, seen: int, reported: SinkEpochs) -> bool:
        """Earlier ones and none, too: the transactions themselves tell what is committed.

        The lists may be gone (Kafka's topic of them), or are of another topic, which the run had before or has now.
        """
        return seen in reported.possible or seen >> EPOCH_BITS < reported.before >> EPOCH_BITS

    def is_last(self, seen: int, reported: SinkEpochs) -> bool:
        """What is decided and not marked yet is left out of it, so something older than the checkpoint says nothing."""
        return seen > 0 and seen >> EPOCH_BITS >= reported.before >> EPOCH_BITS and seen not in reported.replaced

    def listed(self, epoch: int, handles: Sequence[WorkerHandle[HandleT]]) -> CommitList[HandleT]:
        """The epoch alone: it shuts older coordinators out."""
        return CommitList(epoch, (), completed=True)

    def stage(self, epoch: int) -> None:
        capabilities.stage(self._driver, self.listed(epoch, ()))

    def check(self, handles: Sequence[WorkerHandle[HandleT]]) -> None:
        """Raise RetriableError for one that cannot be committed any more."""
        try:
            self._by_worker(handles, lambda committer, own: committer.check(own))
        except (StateError, DeadlineExceededError) as error:
            # Nothing of it is durable or visible, so what was read since the last checkpoint is read again.
            raise RetriableError(f"a worker's transaction cannot be committed any more: {error}") from error

    def end_all(self, handles: Sequence[WorkerHandle[HandleT]]) -> Sequence[Outcome]:
        """Those of all workers at once: what readers see of a part of the checkpoint, they see for milliseconds."""
        ended = self._by_worker(handles, lambda committer, own: iter(capabilities.end_all(committer, own)))
        return [next(ended[handle.number]) for handle in handles]

    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        return self._of(self._number).copy(handles)

    def clean_up(self, number: int, keep: Collection[HandleT]) -> None:
        self._of(number).clean_up(keep)

    def release(self, number: int) -> None:
        self._writers.pop(number).close()

    def close(self) -> None:
        for committer in self._writers.values():
            committer.close()

    def _of(self, number: int) -> Committer[HandleT]:
        """One for each worker, so that several threads can use several."""
        if number not in self._writers:
            self._writers[number] = capabilities.committer_of_writer(self._sink, self._job(number), self._driver)
        return self._writers[number]

    def _by_worker(
        self, handles: Sequence[WorkerHandle[HandleT]], act: Callable[[Committer[HandleT], list[HandleT]], _Result]
    ) -> dict[int, _Result]:
        """What `act` gives for each worker's handles, in their order; of all workers at once."""
        own: dict[int, list[HandleT]] = {}
        for listed in handles:
            own.setdefault(listed.number, []).append(listed.handle)
        return dict(zip(own, at_once(act, [self._of(number) for number in own], list(own.values())), strict=True))


class RecordedCommit(PerWorkerCommit[HandleT]):
    """What is recorded in the sink is in the same place as the rows (`capabilities.EpochRecord`)."""

    is_possible = CommitStrategy.is_possible

    def is_last(self, seen: int, reported: SinkEpochs) -> bool:
        """What is read is what is recorded; of a list that cannot be read nothing is known."""
        return seen > 0


def at_once(
    act: Callable[[Committer[HandleT], list[HandleT]], _Result],
    committers: list[Committer[HandleT]],
    owned: list[list[HandleT]],
) -> list[_Result]:
    """What `act` gives for each committer and its handles, each in its own thread."""
    if len(committers) <= 1:
        return list(map(act, committers, owned))
    with ThreadPoolExecutor(len(committers)) as threads:
        return list(threads.map(act, committers, owned))
