"""Quotas: how long brokers have throttled this client, counted and logged (KIP-13, KIP-219)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping

from headrace.connectors.base.counters import COUNTERS, Counted

log = logging.getLogger(__name__)


class Throttles:
    """Milliseconds of throttling by broker address. Thread-safe; a forked child starts at zero."""

    def __init__(self) -> None:
        """No broker has throttled yet."""
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._milliseconds: dict[str, int] = {}

    @property
    def milliseconds(self) -> Mapping[str, int]:
        return dict(self._milliseconds)

    def note(self, address: str, milliseconds: int) -> None:
        """Add a broker's throttle time. Logged the first time, and when the sum has doubled, so that the log stays short."""
        if self._pid != os.getpid():
            self._start_afresh()
        with self._lock:
            before = self._milliseconds.get(address, 0)
            total = self._milliseconds[address] = before + milliseconds
        COUNTERS.add(Counted.THROTTLED_SECONDS, milliseconds / 1000)
        if (before // 1000).bit_length() != (total // 1000).bit_length() or not before:
            log.warning("%s throttles this client because of a quota: %.1f s of waiting so far", address, total / 1000)
