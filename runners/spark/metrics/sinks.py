"""The open transactions of a sink, looked for from time to time. Knows no Kafka: any sink that can list its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)

INTERVAL_S = 15.0


class ListsTransactions(Protocol):
    """What is used of a sink, such as `headrace.kafka.KafkaSink`."""

    @property
    def destination(self) -> str:
        """Where it writes."""

    def open_transactions(self) -> Mapping[str, Sequence[float]]:
        """Job to the ages, in seconds, of its open transactions. Contacts the sink."""


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """One look. A job that had some is there with none until the next but one, so that a gauge does not stand still."""

    is_reachable: bool
    ages_s: Mapping[str, Sequence[float]]


class SinkWatch:
    """One sink. Asked by its own thread, so that no scrape waits for it; until it is closed."""

    def __init__(self, sink: ListsTransactions, interval_s: float = INTERVAL_S) -> None:
        self.last_seen: OpenTransactions | None = None
        self.destination = sink.destination
        self._sink = sink
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-open-transactions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. A check that is under way is not waited for."""
        self._closing.set()

    def _watch(self) -> None:
        while True:
            self.last_seen = self._look()
            if self._closing.wait(self._interval_s):
                return

    def _look(self) -> OpenTransactions:
        before = self.last_seen
        try:
            found = self._sink.open_transactions()
        except Exception as error:  # noqa: BLE001 - whatever it is, the queries continue, and the metric says it
            if before is None or before.is_reachable:
                log.warning("open transactions of %s cannot be listed, and are not shown: %s", self.destination, error)
            return OpenTransactions(is_reachable=False, ages_s={})
        ended = {job: () for job, ages in before.ages_s.items() if ages} if before is not None else {}
        return OpenTransactions(is_reachable=True, ages_s={**ended, **found})
