"""Where reading starts or stops, as tagged types: no magic number represents "earliest" or "latest" outside the wire.

All but `At` are symbolic. They are resolved to numbers once, before the first checkpoint, and never again (invariant I2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.enumerator.errors import UsageError

_INT64_MAX = 2**63 - 1


def _check_int64(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{what} must be a whole number, not {value!r}")
    if not 0 <= value <= _INT64_MAX:
        raise UsageError(f"{what} must be between 0 and 2**63 - 1, not {value}")


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record that the partition still has."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the partition when asked: the high watermark, or under read_committed the last stable offset."""


@dataclass(frozen=True, slots=True)
class At:
    """The record with this offset, or the next one after it. Zero is a valid offset.

    Raises `UsageError` when `offset` is negative or not a whole number.
    """

    offset: int

    def __post_init__(self) -> None:
        """Refuse what no broker could resolve."""
        _check_int64("an offset", self.offset)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first record whose timestamp is at or after `ms`, in milliseconds since 1970-01-01 UTC. There may be none.

    Raises `UsageError` when `ms` is negative or not a whole number.
    """

    ms: int

    def __post_init__(self) -> None:
        """Refuse what no broker could resolve."""
        _check_int64("a timestamp in milliseconds", self.ms)


@dataclass(frozen=True, slots=True)
class Committed:
    """The offset that a consumer group committed, and `fallback` where it committed none.

    `group` None means that of the source: its `group`, or the property `group.id`. The default fallback is `Earliest`, which
    loses nothing. Raises `UsageError` for an empty group name or a fallback that is itself `Committed`.
    """

    group: str | None = None
    fallback: Earliest | Latest | At | Timestamp = field(default_factory=Earliest)

    def __post_init__(self) -> None:
        """Refuse what no broker could resolve."""
        if self.group is not None and (not isinstance(self.group, str) or not self.group):
            raise UsageError(f"a group name must be a non-empty string, not {self.group!r}")
        if not isinstance(self.fallback, (Earliest, Latest, At, Timestamp)):
            raise UsageError(f"the fallback of Committed must be Earliest, Latest, At or Timestamp, not {self.fallback!r}")


Symbol = Earliest | Latest | Timestamp
"""What a broker turns into an offset by itself."""

Position = Earliest | Latest | At | Timestamp | Committed
