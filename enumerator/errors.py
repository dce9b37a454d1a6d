"""The error tree of headrace, and the one place that states which errors are worth another try.

Every error that crosses a public boundary is one of these; each message names what went wrong, where, and what to do.
No message carries a password or another secret.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every error raised by headrace."""


class UsageError(HeadraceError, ValueError):
    """The caller's fault: an option, argument or schema that cannot be honoured. Raised before anything is read."""


class PeerError(HeadraceError):
    """The other side (a broker, a database) refused, broke the protocol, or sent corrupt bytes."""


class CorruptDataError(PeerError):
    """Bytes from the other side failed a checksum or cannot be parsed. Names the place (Kafka: topic, partition, offset)."""


class BadRecordError(CorruptDataError):
    """A record, line or file that is read as it is, and is bad: every process would read it so.

    Another fetch does not repair it, unlike damaged bytes. An option keeps or skips such records.
    """


class AuthenticationError(PeerError):
    """The other side refused our credentials or our rights. Trying again does not help."""


class RetriableError(PeerError):
    """A transient condition (no leader, timeout, lost connection): the same request may succeed later."""


class UnclassifiedError(PeerError):
    """The other side refused for a reason that is in no table: it may pass, or never.

    A run is restarted for it as often as its restart strategy says, and a bounded number of times where that sets no number.
    """


class DeadlineExceededError(PeerError):
    """Retriable errors did not pass within the deadline. The message holds the last one; `__cause__` is it."""


class OutageError(RetriableError):
    """Retriable errors did not pass within the time of one call, and the caller set no limit: the outage is to be ridden out.

    The message holds the last error; `__cause__` is it.
    """


class FencedError(HeadraceError):
    """A newer instance of ourselves has taken over; this one must stop and must not try again."""


class DataLossError(HeadraceError):
    """Records that were promised are gone (out of range, topic re-created, partition removed). Names the lost range."""


class StateError(HeadraceError):
    """A checkpoint cannot be read: written by a newer version, by another source, or damaged."""


class RunFailedError(HeadraceError):
    """A pipeline has failed, and its restart strategy gives up. The message holds the last failure."""


class ProtocolViolationError(HeadraceError):
    """An event that the coordinator's transition table does not allow: a bug in a runner or connector, never in the input."""


def is_retriable(error: BaseException) -> bool:
    """The single classifier: True when the same operation may succeed if tried again."""
    return isinstance(error, (RetriableError, ConnectionError, TimeoutError))
