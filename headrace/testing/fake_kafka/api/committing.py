"""Who may commit offsets for a group (OffsetCommit, 8), and how much may be written alongside them."""

from __future__ import annotations

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.state.groups import Group, GroupState

__all__ = ["MAX_METADATA", "check_committer"]

MAX_METADATA = "offset.metadata.max.bytes"


def check_committer(group: Group, generation: int, member_id: str, instance_id: str | None) -> None:
    """A member in its generation; or anybody, without a generation, while the group has no members. Raises RefusedError."""
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation < 0 and not member_id and instance_id is None:
        raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check(member_id, instance_id, generation)
    if group.state is GroupState.COMPLETING:
        raise RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
