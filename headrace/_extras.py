"""What is said where an optional library is missing: which extra of headrace brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MissingExtraError(ModuleNotFoundError):
    """A library is not installed that one of headrace's extras brings. `name` is the library's."""


@contextmanager
def needs_extra(extra: str, *libraries: str) -> Iterator[None]:
    """Around imports: where one of these libraries is missing, raise MissingExtraError, which says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in libraries:
            raise
        text = f"{missing} is not installed; run: pip install 'headrace[{extra}]'"
        raise MissingExtraError(text, name=error.name) from error
