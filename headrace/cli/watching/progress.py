"""What `headrace run` shows while it runs, as its option says."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Progress"]


class Progress(StrEnum):
    """What `headrace run` shows of the run. AUTO: a table where stderr is a terminal, else nothing. JSON: lines on stdout."""

    AUTO = "auto"
    JSON = "json"
    NONE = "none"
