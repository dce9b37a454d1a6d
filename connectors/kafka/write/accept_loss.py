"""An operator's ways out, where a job cannot continue by itself: accept what is lost of its list, or start over without one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from headrace.connectors.base.capabilities import Confirmation, confirm
from headrace.connectors.base.sink import CommitList, Committer, Outcome
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.write.handles import KafkaHandle, WrittenRange
from headrace.connectors.kafka.write.transaction_log import why_lost
from headrace.enumerator.errors import DataLossError


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that a job has written, and that are given up."""

    written: WrittenRange
    reason: str


class LossAccepting(Committer[KafkaHandle], Confirmation[KafkaHandle]):
    """A committer that gives up what a recovery would raise DataLossError for; all else is committed, or copied.

    Interrupted and run again, it finds the same losses again, but for those of transactions that it has copied the rest of.
    """

    def __init__(self, inner: Committer[KafkaHandle], cluster: KafkaCluster) -> None:
        self._inner, self._cluster = inner, cluster
        self._kept: dict[KafkaHandle, KafkaHandle] = {}
        self.losses: list[Loss] = []

    def end(self, handle: KafkaHandle) -> Outcome:
        """COMMITTED also for a transaction of which nothing is left to commit."""
        try:
            outcome = self._inner.end(handle)
        except DataLossError:
            self.losses += [
                Loss(written, "whether it was ever visible cannot be determined any more") for written in handle.ranges
            ]
            return Outcome.COMMITTED
        if outcome is Outcome.COMMITTED:
            return outcome
        reasons = {written: why_lost(self._cluster, handle, written) for written in handle.ranges}
        self.losses += [Loss(written, reason) for written, reason in reasons.items() if reason is not None]
        self._kept[handle] = replace(handle, ranges=tuple(item for item, reason in reasons.items() if reason is None))
        return outcome if self._kept[handle].ranges else Outcome.COMMITTED

    def copy(self, handles: Sequence[KafkaHandle]) -> KafkaHandle:
        """What is left of these: partitions in which every record is there."""
        return self._inner.copy([self._kept[handle] for handle in handles])

    def fence(self) -> CommitList[KafkaHandle] | None:
        return self._inner.fence()

    def check(self, handles: Sequence[KafkaHandle]) -> None:
        self._inner.check(handles)

    def record(self, commits: CommitList[KafkaHandle]) -> None:
        self._inner.record(commits)

    def clean_up(self, keep: Collection[KafkaHandle]) -> None:
        self._inner.clean_up(keep)

    def confirm(self, handles: Sequence[KafkaHandle]) -> None:
        confirm(self._inner, handles)

    def forget(self) -> None:
        self._inner.forget()

    def close(self) -> None:
        self._inner.close()
