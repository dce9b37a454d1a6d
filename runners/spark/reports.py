"""Counts from Spark's Python processes to the process that shows them as metrics: datagrams on one machine, without waiting.

A session's builder names a socket in the environment that Spark's processes inherit, before there is one. The process that
shows metrics listens there; until then, and while its queue is full, a process keeps its counts for the next time. Linux: the
name is of the abstract namespace, which leaves no file behind, and any process on the machine can see; a report starts with a
secret that they cannot. Executors of a cluster find no process at that name, and keep their counts.
"""

from __future__ import annotations

import functools
import hmac
import json
import logging
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping

from headrace.connectors.base.counters import COUNTERS

log = logging.getLogger(__name__)

REPORTS_VARIABLE = "HEADRACE_REPORTS"
QUERY_ID = "sql.streaming.queryId"  # the property of Spark's tasks that states which streaming query they are of
_SEPARATOR = ":"
_MOST_QUERIES = 100

TakeCounts = Callable[[str | None, Mapping[str, float]], None]
"""Given the query's id, None for what is of no single one, and what was counted."""


@functools.cache
def own_address() -> str:
    """What `REPORTS_VARIABLE` is to be for the sessions of this process: a name, and the secret."""
    return f"headrace-{os.getpid()}-{secrets.token_hex(6)}{_SEPARATOR}{secrets.token_hex(16)}"


def report(query: str | None) -> None:
    """Send what this process has counted since the last time. Never waits, never fails. In tasks, and where batches end."""
    address = os.environ.get(REPORTS_VARIABLE)
    if address is not None:
        _OUTBOX.send(address, query, COUNTERS.take())


class _Outbox:
    """What could not be sent yet, by query: a worker runs tasks of several, and a standby's those of its dry runs."""

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._unsent: dict[str | None, Counter[str]] = {}

    def send(self, address: str, query: str | None, counts: Mapping[str, float]) -> None:
        name, _, secret = address.partition(_SEPARATOR)
        with self._lock:
            if counts:
                self._unsent.setdefault(query, Counter()).update(counts)
            for forgotten in list(self._unsent)[: max(0, len(self._unsent) - _MOST_QUERIES)]:
                del self._unsent[forgotten]
            for of, sums in list(self._unsent.items()):
                if not _sent(name, json.dumps({"secret": secret, "query": of, "counts": sums}).encode()):
                    return
                del self._unsent[of]


def _sent(name: str, data: bytes) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
            ours.setblocking(False)  # noqa: FBT003 - as it is defined
            ours.sendto(data, f"\0{name}")
    except OSError:
        return False
    return True


_OUTBOX = _Outbox()


class ReportListener:
    """Takes the reports of one address, in its own thread, until it is closed. Raises OSError where another one does."""

    def __init__(self, address: str, take: TakeCounts) -> None:
        name, _, self._secret = address.partition(_SEPARATOR)
        self._take = take
        self._is_closing = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(f"\0{name}")
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._listen, name="headrace-reports", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while True:
            data = self._socket.recv(1 << 16)
            if self._is_closing:
                return
            try:
                said = json.loads(data)
                if hmac.compare_digest(said["secret"], self._secret):
                    self._take(said["query"], {str(name): float(amount) for name, amount in said["counts"].items()})
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                log.warning("a report of %d bytes is none of headrace's, and is left out", len(data))
