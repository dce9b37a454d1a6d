"""What a call gives in a forked process, as with `multiprocessing`."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress

_CHILD_S = 20


def in_child(call: Callable[[], object]) -> str:
    """A text of its value, or `error: ` and that of what it raises. The child ends without any clean up."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
        child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the test's own would wait for what the child hangs in
        signal.alarm(_CHILD_S)
        with suppress(BaseException):
            os.write(writing, _said(call).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said, "the child has given nothing, and no error"
    return said


def _said(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except Exception as error:  # noqa: BLE001 - all that it raises is what it gives
        return f"error: {error}"
