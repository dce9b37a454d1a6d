"""What a Kafka error code means to us: one table from the broker's codes to headrace's error tree.

A code that the table does not have, such as one that a newer broker invents, becomes a plain `BrokerError` with its number.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.connectors.kafka.client.error_codes import ErrorCode, error_name
from headrace.enumerator.errors import (
    AuthenticationError,
    CorruptDataError,
    DataLossError,
    FencedError,
    PeerError,
    RetriableError,
    UsageError,
)


class BrokerError(PeerError):
    """A broker answered with an error code. `code` is the protocol's number, `name` its name."""

    def __init__(self, code: int, where: str, hint: str = "") -> None:
        """For `broker_error`; `where` says what was asked of whom."""
        self.code: int = code
        self.name: str = error_name(code)
        advice = hint or _HINTS.get(code, "")
        super().__init__(f"{where}: the broker answered {self.name} ({code})" + (f"; {advice}" if advice else ""))
        self._arguments = (code, where, hint)

    def __reduce__(self) -> tuple[type[BrokerError], tuple[int, str, str], dict[str, Any]]:
        """Errors travel from worker processes to the driver, with their notes."""
        return type(self), self._arguments, vars(self)


class RetriableBrokerError(BrokerError, RetriableError):
    """A transient condition at the broker: refresh the metadata, back off, ask again."""


class NoCoordinatorError(RetriableBrokerError):
    """Brokers answer and know no coordinator, and no topic of theirs: perhaps there never is one.

    It is an internal topic, which is not created where it is to have more replicas than there are brokers.
    """


class HiddenCoordinatorError(RetriableBrokerError):
    """Brokers answer and know no coordinator, and do not say whether they have a topic of theirs: one may be away."""


class RefusedByBrokerError(BrokerError, AuthenticationError):
    """The broker refused our credentials or our rights."""


class FencedByBrokerError(BrokerError, FencedError):
    """A newer producer or member with our identity has taken over."""


class CorruptAtBrokerError(BrokerError, CorruptDataError):
    """The broker states that the bytes, ours or its own, are corrupt."""


class InvalidForBrokerError(BrokerError, UsageError):
    """The broker states that a name or value which the caller gave is not valid."""


class GroupInUseError(BrokerError):
    """Offsets cannot be committed for a group that has live members of its own, such as a running consumer."""


class UnknownTopicError(RetriableError):
    """Topics that no broker knows (yet, or any more). `topics` holds their names."""

    def __init__(self, topics: Collection[str]) -> None:
        """`topics`: their names."""
        if isinstance(topics, str):  # an engine makes errors again by their texts, and a RuntimeError if that is refused
            raise TypeError("topics is a set of names, not a text")
        self.topics: frozenset[str] = frozenset(topics)
        names = ", ".join(repr(name) for name in sorted(topics))
        why = "misspelt, deleted, or hidden because Describe was not granted"
        super().__init__(f"no broker knows the topic {names}; it may be {why}")

    def __reduce__(self) -> tuple[type[UnknownTopicError], tuple[Any, ...], dict[str, Any]]:
        """Errors travel from worker processes to the driver, with their notes."""
        return type(self), (self.topics,), vars(self)


class UnknownPartitionError(UnknownTopicError):
    """A partition that no broker knows, of a topic that they know. `topics` holds its name, such as orders-3."""

    def __init__(self, topic: str, partition: int) -> None:
        """One of a topic that has fewer."""
        super().__init__({f"{topic}-{partition}"})
        self._arguments = (topic, partition)
        why = "the topic has fewer, and may have been deleted and created again"
        self.args = (f"no broker knows the partition {partition} of topic {topic!r}; {why}",)

    def __reduce__(self) -> tuple[type[UnknownTopicError], tuple[Any, ...], dict[str, Any]]:
        """Errors travel from worker processes to the driver, with their notes."""
        return type(self), self._arguments, vars(self)


class OffsetOutOfRangeError(DataLossError):
    """The leader itself, asked again, does not have the offset `wanted`; it has `earliest` to `latest` (exclusive)."""

    def __init__(self, topic: str, partition: int, wanted: int, earliest: int, latest: int) -> None:
        """`latest` is the first offset not yet written."""
        self.topic: str = topic
        self.partition: int = partition
        self.wanted: int = wanted
        self.earliest: int = earliest
        self.latest: int = latest
        if wanted < earliest:
            story = f"offsets {wanted} to {earliest - 1} were deleted (by retention or DeleteRecords) before they were read"
        else:
            story = "the log is shorter than what was read from it: it was truncated, or the position is another cluster's"
        range_ = f"available are {earliest} to {latest} (exclusive)"
        super().__init__(f"{topic}-{partition}: offset {wanted} is out of range, {range_}; {story}")

    def __reduce__(self) -> tuple[type[OffsetOutOfRangeError], tuple[str, int, int, int, int], dict[str, Any]]:
        """Errors travel from worker processes to the driver, with their notes."""
        return type(self), (self.topic, self.partition, self.wanted, self.earliest, self.latest), vars(self)


class TopicRecreatedError(DataLossError):
    """The topic was deleted (`found` is None), or deleted and created again (`found` is the new topic's id)."""

    def __init__(self, topic: str, expected: str, found: str | None) -> None:
        """`expected` and `found` are topic ids."""
        self.topic: str = topic
        self.expected: str = expected
        self.found: str | None = found
        story = "was deleted" if found is None else f"was deleted and created again: its id is now {found}"
        positions = f"the positions held are for topic id {expected} and mean nothing in another topic"
        super().__init__(f"topic {topic!r} {story}; {positions}")

    def __reduce__(self) -> tuple[type[TopicRecreatedError], tuple[str, str, str | None], dict[str, Any]]:
        """Errors travel from worker processes to the driver, with their notes."""
        return type(self), (self.topic, self.expected, self.found), vars(self)


