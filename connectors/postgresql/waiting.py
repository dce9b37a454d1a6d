"""What is waited for where all transactions that are open have to end, which may be never."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from headrace.connectors.postgresql.catalog import read_oldest_transactions
from headrace.connectors.postgresql.connection import connect, translated
from headrace.enumerator.errors import HeadraceError

log = logging.getLogger(__name__)

_FIRST_S, _AGAIN_S = 5.0, 60.0


class SlowWait:
    """Warns of a wait after some seconds, then each minute. `what` waits for all transactions that are open."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._warns_at = time.monotonic() + _FIRST_S

    @property
    def left_s(self) -> float:
        """Until the next warning."""
        return max(0.0, self._warns_at - time.monotonic())

    def check(self, connection: psycopg.Connection) -> None:
        """Warn if it is time to. Asks the server then."""
        if not self.left_s:
            self._warns_at = time.monotonic() + _AGAIN_S
            oldest = "; ".join(read_oldest_transactions(connection)) or "none that this role sees"
            log.warning(
                "waiting: %s when all transactions of the server have ended that were open. The oldest now: %s. End those that "
                "would stay open (COMMIT PREPARED or ROLLBACK PREPARED, pg_terminate_backend)",
                *(self._what, oldest),
            )


@contextmanager
def warned(url: str, what: str) -> Iterator[None]:
    """Warn as `SlowWait`, by another thread and session, while the block waits."""
    wait, ended = SlowWait(what), threading.Event()

    def watch() -> None:
        while not ended.wait(wait.left_s):
            with suppress(HeadraceError), translated(url, "reading the open transactions"), connect(url) as connection:
                wait.check(connection)
            ended.wait(1.0)  # the server may be gone, which the block finds out

    watcher = threading.Thread(target=watch, name="headrace-slow-wait", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
