"""What is done about each error code that a broker can answer to each request of headrace: one table.

From the handlers of Kafka 4 (`KafkaApis`, `ReplicaManager`, `GroupCoordinatorService`, `TransactionCoordinator`) and the Java
client's. A code in no row of an API, because no broker of today answers it there, goes by its class: see `broker_error`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from headrace.connectors.kafka.client.error_codes import ErrorCode as Code
from headrace.connectors.kafka.client.errors import broker_error
from headrace.enumerator.errors import is_retriable


class ErrorAction(Enum):
    """What the asker does."""

    ANSWER = auto()
    """It is not a failure: the caller goes by it."""
    RETRY = auto()
    """The same request again, after a backoff."""
    REFRESH = auto()
    """Look up who leads, or coordinates, and ask that one."""
    REFUSE = auto()
    """Raise the error that names the code and says what to do."""


_ANSWER, _RETRY, _REFRESH, _REFUSE = ErrorAction

_ANYWHERE: Mapping[ErrorAction, tuple[Code, ...]] = {
    _ANSWER: (Code.NONE,),
    _RETRY: (Code.UNKNOWN_SERVER_ERROR, Code.REQUEST_TIMED_OUT, Code.NETWORK_EXCEPTION, Code.THROTTLING_QUOTA_EXCEEDED),
    _REFUSE: (Code.UNSUPPORTED_VERSION, Code.INVALID_REQUEST, Code.CLUSTER_AUTHORIZATION_FAILED),
}
_LEADER: Mapping[ErrorAction, tuple[Code, ...]] = {
    _REFRESH: (
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.BROKER_NOT_AVAILABLE,
        Code.REPLICA_NOT_AVAILABLE,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    ),
    _REFUSE: (Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC_EXCEPTION),
}
_COORDINATOR: Mapping[ErrorAction, tuple[Code, ...]] = {
    _REFRESH: (Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR),
    _RETRY: (Code.COORDINATOR_LOAD_IN_PROGRESS,),
}
_GROUP: Mapping[ErrorAction, tuple[Code, ...]] = {
    _REFUSE: (
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.INVALID_GROUP_ID,
        Code.GROUP_ID_NOT_FOUND,
        Code.ILLEGAL_GENERATION,
        Code.UNKNOWN_MEMBER_ID,
        Code.REBALANCE_IN_PROGRESS,
        Code.FENCED_INSTANCE_ID,
        Code.STALE_MEMBER_EPOCH,
        Code.FENCED_MEMBER_EPOCH,
    )
}
_TRANSACTION: Mapping[ErrorAction, tuple[Code, ...]] = {
    _RETRY: (Code.CONCURRENT_TRANSACTIONS,),
    _REFUSE: (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.TRANSACTION_ABORTABLE),
}


def _table(*parts: Mapping[ErrorAction, tuple[Code, ...]]) -> dict[Code, ErrorAction]:
    return {code: made for part in parts for made, codes in part.items() for code in codes}


DECISIONS: Mapping[str, Mapping[Code, ErrorAction]] = {
    "ApiVersions": _table(_ANYWHERE),
    "Metadata": _table(
        _ANYWHERE,
        _LEADER,
        {_ANSWER: (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE), _REFRESH: (Code.REBOOTSTRAP_REQUIRED,)},
    ),
    "FindCoordinator": _table(
        _ANYWHERE,
        _COORDINATOR,
        {_REFUSE: (Code.GROUP_AUTHORIZATION_FAILED, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.INVALID_GROUP_ID)},
    ),
    "Fetch": _table(
        _ANYWHERE,
        _LEADER,
        {
            _ANSWER: (Code.OFFSET_OUT_OF_RANGE,),
            _RETRY: (Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH, Code.FETCH_SESSION_TOPIC_ID_ERROR),
            _REFUSE: (Code.CORRUPT_MESSAGE, Code.UNSUPPORTED_COMPRESSION_TYPE, Code.OFFSET_MOVED_TO_TIERED_STORAGE),
        },
    ),
    "ListOffsets": _table(_ANYWHERE, _LEADER, {_REFUSE: (Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, Code.INVALID_TIMESTAMP)}),
    "OffsetForLeaderEpoch": _table(_ANYWHERE, _LEADER),
    "OffsetFetch": _table(_ANYWHERE, _COORDINATOR, _GROUP, {_RETRY: (Code.UNSTABLE_OFFSET_COMMIT,)}),
    "OffsetCommit": _table(
        _ANYWHERE,
        _COORDINATOR,
        _GROUP,
        {
            _RETRY: (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID),
            _REFUSE: (Code.OFFSET_METADATA_TOO_LARGE, Code.INVALID_COMMIT_OFFSET_SIZE),
        },
    ),
    "Produce": _table(
        _ANYWHERE,
        _LEADER,
        {
            _RETRY: (Code.NOT_ENOUGH_REPLICAS, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Code.CONCURRENT_TRANSACTIONS),
            _ANSWER: (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE),
            _REFUSE: (
                Code.CORRUPT_MESSAGE,
                Code.INVALID_REQUIRED_ACKS,
                Code.INVALID_RECORD,
                Code.INVALID_TIMESTAMP,
                Code.UNSUPPORTED_COMPRESSION_TYPE,
                Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
                Code.POLICY_VIOLATION,
                Code.DUPLICATE_SEQUENCE_NUMBER,
                Code.INVALID_PRODUCER_EPOCH,
                Code.UNKNOWN_PRODUCER_ID,
                Code.INVALID_PRODUCER_ID_MAPPING,
                Code.INVALID_TXN_STATE,
                Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                Code.TRANSACTION_ABORTABLE,
            ),
        },
    ),
    "InitProducerId": _table(
        _ANYWHERE,
        _COORDINATOR,
        _TRANSACTION,
        {_REFUSE: (Code.INVALID_TRANSACTION_TIMEOUT, Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED)},
    ),
    "AddPartitionsToTxn": _table(
        _ANYWHERE,
        _COORDINATOR,
        _TRANSACTION,
        {
            _RETRY: (Code.UNKNOWN_TOPIC_OR_PARTITION,),
            _REFUSE: (
                Code.TOPIC_AUTHORIZATION_FAILED,
                Code.OPERATION_NOT_ATTEMPTED,
                Code.INVALID_PRODUCER_ID_MAPPING,
                Code.INVALID_PRODUCER_EPOCH,
                Code.PRODUCER_FENCED,
                Code.INVALID_TXN_STATE,
            ),
        },
    ),
    "EndTxn": _table(
        _ANYWHERE,
        _COORDINATOR,
        _TRANSACTION,
        {
            _ANSWER: (
                Code.INVALID_PRODUCER_EPOCH,
                Code.PRODUCER_FENCED,
                Code.INVALID_PRODUCER_ID_MAPPING,
                Code.INVALID_TXN_STATE,
            )
        },
    ),
    "DescribeTransactions": _table(_ANYWHERE, _COORDINATOR, _TRANSACTION, {_ANSWER: (Code.TRANSACTIONAL_ID_NOT_FOUND,)}),
    "ListTransactions": _table(_ANYWHERE, _COORDINATOR),
    "CreateTopics": _table(
        _ANYWHERE,
        {
            _ANSWER: (Code.TOPIC_ALREADY_EXISTS,),
            _RETRY: (Code.NOT_CONTROLLER,),
            _REFUSE: (
                Code.INVALID_TOPIC_EXCEPTION,
                Code.INVALID_REPLICATION_FACTOR,
                Code.INVALID_PARTITIONS,
                Code.INVALID_CONFIG,
                Code.INVALID_REPLICA_ASSIGNMENT,
                Code.POLICY_VIOLATION,
                Code.TOPIC_AUTHORIZATION_FAILED,
            ),
        },
    ),
    "DescribeConfigs": _table(
        _ANYWHERE,
        {
            _ANSWER: (Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED),
            _RETRY: (Code.UNKNOWN_TOPIC_OR_PARTITION,),
            _REFUSE: (Code.INVALID_TOPIC_EXCEPTION,),
        },
    ),
}


def decision(api: str, code: int) -> ErrorAction:
    """What is done about this code in an answer of this API."""
    known = {int(each): made for each, made in DECISIONS[api].items()}
    by_class = _RETRY if is_retriable(broker_error(code, api)) else _REFUSE
    return known.get(code, by_class)
