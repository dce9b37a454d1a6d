"""What a Kafka error code means to us: one table from the broker's codes to headrace's error tree.

Codes and names are those of the Kafka protocol (`org.apache.kafka.common.protocol.Errors`). Codes from 128 up, and any that
a newer broker invents, become a plain `BrokerError` that keeps the number.
"""

from __future__ import annotations

from headrace.enumerator.errors import (
    AuthenticationError,
    CorruptDataError,
    DataLossError,
    FencedError,
    PeerError,
    RetriableError,
    UsageError,
)

__all__ = [
    "BrokerError",
    "ConnectionLostError",
    "CorruptAtBrokerError",
    "FencedByBrokerError",
    "GroupInUseError",
    "InvalidForBrokerError",
    "LogTruncatedError",
    "OffsetOutOfRangeError",
    "RefusedByBrokerError",
    "RetriableBrokerError",
    "TlsError",
    "TopicRecreatedError",
    "UnknownTopicError",
    "broker_error",
    "error_name",
]


class BrokerError(PeerError):
    """A broker answered with an error code. `code` is the protocol's number, `name` its name."""

    def __init__(self, code: int, where: str, hint: str = "") -> None:
        """For `broker_error`; `where` says what was asked of whom."""
        self.code = code
        self.name = error_name(code)
        advice = hint or _HINTS.get(code, "")
        super().__init__(f"{where}: the broker answered {self.name} ({code})" + (f"; {advice}" if advice else ""))
        self._arguments = (code, where, hint)

    def __reduce__(self) -> tuple[type[BrokerError], tuple[int, str, str]]:
        """Errors travel from worker processes to the driver."""
        return type(self), self._arguments


class RetriableBrokerError(BrokerError, RetriableError):
    """A passing condition at the broker: refresh the metadata, back off, ask again."""


class RefusedByBrokerError(BrokerError, AuthenticationError):
    """The broker refused our credentials or our rights."""


class FencedByBrokerError(BrokerError, FencedError):
    """A newer producer or member with our identity has taken over."""


class CorruptAtBrokerError(BrokerError, CorruptDataError):
    """The broker says that the bytes, ours or its own, are corrupt."""


class InvalidForBrokerError(BrokerError, UsageError):
    """The broker says that a name or value which the caller gave is not valid."""


class GroupInUseError(BrokerError):
    """Offsets cannot be committed for a group that has live members of its own, such as a running consumer."""


class UnknownTopicError(RetriableError):
    """Topics that no broker knows (yet, or any more). `topics` holds their names."""

    def __init__(self, topics: frozenset[str]) -> None:
        """`topics`: their names."""
        self.topics = topics
        names = ", ".join(repr(name) for name in sorted(topics))
        why = "misspelt, deleted, or hidden because Describe was not granted"
        super().__init__(f"no broker knows the topic {names}; it may be {why}")

    def __reduce__(self) -> tuple[type[UnknownTopicError], tuple[frozenset[str]]]:
        """Errors travel from worker processes to the driver."""
        return type(self), (self.topics,)


class OffsetOutOfRangeError(DataLossError):
    """The leader itself, asked again, does not have the offset `wanted`; it has `earliest` to `latest` (exclusive)."""

    def __init__(self, topic: str, partition: int, wanted: int, earliest: int, latest: int) -> None:
        """`latest` is the first offset not yet written."""
        self.topic, self.partition = topic, partition
        self.wanted, self.earliest, self.latest = wanted, earliest, latest
        if wanted < earliest:
            story = f"offsets {wanted} to {earliest - 1} were deleted (by retention or DeleteRecords) before they were read"
        else:
            story = "the log is shorter than what was read from it: it was truncated, or the position is another cluster's"
        range_ = f"available are {earliest} to {latest} (exclusive)"
        super().__init__(f"{topic}-{partition}: offset {wanted} is out of range, {range_}; {story}")

    def __reduce__(self) -> tuple[type[OffsetOutOfRangeError], tuple[str, int, int, int, int]]:
        """Errors travel from worker processes to the driver."""
        return type(self), (self.topic, self.partition, self.wanted, self.earliest, self.latest)


class TopicRecreatedError(DataLossError):
    """The topic was deleted (`found` is None), or deleted and created again (`found` is the new topic's id)."""

    def __init__(self, topic: str, expected: str, found: str | None) -> None:
        """`expected` and `found` are topic ids."""
        self.topic, self.expected, self.found = topic, expected, found
        story = "was deleted" if found is None else f"was deleted and created again: its id is now {found}"
        positions = f"the positions held are for topic id {expected} and mean nothing in another topic"
        super().__init__(f"topic {topic!r} {story}; {positions}")

    def __reduce__(self) -> tuple[type[TopicRecreatedError], tuple[str, str, str | None]]:
        """Errors travel from worker processes to the driver."""
        return type(self), (self.topic, self.expected, self.found)


class LogTruncatedError(DataLossError):
    """Records already read, `diverges_at` to `wanted` - 1, are no longer in the log (unclean leader election; KIP-320)."""

    def __init__(self, topic: str, partition: int, wanted: int, diverges_at: int) -> None:
        """`wanted` is the next offset that was to be read."""
        self.topic, self.partition, self.wanted, self.diverges_at = topic, partition, wanted, diverges_at
        super().__init__(
            f"{topic}-{partition}: the log was truncated; offsets {diverges_at} to {wanted - 1} were read already, "
            "and the log now holds other records there"
        )

    def __reduce__(self) -> tuple[type[LogTruncatedError], tuple[str, int, int, int]]:
        """Errors travel from worker processes to the driver."""
        return type(self), (self.topic, self.partition, self.wanted, self.diverges_at)


