"""KafkaSource: what to read, from where to where, and how; a value that is validated when made and can be pickled."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pyarrow as pa
from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential

from headrace.connectors.base.arguments import seconds, text, truth
from headrace.connectors.formats.value_format import ValueFormat
from headrace.connectors.kafka.client.arguments import client_config
from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.connectors.kafka.client.errors import LogTruncatedError, OffsetOutOfRangeError, RefusedByBrokerError
from headrace.connectors.kafka.client.groups import CommittedOffset
from headrace.connectors.kafka.client.offsets import OffsetAnswer
from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Position, Timestamp
from headrace.connectors.kafka.client.properties import ClientConfig, Isolation
from headrace.connectors.kafka.client.sasl import SaslConfig
from headrace.connectors.kafka.client.topology import TopicMetadata, TopicPartition
from headrace.connectors.kafka.format.decode import ALL_COLUMNS, MAX_UNCOMPRESSED_BYTES, BadTimestamps
from headrace.connectors.kafka.read.bad_batches import BadBatches
from headrace.connectors.kafka.read.discovery import (
    KafkaDiscovery,
    NoMatch,
    Partitions,
    Pattern,
    PositionPlan,
    Positions,
    Subscription,
    Topics,
    java_pattern,
    selects,
    validate,
)
from headrace.connectors.kafka.read.reader import ALLOW_LOSS, KafkaReader
from headrace.connectors.kafka.read.split import KafkaSplit, KafkaSplitSerializer
from headrace.connectors.kafka.read.topic_ids import is_same
from headrace.connectors.kafka.read.typed import BadRecords, TypedColumns, TypedReader
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.embedded import EmbeddedRun
from headrace.enumerator.errors import DataLossError, HeadraceError, RetriableError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.pauses import POLL_TIMEOUT_S
from headrace.enumerator.resumed import resumed
from headrace.enumerator.source import Boundedness, JsonObject, LogSource, SourceReader

log = logging.getLogger(__name__)

DISCOVERY_INTERVAL_S = 300.0
"""How often new partitions are looked for, in seconds: Flink's default (partition.discovery.interval.ms)."""

FETCH_BUDGET_BYTES = 64 << 20
"""Bound on what one reader has fetched and not yet decoded, in bytes."""

END_LOOKS = 5
"""How often the end of a partition is asked again while it lies before what was already read (KAFKA-7703, SPARK-26267)."""