class LogTruncatedError(DataLossError):
    """Records already read, `diverges_at` to `wanted` - 1, are no longer in the log (unclean leader election; KIP-320).

    Where the two are the same the last one is, and maybe others before it: the log has more of an older epoch than was read.
    """

    def __init__(self, topic: str, partition: int, wanted: int, diverges_at: int, epoch: int | None = None) -> None:
        """`wanted` is the next offset that was to be read; `epoch` that of the record before `diverges_at`, if it is known."""
        self.topic: str = topic
        self.partition: int = partition
        self.wanted: int = wanted
        self.diverges_at: int = diverges_at
        self.epoch: int | None = epoch
        offsets = f"offsets {diverges_at} to {wanted - 1}"
        if diverges_at == wanted:
            offsets = f"offset {wanted - 1}, and maybe offsets before it,"
        reported = f"{offsets} were read already, and the log now holds other records there"
        super().__init__(f"{topic}-{partition}: the log was truncated; {reported}")

    def __reduce__(self) -> tuple[type[LogTruncatedError], tuple[str, int, int, int, int | None], dict[str, Any]]:
        """Errors travel from worker processes to the driver, with their notes."""
        return type(self), (self.topic, self.partition, self.wanted, self.diverges_at, self.epoch), vars(self)


class ConnectionLostError(RetriableError):
    """A connection could not be made, was lost, or went silent. Whether the last request took effect is unknown."""


class TlsError(PeerError):
    """No TLS: an untrusted or mismatching certificate, a missing client certificate, or a port that speaks none."""


_CODES_OF: dict[type[BrokerError], str] = {
    RetriableBrokerError: """
        UNKNOWN_SERVER_ERROR UNKNOWN_TOPIC_OR_PARTITION LEADER_NOT_AVAILABLE NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT
        BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
        NOT_COORDINATOR NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_CONTROLLER CONCURRENT_TRANSACTIONS
        TRANSACTION_COORDINATOR_FENCED KAFKA_STORAGE_ERROR FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH
        LISTENER_NOT_FOUND FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH OFFSET_NOT_AVAILABLE PREFERRED_LEADER_NOT_AVAILABLE
        ELIGIBLE_LEADERS_NOT_AVAILABLE UNSTABLE_OFFSET_COMMIT THROTTLING_QUOTA_EXCEEDED UNKNOWN_TOPIC_ID
        INCONSISTENT_TOPIC_ID FETCH_SESSION_TOPIC_ID_ERROR NEW_LEADER_ELECTED REBOOTSTRAP_REQUIRED""",
    RefusedByBrokerError: """
        TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED UNSUPPORTED_SASL_MECHANISM
        ILLEGAL_SASL_STATE TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED SASL_AUTHENTICATION_FAILED
        DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH
        DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED
        PRINCIPAL_DESERIALIZATION_FAILURE""",
    FencedByBrokerError: "INVALID_PRODUCER_EPOCH FENCED_INSTANCE_ID PRODUCER_FENCED FENCED_MEMBER_EPOCH",
    CorruptAtBrokerError: "CORRUPT_MESSAGE INVALID_RECORD",
    InvalidForBrokerError: """
        MESSAGE_TOO_LARGE OFFSET_METADATA_TOO_LARGE INVALID_TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE INVALID_REQUIRED_ACKS
        INVALID_GROUP_ID INVALID_SESSION_TIMEOUT INVALID_TIMESTAMP TOPIC_ALREADY_EXISTS INVALID_PARTITIONS
        INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG INVALID_TRANSACTION_TIMEOUT
        UNSUPPORTED_COMPRESSION_TYPE""",
    GroupInUseError: "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS NON_EMPTY_GROUP STALE_MEMBER_EPOCH",
}
_CLASS_OF: dict[int, type[BrokerError]] = {ErrorCode[name]: kind for kind, names in _CODES_OF.items() for name in names.split()}

_LIVE_MEMBERS = "the group has live members, so only they may commit its offsets: stop them or choose another group"
_HINTS: dict[int, str] = {
    ErrorCode.ILLEGAL_GENERATION: _LIVE_MEMBERS,
    ErrorCode.UNKNOWN_MEMBER_ID: _LIVE_MEMBERS,
    ErrorCode.REBALANCE_IN_PROGRESS: "the group is rebalancing live members: stop them or choose another group",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this user Read on the topic, or Write if it writes there",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this user Read on the group",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "the broker has not enabled this sasl.mechanism",
    ErrorCode.ILLEGAL_SASL_STATE: "the listener at this port expects no SASL: check security.protocol",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "the broker allows no transaction this long: lower the timeout or raise transaction.max.timeout.ms"
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant this user Write on the transactional id",
    ErrorCode.MESSAGE_TOO_LARGE: "a single record is larger than the topic's max.message.bytes",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "check the user name and the password",
}


def broker_error(code: int, where: str, hint: str = "") -> BrokerError:
    """The error for a code that a broker answered, to be raised by the caller.

    `where` says what was asked of whom, for instance "fetching orders-3 from broker 2". The class decides what happens
    next: `RetriableBrokerError`, `RefusedByBrokerError`, ... or plain `BrokerError` when trying again does not help.
    """
    return _CLASS_OF.get(code, BrokerError)(code, where, hint)
