"""Arguments by callers without a type checker: what would be taken for something else, or fail later, is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.enumerator.errors import UsageError


def names(argument: str, given: Iterable[str]) -> tuple[str, ...]:
    """Column names. Raises UsageError for a text, which would be taken for its characters, and for items that are not texts."""
    unchecked: object = given
    if isinstance(unchecked, Iterable) and not isinstance(unchecked, str):
        found = tuple(unchecked)
        if all(isinstance(name, str) for name in found):
            return found
    raise UsageError(f"{argument} must be a sequence of names, such as ('id',), not {unchecked!r}")


def at_least_one(argument: str, given: int) -> None:
    """Raise UsageError for a number below 1, and for what is not a whole number."""
    unchecked: object = given
    if not isinstance(unchecked, int) or unchecked < 1:
        raise UsageError(f"{argument} must be a whole number, at least 1, not {unchecked!r}")


def texts(argument: str, given: Mapping[str, str]) -> None:
    """Raise UsageError, which names the key and no value, unless all values are texts."""
    unchecked: object = given
    if not isinstance(unchecked, Mapping):
        raise UsageError(f"{argument} is a mapping of names to texts, not {type(unchecked).__name__}")
    for name, value in unchecked.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"{argument}: {name!r} must be a text, such as '60', not {type(value).__name__}")
