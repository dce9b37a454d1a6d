"""Arguments by callers without a type checker: what would be taken for something else, or fail later, is refused.

Each function raises UsageError, which names the argument. `text`, `mapping` and `texts` show no value: it may be a secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from headrace.enumerator.errors import UsageError


def names(argument: str, given: Iterable[str]) -> tuple[str, ...]:
    """Column names. A text would be taken for its characters."""
    unchecked: object = given
    if isinstance(unchecked, Iterable) and not isinstance(unchecked, str):
        found = tuple(unchecked)
        if all(isinstance(name, str) for name in found):
            return found
    raise UsageError(f"{argument} must be a list of names, not {unchecked!r}")


def text(argument: str, given: str) -> str:
    """The same text."""
    unchecked: object = given
    if not isinstance(unchecked, str):
        raise UsageError(f"{argument} must be a string, not {type(unchecked).__name__}")
    return unchecked


def truth(argument: str, given: bool) -> None:  # noqa: FBT001 - what is checked
    """Refuse all but True and False: any text counts as true, 'false' too."""
    unchecked: object = given
    if not isinstance(unchecked, bool):
        raise UsageError(f"{argument} must be True or False, not {unchecked!r}")


def at_least(argument: str, given: int, least: int) -> None:
    """Refuse a lower number, and what is not a whole number."""
    unchecked: object = given
    if isinstance(unchecked, bool) or not isinstance(unchecked, int) or unchecked < least:
        raise UsageError(f"{argument} must be a whole number, at least {least}, not {unchecked!r}")


def at_least_one(argument: str, given: int) -> None:
    at_least(argument, given, 1)


def seconds(argument: str, given: float) -> None:
    """Refuse what is not a number, or not above 0 and finite."""
    unchecked: object = given
    if isinstance(unchecked, bool) or not isinstance(unchecked, int | float) or not 0 < unchecked < math.inf:
        raise UsageError(f"{argument} must be positive seconds, not {unchecked!r}")


def mapping(argument: str, given: Mapping[str, object]) -> None:
    """Refuse what is not a mapping, or has names that are not texts."""
    unchecked: object = given
    if not isinstance(unchecked, Mapping):
        raise UsageError(f"{argument} must be a mapping like {{'name': 'value'}}, not {type(unchecked).__name__}")
    for name in unchecked:
        if not isinstance(name, str):
            raise UsageError(f"the names of {argument} are strings, not {name!r}")


def texts(argument: str, given: Mapping[str, str]) -> None:
    """Refuse what is not a mapping of texts to texts."""
    mapping(argument, given)
    for name, value in given.items():
        unchecked: object = value
        if not isinstance(unchecked, str):
            raise UsageError(f"{argument}: {name!r} must be a string, such as '60', not {type(unchecked).__name__}")


def zone(argument: str, given: str | Callable[[], str]) -> None:
    """Refuse what is not a text or a function. Whether there is a zone of that name is not looked at."""
    if not (isinstance(given, str) or callable(given)):
        raise UsageError(f"{argument} must be a zone's name, such as 'UTC', or what returns it, not {given!r}")


def arrow_schema(argument: str, given: pa.Schema) -> None:
    """Refuse all but a schema of pyarrow."""
    if not isinstance(given, pa.Schema):
        raise UsageError(f"{argument} must be a pyarrow.Schema, not {given!r}")