@dataclass(frozen=True)
class KafkaSource(LogSource[KafkaSplit]):
    """Topics of a Kafka cluster as a source.

    Exactly one of `topics`, `pattern` (a regular expression for the whole name, Java's syntax) and `partitions`
    ({"topic": [0, 1]}, which may have none) says what is read. Arguments:

    - `start`: Earliest() (default), Latest(), At(offset), Timestamp(ms), Committed(group), or one per (topic, partition).
    - `start_of_new_partitions`: of those that appear after the first discovery; Earliest() (default), so that none of their
      records is lost.
    - `stop`: None (default) reads for ever; Latest(), At, Timestamp, Committed, or a mapping, ends there, exclusively.
      It is resolved once, when reading starts or continues from a checkpoint; partitions that appear later are not read.
      Committed is a UsageError then for a group that has committed nothing, unless it has a fallback.
    - `group`: commit the positions there whenever a checkpoint completes (never otherwise). Default: none.
    - `isolation_level`: "read_committed" (default) or "read_uncommitted", which is the Java client's default, and that of the
      engines' transforms and formats that take its options.
    - `properties`: the Java client's names and values ("security.protocol", ...). One that cannot be honoured, or says
      otherwise than an argument, is refused.
    - `sasl`: who logs in, in place of the properties; needed for OAUTHBEARER, whose tokens a Python object provides.
    - `fail_on_data_loss`: True (default) raises DataLossError when records are gone. False warns and continues with what is
      there: where the log starts now; or, where leader epochs prove that it was truncated, where it is no more what was read,
      so that nothing is left out that was written since. A read with a stop never goes back: it ends there. What a
      checkpoint has and the source selects no more is a loss, too: tolerated, it is forgotten.
    - `columns`: of the batches; default key, value, topic, partition, offset, timestamp, timestampType. Also: headers.
      A record without a timestamp has -1 ms: 1969-12-31T23:59:59.999.
    - `discovery_interval_s`: seconds between two looks for new partitions (default 300); None looks only at start and restore.
    - `fetch_budget_bytes`: bound on what one reader holds fetched but not decoded (default 64 MiB).
    - `bad_timestamps`: what becomes of a record whose timestamp does not fit 64-bit microseconds (producers that count in
      nanoseconds): "error" (default), or "null", which keeps the record without its timestamp, and counts it in the log.
    - `bad_batches`: what becomes of a batch of records that cannot be decoded, as its checksum, its codec or its lengths are
      wrong, or it unpacks to too much: "error" (default) raises CorruptDataError, which names its offsets; "skip" continues
      behind it, says so in the log and counts its offsets. The records of it before the wrong place are read.
    - `max_uncompressed_batch_bytes`: bound on what one compressed batch of records may unpack to (default 256 MiB, most
      2 GiB - 1), so that no batch takes all memory.
    - `value`, `key`: formats of `headrace.formats` (default None: bytes as they are). The column then has the format's type.
    - `on_bad_record`: what becomes of a record whose value or key its format cannot decode: "fail" (default) raises
      BadRecordError, which names topic, partition and offset; "keep" has a null, and the columns badValue and badReason (and
      badKey) when they are asked for, and deadLetter, the whole record on its way to its own topic; "skip"
      leaves it out, and counts it in the log. What is not asked for is not decoded.
    - `no_match`: what a start Timestamp later than every record means: "latest" (default), the end, or "error".

    Raises UsageError for anything that contradicts itself; does no I/O.
    """

    bootstrap: str
    topics: Sequence[str] | None = field(default=None, kw_only=True)
    pattern: str | None = field(default=None, kw_only=True)
    partitions: Mapping[str, Sequence[int]] | None = field(default=None, kw_only=True)
    start: Positions = field(default_factory=Earliest, kw_only=True)
    start_of_new_partitions: Position = field(default_factory=Earliest, kw_only=True)
    stop: Positions | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    isolation_level: str = field(default=Isolation.READ_COMMITTED, kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    sasl: SaslConfig | None = field(default=None, kw_only=True)
    fail_on_data_loss: bool = field(default=True, kw_only=True)
    columns: Sequence[str] = field(default=ALL_COLUMNS, kw_only=True)
    discovery_interval_s: float | None = field(default=DISCOVERY_INTERVAL_S, kw_only=True)
    fetch_budget_bytes: int = field(default=FETCH_BUDGET_BYTES, kw_only=True)
    no_match: NoMatch = field(default="latest", kw_only=True)
    bad_timestamps: BadTimestamps = field(default="error", kw_only=True)
    bad_batches: BadBatches = field(default="error", kw_only=True)
    max_uncompressed_batch_bytes: int = field(default=MAX_UNCOMPRESSED_BYTES, kw_only=True)
    value: ValueFormat | None = field(default=None, kw_only=True)
    key: ValueFormat | None = field(default=None, kw_only=True)
    on_bad_record: BadRecords = field(default="fail", kw_only=True)

    name = "kafka"

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        self._check_kinds()
        _ = self.config, self.subscription, self.schema
        everywhere = (Earliest, Latest, At, Timestamp, Committed)
        validate(self.start, "start", everywhere)
        if isinstance(self.start_of_new_partitions, Mapping):
            raise UsageError("start_of_new_partitions must be one position for all: which partitions will appear is not known")
        validate(self.start_of_new_partitions, "start_of_new_partitions", everywhere)
        if self.stop is not None:
            validate(self.stop, "stop", (Latest, At, Timestamp, Committed))
        for positions in (self.start, self.start_of_new_partitions, self.stop):
            for position in positions.values() if isinstance(positions, Mapping) else [positions]:
                if isinstance(position, Committed) and position.group is None and self.config.group_id is None:
                    raise UsageError("Committed() needs a group: Committed('name'), or group='name'")
        if self.no_match not in ("error", "latest"):
            raise UsageError(f"no_match must be 'error' or 'latest', not {self.no_match!r}")

    def _check_kinds(self) -> None:
        """Raise UsageError for a value of another kind than its argument takes."""
        for name in ("pattern", "group", "isolation_level"):
            value = getattr(self, name)
            if value is not None:
                text(name, value)
        if isinstance(self.columns, str) or not _are_names(self.columns):
            raise UsageError(f"columns must be a list of names, not {self.columns!r}")
        truth("fail_on_data_loss", self.fail_on_data_loss)
        budget: object = self.fetch_budget_bytes
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1 << 20:
            raise UsageError(f"fetch_budget_bytes must be a whole number of at least 1 MiB, not {budget!r}")
        most: object = self.max_uncompressed_batch_bytes
        if isinstance(most, bool) or not isinstance(most, int) or not 0 < most < 2**31:
            raise UsageError(f"max_uncompressed_batch_bytes must be a whole number from 1 to {2**31 - 1}, not {most!r}")
        for name in ("value", "key"):
            if not isinstance(getattr(self, name), ValueFormat | None):
                raise UsageError(f"{name} must be a format of headrace.formats, not {getattr(self, name)!r}")
        if self.on_bad_record not in ("fail", "keep", "skip"):
            raise UsageError(f"on_bad_record must be 'fail', 'keep' or 'skip', not {self.on_bad_record!r}")
        if self.bad_timestamps not in ("error", "null"):
            raise UsageError(f"bad_timestamps must be 'error' or 'null', not {self.bad_timestamps!r}")
        if self.bad_batches not in ("error", "skip"):
            raise UsageError(f"bad_batches must be 'error' or 'skip', not {self.bad_batches!r}")
        if self.discovery_interval_s is not None:
            seconds("discovery_interval_s", self.discovery_interval_s)

    @functools.cached_property
    def config(self) -> ClientConfig:
        """The client configuration that `bootstrap`, `isolation_level`, `group`, `sasl` and `properties` make."""
        arguments = {"isolation_level": ("isolation.level", self.isolation_level), "group": ("group.id", self.group)}
        return client_config(self.bootstrap, self.properties, arguments, sasl=self.sasl)

    @functools.cached_property
    def subscription(self) -> Subscription:
        """What is read, as one tagged value."""
        given = [name for name in ("topics", "pattern", "partitions") if getattr(self, name) is not None]
        if len(given) != 1:
            raise UsageError(f"give exactly one of topics, pattern and partitions, not {' and '.join(given) or 'none'}")
        if self.topics is not None:
            if isinstance(self.topics, str) or not _are_names(self.topics) or not self.topics:
                raise UsageError(f"topics must be a non-empty list of names, not {self.topics!r}")
            return Topics(tuple(dict.fromkeys(self.topics)))
        if self.partitions is not None:
            return Partitions(_numbered(self.partitions))
        if not self.pattern:
            raise UsageError("pattern must not be empty: no topic has an empty name")
        java_pattern(self.pattern)
        return Pattern(self.pattern)

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The columns asked for, in the order of `ALL_COLUMNS`, with the types of Kafka or of the formats."""
        return self.typed.schema

    @functools.cached_property
    def typed(self) -> TypedColumns:
        """The columns, and how they come to have their types."""
        formats = {name: each for name, each in (("key", self.key), ("value", self.value)) if each is not None}
        return TypedColumns(tuple(self.columns), formats, self.on_bad_record)

    @property
    def boundedness(self) -> Boundedness:
        """BOUNDED when there is a `stop`."""
        return Boundedness.UNBOUNDED if self.stop is None else Boundedness.BOUNDED

    @property
    def split_serializer(self) -> KafkaSplitSerializer:
        """The serializer of Kafka splits."""
        return KafkaSplitSerializer()

    def create_discovery(self) -> KafkaDiscovery:
        """A discovery over the process's connections."""
        plan = PositionPlan(
            self.start, self.start_of_new_partitions, self.stop, self.config.isolation, self.no_match, self.fail_on_data_loss
        )
        return KafkaDiscovery(shared_cluster(self.config), self.subscription, plan)

    def create_reader(self) -> SourceReader[KafkaSplit]:
        """A reader over the process's connections."""
        reader = KafkaReader(
            shared_cluster(self.config),
            columns=self.typed.raw if self.typed.wanted else self.schema.names,
            fetch_budget_bytes=self.fetch_budget_bytes,
            fail_on_data_loss=self.fail_on_data_loss,
            bad_timestamps=self.bad_timestamps,
            bad_batches=self.bad_batches,
            max_uncompressed_batch_bytes=self.max_uncompressed_batch_bytes,
        )
        return TypedReader(reader, self.typed) if self.typed.wanted else reader

    def with_columns(self, columns: Sequence[str]) -> Self:
        """The same source, building only these columns."""
        return replace(self, columns=tuple(columns))

    def batches(self, checkpoint: bytes | None = None) -> KafkaBatches:
        """Read in this process: an iterator of Arrow record batches, fresh or continuing from a checkpoint's bytes.

            for batch in KafkaSource("localhost:9092", topics=["flights"], stop=Latest()).batches():
                ...

        Ends by itself when there is a `stop`. See `KafkaBatches` for checkpoints.
        """
        return KafkaBatches(self, checkpoint)

    # --- what an engine that plans by itself asks -----------------------------------------------------------------------

    def end_offsets(self, splits: Sequence[KafkaSplit]) -> Mapping[str, int]:
        """Where each partition ends now: the high watermark, or under read_committed the last stable offset.

        An end before what was already read is asked for again; if it stays, that is DataLossError, or with
        `fail_on_data_loss=False` a warning and the position itself: a number alone proves nothing.
        """
        ends = self._looked(splits)
        return {split_id: end.next_offset for split_id, end in self._never_behind(splits, ends, {}).items()}

    def stop_offsets(self, splits: Sequence[KafkaSplit]) -> Mapping[str, int]:
        """Where reading of them ends by `stop`. Raises UsageError for stops by partition that do not fit these."""
        return self.create_discovery().stops(splits)

    def at_end(self, splits: Sequence[KafkaSplit]) -> Mapping[str, KafkaSplit]:
        """Each partition as it is at its end now, with the epoch of the leader that reported the end.

        That leader's log holds all before the end, so the epoch serves to notice later that the log was truncated (KIP-320).
        Where what was read is in the log no more, that is LogTruncatedError, or with `fail_on_data_loss=False` a warning; the
        answer is then where that starts, and reading continues there. An end before what was read is as for `end_offsets`.
        """
        ends = self._looked(splits)
        return self._never_behind(splits, ends, dict(self._diverged(splits, ends)))

    def moved(self, at_end: KafkaSplit, offset: int) -> KafkaSplit:
        """The partition at an offset up to `at_end`, of which the same holds: that leader's log holds all before it."""
        return replace(at_end, next_offset=offset, stop_offset=None)

    def _looked(self, splits: Sequence[KafkaSplit]) -> dict[str, KafkaSplit]:
        """Where they end, asked again while that is before the position: it may pass (KAFKA-7703)."""
        looks = Retrying(
            retry=retry_if_result(lambda ends: any(ends[s.split_id].next_offset < s.next_offset for s in splits)),
            stop=stop_after_attempt(END_LOOKS),
            wait=wait_exponential(multiplier=0.1, max=1.0),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        looked: dict[str, KafkaSplit] = looks(self._ends, splits)
        return looked

    def _never_behind(
        self, splits: Sequence[KafkaSplit], ends: Mapping[str, KafkaSplit], parted: Mapping[str, int]
    ) -> dict[str, KafkaSplit]:
        """These ends; where records that were read are lost, and that is tolerated, where to continue.

        That is where the log has `parted` from what was read; or, without that proof, the position itself (I4). All this was
        asked for by name: if it was said of another topic, the split stays where it is, and discovery reports what became of
        it.
        """
        kept = dict(ends) | self._of_other_topics(splits, ends, parted)
        splits = [split for split in splits if kept[split.split_id] is not split]
        for split in splits:
            end, at = ends[split.split_id], parted.get(split.split_id)
            if end.next_offset < split.next_offset:
                self._lost(
                    DataLossError(
                        f"{split}: the partition ends at {end.next_offset}, but was already read up to {split.next_offset}: "
                        "records were lost, or the topic was re-created"
                    ),
                    resume := split.next_offset if at is None else at,
                )
                kept[split.split_id] = replace(end, next_offset=resume)
            elif at is not None:
                self._lost(LogTruncatedError(split.topic, split.partition, split.next_offset, at), at)
                kept[split.split_id] = replace(end, next_offset=at)
        return kept

    def _of_other_topics(
        self, splits: Sequence[KafkaSplit], ends: Mapping[str, KafkaSplit], parted: Mapping[str, int]
    ) -> dict[str, KafkaSplit]:
        """Of the splits whose records seem lost those of which this was not said: there is another topic of their name (I5).

        Raises OutageError when the brokers cannot be asked.
        """
        lossy = [s for s in splits if s.split_id in parted or ends[s.split_id].next_offset < s.next_offset]
        names = {split.topic for split in lossy if split.topic_id is not None}
        if not names:
            return {}
        cluster = shared_cluster(self.config)
        answers = cluster.retrying("looking up topics at every broker", lambda: cluster.find_topics_everywhere(names))
        return {s.split_id: s for s in lossy if s.topic in names and not is_same(s.topic, s.topic_id, answers)}

    def _ends(self, splits: Sequence[KafkaSplit]) -> dict[str, KafkaSplit]:
        latest: dict[TopicPartition, Earliest | Latest | Timestamp] = {(s.topic, s.partition): Latest() for s in splits}
        answers = shared_cluster(self.config).list_offsets(latest) if latest else {}
        answers |= self._behind_what_is_open(splits, answers)
        ends: dict[str, KafkaSplit] = {}
        for split in splits:
            answer = answers[split.topic, split.partition]
            end = answer.offset or 0
            stop = end if split.stop_offset is None else min(end, split.stop_offset)
            ends[split.split_id] = replace(split, next_offset=stop, last_epoch=answer.leader_epoch)
        return ends

    def _behind_what_is_open(
        self, splits: Sequence[KafkaSplit], answers: Mapping[TopicPartition, OffsetAnswer]
    ) -> dict[TopicPartition, OffsetAnswer]:
        """The position itself, where that is behind a transaction that is open.

        Under read_committed the log ends at the transaction. A start offset may be behind that, or a checkpoint of a reader
        under read_uncommitted.
        """
        late = {(s.topic, s.partition): s.next_offset for s in splits}
        late = {tp: at for tp, at in late.items() if (answers[tp].offset or 0) < at}
        if not late or self.config.isolation is not Isolation.READ_COMMITTED:
            return {}
        written = shared_cluster(self.config).list_offsets(dict.fromkeys(late, Latest()), Isolation.READ_UNCOMMITTED)
        return {tp: replace(end, offset=late[tp]) for tp, end in written.items() if (end.offset or 0) >= late[tp]}

    def _diverged(self, splits: Sequence[KafkaSplit], ends: Mapping[str, KafkaSplit]) -> Iterator[tuple[str, int]]:
        """Those whose log is no more as it was read, and from which offset on; only a new leader can have truncated it."""
        epochs: dict[TopicPartition, int] = {}
        for split in splits:
            leads = ends[split.split_id].last_epoch
            if split.last_epoch is not None and leads is not None and leads > split.last_epoch:
                epochs[split.topic, split.partition] = split.last_epoch
        found = shared_cluster(self.config).epoch_ends(epochs) if epochs else {}
        for split in splits:
            end = found.get((split.topic, split.partition))
            if end is not None and end < split.next_offset:
                yield split.split_id, end

    def _lost(self, error: DataLossError, resume: int) -> None:
        if self.fail_on_data_loss:
            error.add_note(ALLOW_LOSS)
            raise error
        log.warning("%s; continuing at offset %d", error, resume)

    def selects(self, split: KafkaSplit) -> bool:
        """Whether the topic, or the partition, is one of those that this source reads."""
        return selects(self.subscription, (split.topic, split.partition))

    def on_splits_missing(self, splits: Sequence[KafkaSplit]) -> None:
        """Partitions are gone. DataLossError, or with `fail_on_data_loss=False` a warning."""
        found = shared_cluster(self.config).find_topics({split.topic for split in splits})
        stories = (
            f"{split} (topic id {split.topic_id}, checkpoint at offset {split.next_offset}): {_fate(split, found[split.topic])}"
            for split in splits
        )
        message = f"partitions are gone: {', '.join(stories)}"
        if self.fail_on_data_loss:
            raise DataLossError(f"{message}. {ALLOW_LOSS}")
        log.warning("%s; continuing without them", message)

    def on_positions_final(self, cursor: JsonObject | None, splits: Sequence[KafkaSplit]) -> None:
        """Warn of topics and partitions that are named, and are not among these."""
        topics, partitions = {split.topic for split in splits}, {(split.topic, split.partition) for split in splits}
        match self.subscription:
            case Topics(names):
                lacking = [name for name in names if name not in topics]
            case Partitions(wanted):
                lacking = [f"{topic}-{partition}" for topic, partition in wanted if (topic, partition) not in partitions]
            case _:  # which topics a pattern has found is not known without a broker
                lacking = []
        if lacking:
            log.warning(
                "%s: not read, as the checkpoint is of a read with a stop that found its partitions before these were named. "
                "To read them start with a new checkpoint, or leave stop out",
                ", ".join(lacking),
            )

    def check_readable(self, splits: Sequence[KafkaSplit]) -> None:
        """What retention has removed, or went with the topic: DataLossError, or with `fail_on_data_loss=False` a warning.

        Raises OutageError when the brokers cannot be asked.
        """
        cluster = shared_cluster(self.config)
        gone = cluster.retrying("looking up topics at every broker", lambda: self.create_discovery().confirm_deleted(splits))
        if gone:
            self.on_splits_missing([split for split in splits if split.split_id in gone])
        there = {(s.topic, s.partition): s for s in splits if s.split_id not in gone}
        earliest = cluster.list_offsets(dict.fromkeys(there, Earliest())) if there else {}
        ends = self.end_offsets(list(there.values()))
        for tp, split in there.items():
            first = earliest[tp].offset or 0
            if first > split.next_offset:
                self._lost(OffsetOutOfRangeError(*tp, split.next_offset, first, max(first, ends[split.split_id])), first)

    def confirm_deleted(self, splits: Sequence[KafkaSplit]) -> frozenset[str]:
        """Ids of those whose topic no broker knows under its id; none while a broker is away."""
        return self._proven(splits, self.create_discovery().confirm_deleted)

    def retired(self, splits: Sequence[KafkaSplit]) -> frozenset[str]:
        """Ids of those whose topic no broker knows under its id, or that are selected no more; none while a broker is away."""
        return self._proven(splits, self.create_discovery().retired)

    def _proven(self, splits: Sequence[KafkaSplit], prove: Callable[[Sequence[KafkaSplit]], frozenset[str]]) -> frozenset[str]:
        try:
            return prove(splits)
        except (RetriableError, RefusedByBrokerError) as error:
            log.warning("whether %s are gone for good is not known yet: %s", ", ".join(map(str, splits)), error)
            return frozenset()

    @property
    def publishes(self) -> bool:
        """Whether there is a group to commit positions to."""
        return self.group is not None

    def checkpoint_completed(self, splits: Sequence[KafkaSplit]) -> None:
        """Commit these positions to the group, if there is one."""
        if self.group is None:
            return
        # A group's offsets go by name: those for a topic that is gone must not be taken for those of its successor (I5).
        positions = {(s.topic_id, s.topic, s.partition): CommittedOffset(s.next_offset, s.last_epoch) for s in splits}
        shared_cluster(self.config).commit_offsets_by_id(self.group, positions)


def _are_names(values: object) -> bool:
    return isinstance(values, Collection) and all(isinstance(value, str) and value for value in values)


def _numbered(partitions: object) -> tuple[TopicPartition, ...]:
    """Each partition once. Raises UsageError for anything but names with whole numbers from 0."""
    named: Mapping[Any, Any] = partitions if isinstance(partitions, Mapping) else {None: ()}
    lists = {topic: each for topic, each in named.items() if isinstance(each, Collection) and not isinstance(each, str | bytes)}
    wanted = [(topic, number) for topic, numbers in lists.items() for number in numbers]
    if lists.keys() != named.keys() or not _are_names(lists) or not all(_is_index(p) for _, p in wanted):
        raise UsageError(f"partitions must be like {{'topic': [0, 1]}}, not {partitions!r}")
    return tuple(dict.fromkeys(wanted))


def _is_index(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _fate(split: KafkaSplit, topic: TopicMetadata | None) -> str:
    if topic is None:
        return "the topic was deleted"
    if topic.topic_id != split.topic_id:
        return f"the topic was deleted and created again, its id is now {topic.topic_id}"
    return "the topic is there, but the source no longer selects the partition"


def _with_own_end(source: KafkaSource, positions: Checkpoint[KafkaSplit]) -> Checkpoint[KafkaSplit]:
    """These positions, up to where this source ends. In them is where the reading before was to end."""
    if source.stop is not None:
        return resumed(source, positions)
    endless = (SplitState(state.split.between(state.split.next_offset, None), finished=False) for state in positions.splits)
    return Checkpoint(positions.checkpoint_id, tuple(endless), exhausted=False)


class KafkaBatches:
    """Iterates the Arrow record batches of a source in the caller's thread. A context manager.

    One thread at a time: a call while another thread's has not returned is a UsageError, as the batch that one gets would count
    as taken. (So it is where `asyncio.wait_for` gave up `asyncio.to_thread(next, batches)`, which still waits.) `close` may be
    called by any.

    `checkpoint()` gives the state as of the batches taken so far, as bytes to store; once they are stored, call
    `checkpoint_completed()`, which commits offsets to the source's group, if it has one. `source.batches(those bytes)`
    continues from there: no record twice, none lost, partitions that were added meanwhile included. It ends at the `stop` of
    that source, as it is then, and without one does not end.
    """

    def __init__(self, source: KafkaSource, checkpoint: bytes | None) -> None:
        """Not for callers: see `KafkaSource.batches`. Contacts the cluster."""
        if checkpoint is not None:  # which has where the reading before was to end
            serializer = CheckpointSerializer(source.name, source.split_serializer)
            checkpoint = serializer.serialize(_with_own_end(source, serializer.deserialize(checkpoint)))
        self._run = EmbeddedRun(
            source, clock=time.monotonic, checkpoint=checkpoint, discovery_interval_s=source.discovery_interval_s
        )
        self._in_use = threading.RLock()  # of the thread whose call has not returned; a signal handler is of that thread, too

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """This object."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch that has rows; waits for it. Ends for good when every partition is at its stop, and after `close`.

        A call that is interrupted, as by Ctrl-C, has taken nothing: the next one gives what it would have given. Raises
        StateError where it was interrupted while the run changed its own state.
        """
        before = self._run.handed
        try:
            with self._used():
                while not self._run.finished and not self._run.closed:
                    batch = self._run.poll(POLL_TIMEOUT_S)
                    if batch is not None and batch.records.num_rows:
                        return batch.records
        except HeadraceError:
            raise
        except BaseException:
            self._run.take_back(before)
            raise
        self.close()
        raise StopIteration

    def checkpoint(self) -> bytes:
        """The state as of the batches taken so far: store it, then call `checkpoint_completed`, or `checkpoint_aborted`.

        Raises StateError where neither was called of an earlier one.
        """
        with self._used():
            return self._run.checkpoint()

    def checkpoint_completed(self) -> None:
        """What `checkpoint` returned is stored. Commits offsets to the group, if the source has one."""
        with self._used():
            self._run.checkpoint_completed()

    def checkpoint_aborted(self) -> None:
        """What `checkpoint` returned could not be stored. The next one has its batches, too."""
        with self._used():
            self._run.checkpoint_aborted()

    @contextmanager
    def _used(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise UsageError(
                "another thread is in a call of these batches, and what it gets counts as taken: wait for that call, as for an "
                "asyncio.to_thread(next, batches) that a timeout has given up, or read with one iterator for each thread"
            )
        try:
            yield
        finally:
            self._in_use.release()

    def close(self) -> None:
        """Stop fetching. May be called more than once."""
        self._run.close()

    def __enter__(self) -> Self:
        """Leaving closes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
