"""Tests wait for what becomes true."""

import time
from collections.abc import Callable
from typing import Any

POLL_S = 0.02  # what is waited for may need the processor itself


def eventually(
    condition: Callable[[], Any], why: object = None, *, seconds: float = 60.0, check: Callable[[], Any] = lambda: None
) -> Any:
    """Ask until the answer is true, and give it. `check` is called meanwhile; `why` says, or is called for, what went wrong."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        check()
        assert time.monotonic() < deadline, why() if callable(why) else why
        time.sleep(POLL_S)
    return answer
