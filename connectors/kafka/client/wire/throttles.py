"""Quotas: for how long brokers asked to be left alone, counted and said in the log (KIP-13, KIP-219)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping

from headrace.connectors.base.counters import COUNTERS, Counted

log = logging.getLogger(__name__)


class Throttles:
    """Milliseconds by broker address. Thread-safe, but counted afresh in a forked child."""

    def __init__(self) -> None:
        """No process has asked for time."""
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._milliseconds: dict[str, int] = {}

    @property
    def milliseconds(self) -> Mapping[str, int]:
        return dict(self._milliseconds)

    def note(self, address: str, milliseconds: int) -> None:
        """A broker asks for so much. Said the first time, and whenever the sum has doubled, so that the log does not grow."""
        if self._pid != os.getpid():
            self._start_afresh()
        with self._lock:
            before = self._milliseconds.get(address, 0)
            total = self._milliseconds[address] = before + milliseconds
        COUNTERS.add(Counted.THROTTLED_SECONDS, milliseconds / 1000)
        if (before // 1000).bit_length() != (total // 1000).bit_length() or not before:
            log.warning("%s throttles this client because of a quota: %.1f s of waiting so far", address, total / 1000)