class ConnectionLostError(RetriableError):
    """A connection could not be made, was lost, or went silent. Whether the last request took effect is unknown."""


class TlsError(PeerError):
    """No TLS: an untrusted or mismatching certificate, a missing client certificate, or a port that speaks none."""


_NAMES_BY_CODE = """NONE OFFSET_OUT_OF_RANGE CORRUPT_MESSAGE UNKNOWN_TOPIC_OR_PARTITION INVALID_FETCH_SIZE LEADER_NOT_AVAILABLE
    NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE MESSAGE_TOO_LARGE
    STALE_CONTROLLER_EPOCH OFFSET_METADATA_TOO_LARGE NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS
    COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR INVALID_TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE NOT_ENOUGH_REPLICAS
    NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS ILLEGAL_GENERATION INCONSISTENT_GROUP_PROTOCOL
    INVALID_GROUP_ID UNKNOWN_MEMBER_ID INVALID_SESSION_TIMEOUT REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE
    TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED INVALID_TIMESTAMP
    UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE UNSUPPORTED_VERSION TOPIC_ALREADY_EXISTS INVALID_PARTITIONS
    INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG NOT_CONTROLLER INVALID_REQUEST
    UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER
    INVALID_PRODUCER_EPOCH INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING INVALID_TRANSACTION_TIMEOUT
    CONCURRENT_TRANSACTIONS TRANSACTION_COORDINATOR_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED SECURITY_DISABLED
    OPERATION_NOT_ATTEMPTED KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND SASL_AUTHENTICATION_FAILED UNKNOWN_PRODUCER_ID
    REASSIGNMENT_IN_PROGRESS DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND
    DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_AUTHORIZATION_FAILED
    DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE NON_EMPTY_GROUP GROUP_ID_NOT_FOUND FETCH_SESSION_ID_NOT_FOUND
    INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND TOPIC_DELETION_DISABLED FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH
    UNSUPPORTED_COMPRESSION_TYPE STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED
    PREFERRED_LEADER_NOT_AVAILABLE GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID ELIGIBLE_LEADERS_NOT_AVAILABLE
    ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT
    THROTTLING_QUOTA_EXCEEDED PRODUCER_FENCED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL
    INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED PRINCIPAL_DESERIALIZATION_FAILURE
    SNAPSHOT_NOT_FOUND POSITION_OUT_OF_RANGE UNKNOWN_TOPIC_ID DUPLICATE_BROKER_REGISTRATION BROKER_ID_NOT_REGISTERED
    INCONSISTENT_TOPIC_ID INCONSISTENT_CLUSTER_ID TRANSACTIONAL_ID_NOT_FOUND FETCH_SESSION_TOPIC_ID_ERROR
    INELIGIBLE_REPLICA NEW_LEADER_ELECTED OFFSET_MOVED_TO_TIERED_STORAGE FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID
    UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID
    UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION TRANSACTION_ABORTABLE INVALID_RECORD_STATE
    SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER
    VOTER_NOT_FOUND"""
_NAMES = tuple(_NAMES_BY_CODE.split())

_KINDS: dict[type[BrokerError], frozenset[int]] = {
    RetriableBrokerError: frozenset(
        {3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 51, 52, 56, 70, 71, 72, 74, 75, 78, 80, 83, 88, 89, 100, 103, 106, 108}
    ),
    RefusedByBrokerError: frozenset({29, 30, 31, 33, 34, 53, 54, 58, 61, 62, 63, 64, 65, 66, 97}),
    FencedByBrokerError: frozenset({47, 82, 90, 110}),
    CorruptAtBrokerError: frozenset({2, 87}),
    InvalidForBrokerError: frozenset({10, 12, 17, 18, 21, 24, 26, 32, 36, 37, 38, 39, 40, 50, 76}),
    GroupInUseError: frozenset({22, 25, 27, 68, 113}),
}
_CLASS_OF: dict[int, type[BrokerError]] = {code: kind for kind, codes in _KINDS.items() for code in codes}

_HINTS: dict[int, str] = {
    22: "the group has live members, so only they may commit its offsets: stop them or choose another group",
    25: "the group has live members, so only they may commit its offsets: stop them or choose another group",
    27: "the group is rebalancing live members: stop them or choose another group",
    29: "grant this user Describe and Read on the topic",
    30: "grant this user Read on the group",
    33: "the broker has not enabled this sasl.mechanism",
    34: "the listener at this port expects no SASL: check security.protocol",
    50: "the broker allows no transaction this long: lower the timeout or raise transaction.max.timeout.ms",
    53: "grant this user Describe and Write on the transactional id",
    58: "check the user name and the password",
}


def error_name(code: int) -> str:
    """Kafka's name for an error code, such as `NOT_LEADER_OR_FOLLOWER` for 6."""
    if code == -1:
        return "UNKNOWN_SERVER_ERROR"
    return _NAMES[code] if 0 <= code < len(_NAMES) else f"ERROR_{code}"


def broker_error(code: int, where: str, hint: str = "") -> BrokerError:
    """The error for a code that a broker answered, to be raised by the caller.

    `where` says what was asked of whom, for instance "fetching orders-3 from broker 2". The class decides what happens
    next: `RetriableBrokerError`, `RefusedByBrokerError`, ... or plain `BrokerError` when trying again does not help.
    """
    return _CLASS_OF.get(code, BrokerError)(code, where, hint)
