"""Every error that headrace raises, and `is_retriable`, the one classifier. Imports no client library and no engine.

    HeadraceError
      UsageError (also a ValueError)   the caller's fault: an option, argument or schema that cannot be honoured
      PeerError                        a broker or a database refused, broke the protocol, or sent corrupt bytes
        RetriableError                 a transient condition
          OutageError                   it lasts longer than one call waits; trying on is safe
        DeadlineExceededError          it did not pass in the time that was set
        AuthenticationError, TlsError
        CorruptDataError
          BadRecordError               of a record, line or file itself: reading again does not help
        UnclassifiedError              refused for a reason that is not known: retried a bounded number of times
        UnknownSchemaError             a schema registry has no such schema, subject or version
        BrokerError                    a Kafka error code, with its `code` and `name`
      DataLossError                    records that were promised are gone
      FencedError                      a newer instance of ourselves has taken over
        SupersededError                and the job stays its own, by what is recorded
      StateError                       a checkpoint or a list of committables cannot be used
      RunFailedError                   a pipeline failed, and its restart strategy gives up
      ProtocolViolationError           a bug in a runner or a connector

No message carries a secret. All can be pickled: they travel from workers to drivers.
"""

from headrace.connectors.base.commit import StaleEpochError, SupersededError
from headrace.connectors.formats.registry.schemas import UnknownSchemaError
from headrace.connectors.kafka.client.errors import (
    BrokerError,
    ConnectionLostError,
    CorruptAtBrokerError,
    FencedByBrokerError,
    GroupInUseError,
    InvalidForBrokerError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    RefusedByBrokerError,
    RetriableBrokerError,
    TlsError,
    TopicRecreatedError,
    UnknownTopicError,
)
from headrace.enumerator.errors import (
    AuthenticationError,
    BadRecordError,
    CorruptDataError,
    DataLossError,
    DeadlineExceededError,
    FencedError,
    HeadraceError,
    OutageError,
    PeerError,
    ProtocolViolationError,
    RetriableError,
    RunFailedError,
    StateError,
    UnclassifiedError,
    UsageError,
    is_retriable,
)

__all__ = [
    "AuthenticationError", "BadRecordError", "BrokerError", "ConnectionLostError", "CorruptAtBrokerError", "CorruptDataError",
    "DataLossError", "DeadlineExceededError", "FencedByBrokerError", "FencedError", "GroupInUseError", "HeadraceError",
    "InvalidForBrokerError", "LogTruncatedError", "OffsetOutOfRangeError", "OutageError", "PeerError",
    "ProtocolViolationError", "RefusedByBrokerError", "RetriableBrokerError", "RetriableError", "RunFailedError",
    "StaleEpochError", "StateError", "SupersededError", "TlsError", "TopicRecreatedError", "UnclassifiedError",
    "UnknownSchemaError", "UnknownTopicError", "UsageError", "is_retriable",
]  # fmt: skip
