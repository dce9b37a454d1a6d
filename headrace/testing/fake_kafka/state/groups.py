"""The group coordinator of the classic protocol: members, rebalances, generations (as Kafka's ClassicGroup). Sans-I/O.

A join or a sync that has to wait for others leaves the member waiting; the thread that serves its connection asks again later.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError
from headrace.testing.fake_kafka.state.offsets import GroupOffsets


class GroupState(Enum):
    """By the names that ListGroups gives them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class Joining:
    """What JoinGroup (11) reports about its sender; `protocols` are (name, metadata), best first."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]


@dataclass(slots=True)
class Member:
    """One member; while `is_waiting` its JoinGroup has no answer yet."""

    id: str
    joining: Joining
    seen_ms: int
    is_waiting: bool = True
    has_synced: bool = False
    assignment: bytes = b""

    @property
    def expires_ms(self) -> int:
        """When it is lost without another sign of lifetime."""
        return self.seen_ms + self.joining.session_timeout_ms

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.joining.protocols if name == protocol), b"")


class Group:
    """One group: its members and its offsets."""

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.state: GroupState = GroupState.EMPTY
        self.generation: int = 0
        self.protocol_type: str = ""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.offsets: GroupOffsets = GroupOffsets()
        self._invited: set[str] = set()
        self._deadline_ms = 0

    # --- joining --------------------------------------------------------------------------------------------------------

    def join(self, joining: Joining, now_ms: int, delay_ms: int, *, needs_known_id: bool) -> Member:
        """Take a member in, or again, and start a rebalance where that changes anything. Raises RefusedError.

        `needs_known_id`: KIP-394, a newcomer is sent away with its id first (the error's message).
        """
        self._check_protocols(joining)
        member_id = joining.member_id
        static = self._static(joining.instance_id)
        if not member_id:
            if static is not None:
                return self._replace_static(static, joining, now_ms)
            member_id = f"{joining.instance_id or joining.client_id}-{uuid.uuid4()}"
            if needs_known_id and joining.instance_id is None:
                self._invited.add(member_id)
                raise RefusedError(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        elif static is not None and static.id != member_id:
            raise RefusedError(ErrorCode.FENCED_INSTANCE_ID)
        elif member_id not in self.members and member_id not in self._invited:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._invited.discard(member_id)
        known = self.members.get(member_id)
        if known is not None and self._may_stay(known, joining):
            known.seen_ms = now_ms
            return known
        return self._admit(member_id, joining, now_ms, delay_ms)

    def _admit(self, member_id: str, joining: Joining, now_ms: int, delay_ms: int) -> Member:
        was_empty = not self.members
        member = self.members.setdefault(member_id, Member(member_id, joining, now_ms))
        member.joining, member.is_waiting, member.seen_ms = joining, True, now_ms
        self.protocol_type = joining.protocol_type
        if self.leader is None:
            self.leader = member_id
        self._rebalance(now_ms, delay_ms if was_empty else None)
        self.settle(now_ms)
        return member

    def _check_protocols(self, joining: Joining) -> None:
        names = {name for name, _ in joining.protocols}
        if not joining.protocol_type or not names:
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        others = [member for member in self.members.values() if member.id != joining.member_id]
        if not others:
            return
        common = set.intersection(*({name for name, _ in member.joining.protocols} for member in others))
        if joining.protocol_type != self.protocol_type or not names & common:
            raise RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _static(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((member for member in self.members.values() if member.joining.instance_id == instance_id), None)

    def _replace_static(self, old: Member, joining: Joining, now_ms: int) -> Member:
        """KIP-345: a static member that comes back has a new id and, with the same subscription, its old assignment."""
        del self.members[old.id]
        fresh = Member(f"{joining.instance_id}-{uuid.uuid4()}", joining, now_ms, assignment=old.assignment)
        self.members[fresh.id] = fresh
        if self.leader == old.id:
            self.leader = fresh.id
        same = old.metadata(self.protocol_name or "") == fresh.metadata(self.protocol_name or "")
        if self.state is GroupState.STABLE and same:
            fresh.is_waiting, fresh.has_synced = False, True
        else:
            self._rebalance(now_ms, None)
            self.settle(now_ms)
        return fresh

    def _may_stay(self, known: Member, joining: Joining) -> bool:
        """A repeated join that changes nothing gets the answer of the current generation."""
        same = list(known.joining.protocols) == list(joining.protocols)
        if self.state is GroupState.COMPLETING:
            return same
        return self.state is GroupState.STABLE and same and known.id != self.leader

    def _rebalance(self, now_ms: int, delay_ms: int | None) -> None:
        if self.state is GroupState.PREPARING:
            return
        self.state = GroupState.PREPARING
        for member in self.members.values():
            member.has_synced = False
        longest = max((member.joining.rebalance_timeout_ms for member in self.members.values()), default=0)
        self._deadline_ms = now_ms + (longest if delay_ms is None else delay_ms)

    def settle(self, now_ms: int) -> None:
        """End the rebalance once everyone has joined, or the others have been waited for long enough."""
        if self.state is not GroupState.PREPARING:
            return
        first_delay = self.generation == 0 and now_ms < self._deadline_ms
        everybody = all(member.is_waiting for member in self.members.values())
        if (first_delay or not everybody) and now_ms < self._deadline_ms:
            return
        for lost in [m.id for m in self.members.values() if not m.is_waiting and m.joining.instance_id is None]:
            self._forget(lost)
        self.generation += 1
        if not self.members:
            self.state, self.protocol_name, self.leader = GroupState.EMPTY, None, None
            return
        self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        self.state = GroupState.COMPLETING
        self.protocol_name = self._elected_protocol()
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for member in self.members.values():
            member.is_waiting, member.seen_ms, member.assignment = False, now_ms, b""
        self._deadline_ms = now_ms + max(member.joining.rebalance_timeout_ms for member in self.members.values())

    def _elected_protocol(self) -> str:
        common = set.intersection(*({name for name, _ in member.joining.protocols} for member in self.members.values()))
        votes = [next(name for name, _ in member.joining.protocols if name in common) for member in self.members.values()]
        return max(sorted(set(votes)), key=votes.count)

    # --- the rest of a generation ---------------------------------------------------------------------------------------

    def sync(
        self, member_id: str, instance_id: str | None, generation: int, assignments: Mapping[str, bytes], now_ms: int
    ) -> Member:
        """SyncGroup (14): the leader brings the assignments, everyone takes one away. `has_synced` where it is there."""
        member = self.check(member_id, instance_id, generation)
        member.seen_ms = now_ms
        if self.state is GroupState.PREPARING:
            raise RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.state is GroupState.COMPLETING and member_id == self.leader:
            for each in self.members.values():
                each.assignment, each.has_synced = assignments.get(each.id, b""), True
            self.state = GroupState.STABLE
        return member

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> None:
        member = self.check(member_id, instance_id, generation)
        member.seen_ms = now_ms
        if self.state is GroupState.PREPARING:
            raise RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        """The member of that id in that generation. Raises error 25, 82 or 22."""
        if instance_id is not None:
            static = self._static(instance_id)
            if static is None:
                raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
            if static.id != member_id:
                raise RefusedError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != self.generation:
            raise RefusedError(ErrorCode.ILLEGAL_GENERATION)
        return self.members[member_id]

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> None:
        """LeaveGroup (13). A static member may be named by its instance alone."""
        static = self._static(instance_id)
        if instance_id is not None and static is None:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        if static is not None and member_id and static.id != member_id:
            raise RefusedError(ErrorCode.FENCED_INSTANCE_ID)
        leaving = static.id if static is not None else member_id
        if leaving in self._invited:
            self._invited.discard(leaving)
        elif leaving not in self.members:
            raise RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            self._lose(leaving, now_ms)

    def _lose(self, member_id: str, now_ms: int) -> None:
        self._forget(member_id)
        self._rebalance(now_ms, None)
        self.settle(now_ms)

    def _forget(self, member_id: str) -> None:
        del self.members[member_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    # --- time -----------------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> bool:
        """Lose members that gave no sign of lifetime, end rebalances that took too long. Whether anything was done."""
        before = (self.state, self.generation, len(self.members))
        lost = [member.id for member in self.members.values() if not member.is_waiting and now_ms >= member.expires_ms]
        if self.state is GroupState.COMPLETING and now_ms >= self._deadline_ms:
            lost += [member.id for member in self.members.values() if not member.has_synced and member.id not in lost]
        for member_id in lost:
            self._lose(member_id, now_ms)
        self.settle(now_ms)
        return before != (self.state, self.generation, len(self.members))

    def due_ms(self) -> Iterator[int]:
        """When `expire` will have something to do."""
        if self.state in (GroupState.PREPARING, GroupState.COMPLETING):
            yield self._deadline_ms
        yield from (member.expires_ms for member in self.members.values() if not member.is_waiting)

    def subscribed_topics(self) -> set[str]:
        """Of members that are consumers, by their metadata (ConsumerProtocolSubscription)."""
        if self.protocol_type != "consumer":
            return set()
        datas = [data for member in self.members.values() for _, data in member.joining.protocols]
        return {topic for data in datas for topic in _topics_of(data)}


def _topics_of(subscription: bytes) -> Iterator[str]:
    if len(subscription) < struct.calcsize(">hi"):
        return
    _, count = struct.unpack_from(">hi", subscription)
    at = struct.calcsize(">hi")
    for _ in range(count):
        (size,) = struct.unpack_from(">h", subscription, at)
        yield subscription[at + 2 : at + 2 + size].decode()
        at += 2 + size


class GroupCoordinator:
    """All groups of the cluster."""

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}

    def known(self, group_id: str) -> Group:
        """Raises GROUP_ID_NOT_FOUND."""
        try:
            return self.by_id[group_id]
        except KeyError:
            raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.") from None

    def get_or_create(self, group_id: str) -> Group:
        """Raises INVALID_GROUP_ID for an empty name."""
        if not group_id:
            raise RefusedError(ErrorCode.INVALID_GROUP_ID)
        return self.by_id.setdefault(group_id, Group(group_id))

    def expire(self, now_ms: int) -> bool:
        changed = [group for group in self.by_id.values() if group.expire(now_ms)]
        return bool(changed)
