"""Split discovery: which partitions exist, and where reading each of them starts and ends.

A symbolic position is resolved to a number here, once (invariant I2). Partitions discovered later get their own start position,
earliest by default, whatever the initial one was, so that their first records are not lost (KAFKA-12478).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal, TypeVar
from uuid import UUID

from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.client.errors import RefusedByBrokerError, UnknownTopicError
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.client.properties import Isolation
from headrace.connectors.kafka.client.topology import Broker, TopicMetadata, TopicPartition, TopicViews
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import DataLossError, RetriableError, UsageError
from headrace.enumerator.source import DiscoveryResult, SplitDiscovery

log = logging.getLogger(__name__)

T = TypeVar("T")

Positions = Position | Mapping[TopicPartition, Position]
NoMatch = Literal["error", "latest"]

MISSING_POLLS = 4
"""A partition is reported missing only when this many polls in a row lack it, each but the first at every live broker:
metadata flaps (FLINK-39837), and one broker that lags behind is not a proof."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Every partition of these topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Every partition of every topic whose whole name matches this regular expression."""

    regex: str


@dataclass(frozen=True, slots=True)
class Partitions:
    """Exactly these partitions."""

    wanted: tuple[TopicPartition, ...]


Subscription = Topics | Pattern | Partitions


def selects(subscription: Subscription, tp: TopicPartition) -> bool:
    match subscription:
        case Topics(names):
            return tp[0] in names
        case Pattern(regex):
            return java_pattern(regex).fullmatch(tp[0]) is not None
        case Partitions(wanted):
            return tp in wanted


@dataclass(frozen=True, slots=True)
class PositionPlan:
    """Where reading starts and ends, and what is done about positions that cannot be had."""

    start: Positions
    start_of_new_partitions: Position
    stop: Positions | None
    isolation: Isolation
    no_match: NoMatch
    fail_on_data_loss: bool


