"""Which part of a program this process is."""

from __future__ import annotations

import multiprocessing


def loads_script() -> bool:
    """Whether multiprocessing has started this process for another one, and is loading that one's script in it."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))
