"""Shared by the commands that run servers until Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from types import FrameType

POLL_S = 1.0  # how often running servers are polled


@contextmanager
def until_interrupted() -> Iterator[None]:
    """End the body without a traceback at Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        return


def named_settings(pairs: Sequence[str] | None, option: str = "--config") -> dict[str, str]:
    """The values of `--config name=value`, or of another option of that form."""
    for pair in pairs or ():
        if "=" not in pair:
            raise typer.BadParameter(f"{pair!r} is not name=value", param_hint=option)
    return dict(pair.split("=", 1) for pair in pairs or ())


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