class KafkaDiscovery(SplitDiscovery[KafkaSplit]):
    """Looks partitions up in the cluster's metadata and resolves positions. One thread, the coordinator's."""

    def __init__(self, cluster: KafkaCluster, subscription: Subscription, plan: PositionPlan) -> None:
        """`plan`: where partitions start and stop."""
        self._cluster = cluster
        self._subscription = subscription
        self._plan = plan
        self._unresolved: Set[str] = frozenset()

    def initial(self) -> DiscoveryResult[KafkaSplit]:
        """Every partition, at the initial position. Complete when reading has an end.

        Raises UsageError for topics or partitions that do not exist, per-partition positions that do not fit them, and a stop
        at what a group has committed that has committed nothing; DataLossError for a position that is out of range, and
        OutageError while brokers differ on a topic's id.
        """
        found = self._retrying_inconclusive(self._decided)
        partitions = found.keys()
        starts = self.resolve(_each(self._plan.start, partitions, "start"), self._plan.no_match)
        # a stop before the start: nothing to read
        stops = {tp: max(stop, starts[tp].offset) for tp, stop in self._stops(partitions).items()}
        splits = [_start(tp, found[tp], starts[tp], stops.get(tp)) for tp in partitions]
        return DiscoveryResult(splits, complete=self._plan.stop is not None)

    def stops(self, splits: Sequence[KafkaSplit]) -> Mapping[str, int]:
        """Where reading of them ends, by their ids; empty for a plan without a stop. Raises as `initial`, but of the start."""
        self._existing()
        found = self._stops({(split.topic, split.partition) for split in splits})
        return {split.split_id: found[split.topic, split.partition] for split in splits} if found else {}

    def _stops(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self._plan.stop is None:
            return {}
        found = self.resolve(_each(self._plan.stop, partitions, "stop"), "latest", is_stop=True)
        return {tp: stop.offset for tp, stop in found.items()}

    def later(self, known: Mapping[str, KafkaSplit]) -> DiscoveryResult[KafkaSplit]:
        """Partitions not in `known`, and those of `known` that are gone: deleted, or of a topic that was re-created (I5).

        While a broker cannot be asked, nothing is known to be gone. A topic is left out, as `inconclusive`, while brokers
        differ on its id, or most do not know it, and one that may have been re-created while not all of them can be asked.
        """
        found = self._select(self._known_topics)
        there = _ids(known.values())
        inconclusive = self._inconclusive(found, there)
        missing = self._missing([s for s in known.values() if s.topic not in inconclusive and not _is(s, found)])
        new = {tp: topic_id for tp, topic_id in found.items() if tp[0] not in inconclusive and not _among(tp, topic_id, there)}
        starts = self._starts(new, inconclusive)
        added = [_start(tp, new[tp], start) for tp, start in starts.items()]
        return DiscoveryResult(added, missing=missing, inconclusive=_not_yet(inconclusive) if inconclusive else None)

    def _starts(
        self, new: Collection[TopicPartition], inconclusive: dict[str, str]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Where these start, without those that are deleted while that is asked for: their topics are `inconclusive`."""
        left = dict.fromkeys(new, self._plan.start_of_new_partitions)
        while True:
            try:
                return self.resolve(left, "latest")
            except UnknownTopicError as error:
                unknown = {tp for tp in left if not error.topics.isdisjoint({tp[0], f"{tp[0]}-{tp[1]}"})}
                if not unknown:
                    raise
                views = self._cluster.topic_views({topic for topic, _ in left})
                unknown |= {tp for tp in left if views.denials(tp[0]) and not views.known(tp[0])}
                left = {tp: position for tp, position in left.items() if tp not in unknown}
                inconclusive |= {
                    topic: f"one broker has reported topic {topic}, and its leader does not know it" for topic, _ in unknown
                }

    def later_or_raise(self, known: Mapping[str, KafkaSplit]) -> DiscoveryResult[KafkaSplit]:
        """As `later`, once nothing is inconclusive. Raises OutageError while something is."""
        return self._retrying_inconclusive(partial(super().later_or_raise, known))

    def topic_ids(self, expected: Collection[TopicPartition]) -> Mapping[TopicPartition, UUID | None]:
        """Those of the partitions that the subscription selects and a broker knows, with their topics' ids.

        One is missing in the answer only after several looks at every broker. Raises OutageError while that cannot be known,
        or while brokers differ on a topic's id.
        """
        wanted = {tp for tp in expected if selects(self._subscription, tp)}
        return self._retrying_inconclusive(lambda: self._identified(wanted)) if wanted else {}

    def confirm_deleted(self, splits: Sequence[KafkaSplit]) -> frozenset[str]:
        """Ids of those whose topic no broker knows under its id.

        Raises RetriableError while a broker cannot be asked that may know what the others do not.
        """
        views = self._cluster.topic_views({split.topic for split in splits})
        topics = {split.topic: views.known(split.topic) for split in splits}
        identities = {(name, topic.topic_id) for name, known in topics.items() for topic in known}

        def is_there(split: KafkaSplit) -> bool:
            # a split without an id comes from brokers that had none: any topic of its name may be its own
            return bool(topics[split.topic]) if split.topic_id is None else (split.topic, split.topic_id) in identities

        gone = {split.split_id: split.topic for split in splits if not is_there(split)}
        views.require(gone.values())
        return frozenset(gone)

    def first_offsets(self, splits: Sequence[KafkaSplit]) -> Mapping[str, int]:
        """Where each starts now, by its id, without those that are gone. Raises OutageError while that cannot be known."""
        gone = self._cluster.retrying("looking up topics at every broker", lambda: self.confirm_deleted(splits))
        left = {split.split_id: (split.topic, split.partition) for split in splits if split.split_id not in gone}
        firsts = self.resolve(dict.fromkeys(left.values(), Earliest()), "latest")
        return {split_id: firsts[tp].offset for split_id, tp in left.items()}

    def retired(self, splits: Sequence[KafkaSplit]) -> frozenset[str]:
        """Ids of those that are gone, or that the subscription leaves out. Raises as `confirm_deleted`."""
        left_out = {split.split_id for split in splits if not selects(self._subscription, (split.topic, split.partition))}
        return self.confirm_deleted(splits) | left_out

    def close(self) -> None:
        """Nothing to do: connections belong to the process, see `shared_cluster`."""

    def _select(self, named: Callable[[Collection[str]], Iterable[TopicMetadata]]) -> dict[TopicPartition, UUID | None]:
        match self._subscription:
            case Topics(names):
                return _partitions(named(names))
            case Pattern(regex):
                return _partitions(self._cluster.topics(java_pattern(regex)).values())
            case Partitions(wanted):
                there = _partitions(named(sorted({topic for topic, _ in wanted})))
                return {tp: there[tp] for tp in wanted if tp in there}

    def _known_topics(self, names: Collection[str]) -> list[TopicMetadata]:
        """Those of the topics that exist: a topic that is gone is a finding here, not an error."""
        return [topic for topic in self._cluster.find_topics(names).values() if topic is not None]

    def _existing(self) -> dict[TopicPartition, UUID | None]:
        """Every partition that is selected. Raises UsageError unless all are there that the subscription names."""
        try:
            found = self._select(lambda names: self._cluster.topics(names).values())
            absent = self._absent(found)
        except UnknownTopicError as error:
            absent = sorted(error.topics)
        if absent:
            raise UsageError(f"no such topic or partition on {self._cluster.config.bootstrap}: {', '.join(absent)}")
        return found

    def _absent(self, found: Mapping[TopicPartition, UUID | None]) -> list[str]:
        if isinstance(self._subscription, Partitions):
            return [f"{topic}-{partition}" for topic, partition in self._subscription.wanted if (topic, partition) not in found]
        return []  # a topic that is named must be there to be found; of a pattern's, none may match yet

    def _missing(self, absent: Sequence[KafkaSplit]) -> frozenset[str]:
        """Of the splits that one look lacked those that are selected no more, or that no broker knows by their topic's id."""
        unproven = {split for split in absent if selects(self._subscription, (split.topic, split.partition))}
        missing = frozenset(split.split_id for split in absent if split not in unproven)
        if not unproven:
            return missing
        try:
            for views in self._looks({split.topic for split in unproven}):
                unproven = {split for split in unproven if not views.has(split.topic, split.topic_id, split.partition)}
                if not unproven:
                    break
                views.require({split.topic for split in unproven})
        except (RetriableError, RefusedByBrokerError) as error:
            log.warning("whether %s are gone is not known yet: %s", ", ".join(sorted(map(str, unproven))), error)
            return missing
        return missing | {split.split_id for split in unproven}

    def _decided(self) -> dict[TopicPartition, UUID | None]:
        """Every partition that is selected. Raises as `_existing`, and RetriableError while brokers differ on a topic's id."""
        found = self._existing()
        inconclusive = self._inconclusive(found, {})
        if inconclusive:
            raise _not_yet(inconclusive)
        return found

    def _retrying_inconclusive(self, operation: Callable[[], T]) -> T:
        return self._cluster.retrying("looking up topics until brokers agree on their ids", operation)

    def _inconclusive(
        self, found: Mapping[TopicPartition, UUID | None], known: Mapping[TopicPartition, Set[UUID | None]]
    ) -> dict[str, str]:
        """The topics of which one broker's answer is new, and is not to be believed yet: name -> why.

        Ids have no order: a broker that lags behind, or is isolated from its controllers, reports a topic that was deleted long
        ago. Taken for a new one it would be missing at the next poll, for good, in every checkpoint since. So if another broker
        contradicts it, the topic waits. A broker that does not answer might contradict it. That counts only in a dispute (the
        topic was known by another id, or was unresolved at the last poll); else reading would not start in an outage.
        """
        news = {tp[0]: topic_id for tp, topic_id in found.items() if topic_id and not _among(tp, topic_id, known)}
        names = news.keys() | self._unresolved
        if not names:
            return {}
        ids: dict[str, set[UUID | None]] = {}
        for (topic, _), topic_ids in known.items():
            ids.setdefault(topic, set()).update(topic_ids)
        views = self._cluster.topic_views(names)
        disputes = {name: self._dispute(name, news.get(name), ids.get(name, set()), views) for name in sorted(names)}
        inconclusive = {name: dispute for name, dispute in disputes.items() if dispute is not None}
        self._unresolved = inconclusive.keys()
        return inconclusive

    def _dispute(self, name: str, reported: UUID | None, known: Set[UUID | None], views: TopicViews) -> str | None:
        """Why this topic is not to be taken for the one with the id that was reported, alongside those that are known.

        `reported` is None if the broker that was asked does not know what was unresolved before, or reports a known id. Other
        brokers may still know it by another id.
        """
        ids = views.ids(name) | ({reported} - {None})
        denials = views.denials(name)
        if not ids <= known and len(ids) > 1:
            return f"brokers differ on which topic {name} is: {views.reported(name)}; one has reported {reported}"
        if reported is None and not self._selected_ids(name, views) <= known:
            return f"one broker does not know topic {name}, which others have reported"
        if reported is not None and denials and denials >= len(views.known(name)):
            return f"one broker has reported topic {name}, which {denials} others do not know"
        failure = views.failures.get(name)
        if reported is None and not ids and isinstance(failure, RefusedByBrokerError):
            return None  # who has no right to the topic does not select it, and it may not be there
        if failure is not None and (name in self._unresolved or (known and None not in known and reported not in known)):
            return f"not every broker can be asked which topic {name} is now: {failure}"
        return None

    def _selected_ids(self, name: str, views: TopicViews) -> set[UUID | None]:
        there = (
            topic
            for topic in views.known(name)
            if any(selects(self._subscription, (name, number)) for number in topic.partitions)
        )
        return {topic.topic_id for topic in there if topic.topic_id is not None}

    def _identified(self, wanted: Set[TopicPartition]) -> dict[TopicPartition, UUID | None]:
        """One try to find them. Raises RetriableError for what is not known yet."""
        topics = {topic for topic, _ in wanted}
        answers: list[tuple[Broker, Mapping[str, TopicMetadata | None]]] = []
        found: dict[TopicPartition, UUID | None] = {}
        for views in chain((self._cluster.topic_views(topics),), self._looks(topics)):
            answers += views.answers
            so_far = TopicViews(answers, views.failures)
            disputed = {topic for topic in topics if len(so_far.ids(topic)) > 1}
            self._unresolved |= disputed
            if disputed:
                raise RetriableError(f"brokers differ on which topic {min(disputed)} is: {so_far.reported(min(disputed))}")
            views.require(self._unresolved)
            ids = {topic: min(so_far.ids(topic), default=None) for topic in topics}
            there = {(topic, number) for topic in topics for seen in so_far.known(topic) for number in seen.partitions}
            found = {tp: ids[tp[0]] for tp in wanted & there}
            if found.keys() == wanted:
                break
            views.require({topic for topic, _ in wanted - found.keys()})
        self._unresolved -= topics
        return found

    def _looks(self, topics: Set[str]) -> Iterator[TopicViews]:
        """What brokers know of these topics; as often as it takes to believe in an absence."""
        for attempt in range(1, MISSING_POLLS):
            self._cluster.back_off(attempt)
            yield self._cluster.topic_views(topics)

    def resolve(
        self, positions: Mapping[TopicPartition, Position], no_match: NoMatch, *, is_stop: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """The number of each position, asked of the brokers now; with the epoch before it, if a group has committed that.

        `no_match` says what a Timestamp later than every record means: an error, or the end of the partition. A stop, unlike
        a start, may lie before the first record there is.
        """
        committed = self._committed(positions, is_stop=is_stop)
        concrete: dict[TopicPartition, Position] = {
            tp: _or_fallback(position, committed.get(tp)) if isinstance(position, Committed) else position
            for tp, position in positions.items()
        }
        fixed = {tp: position.offset for tp, position in concrete.items() if isinstance(position, At)}
        asked = {tp: p for tp, p in concrete.items() if isinstance(p, Earliest | Latest | Timestamp)}
        answers = self._cluster.list_offsets(asked, self._plan.isolation) if asked else {}
        unmatched = [tp for tp, answer in answers.items() if answer.offset is None]
        if unmatched and no_match == "error":
            names = ", ".join(f"{topic}-{partition} {asked[topic, partition]}" for topic, partition in sorted(unmatched))
            raise UsageError(
                f"no offset matches the requested timestamp: {names}; ask for the latest offset in that case, or earlier"
            )
        ends = self._cluster.list_offsets(dict.fromkeys(unmatched, Latest()), self._plan.isolation) if unmatched else {}
        # A record may have come between the two questions. If still none matches, none before that end does.
        late = self._cluster.list_offsets({tp: asked[tp] for tp in unmatched}, self._plan.isolation) if unmatched else {}
        found = {
            tp: answer.offset
            for reported in (answers, ends, late)
            for tp, answer in reported.items()
            if answer.offset is not None
        }
        found |= self._in_range(fixed, is_stop=is_stop)
        resolved = {tp: CommittedOffset(found[tp]) for tp in positions}
        # what was committed is checked against the log by its epoch, as a checkpoint's position is (KIP-320)
        return resolved | {tp: position for tp, position in committed.items() if position.offset == found[tp]}

    def _committed(
        self, positions: Mapping[TopicPartition, Position], *, is_stop: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        by_group: dict[str, list[TopicPartition]] = {}
        for tp, position in positions.items():
            if isinstance(position, Committed):
                group = position.group or self._cluster.config.group_id
                if group is None:
                    raise UsageError("a start at committed offsets needs a group: Committed('name'), or group='name'")
                by_group.setdefault(group, []).append(tp)
        committed: dict[TopicPartition, CommittedOffset] = {}
        for group, tps in by_group.items():
            found = {tp: offset for tp, offset in self._cluster.committed_offsets(group, tps).items() if offset is not None}
            if is_stop and not found and any(_would_read_nothing(positions[tp]) for tp in tps):
                raise UsageError(
                    f"the group {group!r} has committed nothing in {_names(tps)}, which gives no stop: is its name right? "
                    f"A fallback says where to stop without it: Committed({group!r}, fallback=Latest())"
                )
            committed |= found
        return committed

    def _in_range(self, fixed: Mapping[TopicPartition, int], *, is_stop: bool) -> dict[TopicPartition, int]:
        """The offsets themselves, or DataLossError (a warning and the nearest offset when data loss is allowed)."""
        if not fixed:
            return {}
        earliest = self._cluster.list_offsets(dict.fromkeys(fixed, Earliest()), Isolation.READ_UNCOMMITTED)
        latest = self._cluster.list_offsets(dict.fromkeys(fixed, Latest()), Isolation.READ_UNCOMMITTED)
        resolved: dict[TopicPartition, int] = {}
        for tp, wanted in fixed.items():
            low, high = 0 if is_stop else earliest[tp].offset or 0, latest[tp].offset or 0
            resolved[tp] = min(max(wanted, low), high)
            if resolved[tp] != wanted:
                message = f"{tp[0]}-{tp[1]}: offset {wanted} is wanted, but only {low} to {high} are there"
                if self._plan.fail_on_data_loss:
                    raise DataLossError(message)
                log.warning("%s; continuing at %d", message, resolved[tp])
        return resolved


def _not_yet(disputes: Mapping[str, str]) -> RetriableError:
    first = min(disputes)
    others = f", and {len(disputes) - 1} topics more are unresolved" if len(disputes) > 1 else ""
    return RetriableError(disputes[first] + others)


def _partitions(topics: Iterable[TopicMetadata]) -> dict[TopicPartition, UUID | None]:
    return {
        (topic.name, partition): topic.topic_id
        for topic in sorted(topics, key=lambda topic: topic.name)
        for partition in sorted(topic.partitions)
    }


def _ids(splits: Iterable[KafkaSplit]) -> dict[TopicPartition, set[UUID | None]]:
    found: dict[TopicPartition, set[UUID | None]] = {}
    for split in splits:
        found.setdefault((split.topic, split.partition), set()).add(split.topic_id)
    return found


def _is(split: KafkaSplit, found: Mapping[TopicPartition, UUID | None]) -> bool:
    tp = (split.topic, split.partition)
    return tp in found and (found[tp] == split.topic_id or None in (found[tp], split.topic_id))


def _among(tp: TopicPartition, topic_id: UUID | None, known: Mapping[TopicPartition, Set[UUID | None]]) -> bool:
    """Whether the partition is known. Old brokers tell no ids: what they tell of is any of that name, and so is one without."""
    ids = known.get(tp, frozenset())
    return topic_id in ids or None in ids or (topic_id is None and bool(ids))


def _each(positions: Positions, partitions: Iterable[TopicPartition], what: str) -> dict[TopicPartition, Position]:
    """One position for each partition; a mapping must name exactly the partitions there are."""
    wanted = list(partitions)
    if not isinstance(positions, Mapping):
        return dict.fromkeys(wanted, positions)
    unnamed, foreign = _names(set(wanted) - positions.keys()), _names(positions.keys() - set(wanted))
    if unnamed or foreign:
        raise UsageError(
            f"{what} positions by partition must name every partition and no other: "
            f"missing [{unnamed}], not there [{foreign}]; use Earliest() or Latest() where the number does not matter"
        )
    return {tp: positions[tp] for tp in wanted}


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))


def _start(tp: TopicPartition, topic_id: UUID | None, start: CommittedOffset, stop: int | None = None) -> KafkaSplit:
    return KafkaSplit(tp[0], topic_id, tp[1], start.offset, stop, start.leader_epoch)


def _or_fallback(position: Committed, committed: CommittedOffset | None) -> Position:
    return position.fallback if committed is None else At(committed.offset)


def _would_read_nothing(stop: Position) -> bool:
    return isinstance(stop, Committed) and isinstance(stop.fallback, Earliest)


def validate(positions: Positions | None, what: str, allowed: Sequence[type]) -> None:
    """Raise UsageError unless `positions` is of the allowed kinds, alone or in a mapping (topic, partition) -> position."""
    if isinstance(positions, Mapping):
        for key in positions:
            if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and type(key[1]) is int):
                raise UsageError(f"{what} by partition must be like {{('topic', 0): ...}}; {key!r} is not (topic, partition)")
    items: Iterable[object] = positions.values() if isinstance(positions, Mapping) else [positions]
    for item in items:
        if not isinstance(item, tuple(allowed)):
            names = ", ".join(kind.__name__ for kind in allowed)
            raise UsageError(f"{what} must be one of {names}, or a mapping (topic, partition) -> one of them, not {item!r}")


_ESCAPED = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?(\]?[^\]]*)\]")  # what lies between the brackets
_JAVA_ONLY = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)


def java_pattern(text: str) -> re.Pattern[str]:
    r"""A Java regular expression, as in `subscribePattern`, for Python: `\Q..\E` and `(?<name>..)` are translated.

    Raises `UsageError` for an expression that Python cannot take, such as one with `\p{..}` classes, or would take to mean
    something else: a class in a class, which Java unites (`[a-c[x-z]]`) or intersects (`[a-z&&[^x]]`).
    """
    python = _JAVA_ONLY.sub(lambda match: re.escape(match[1]), text)
    python = re.sub(r"\(\?<(?![=!])", "(?P<", python)
    if any("&&" in found or "[" in found for found in _CLASS.findall(_ESCAPED.sub("", python))):
        raise UsageError(f"the topic pattern {text!r} has a class in a class, as Java only has them: write it as one class")
    try:
        return re.compile(python)
    except re.error as error:
        raise UsageError(f"the topic pattern {text!r} is not a regular expression that can be used here: {error}") from None
