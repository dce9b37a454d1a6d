"""The streaming queries of a driver, as its supervision sees them: their progress, and their end after the batch under way."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from headrace.enumerator.errors import UsageError
from headrace.runners.spark.private import finish_after_batch
from headrace.runners.spark.supervision.exit_causes import refusal_behind

log = logging.getLogger(__name__)


@runtime_checkable
class RunningQuery(Protocol):
    """What is used of `pyspark.sql.streaming.StreamingQuery`."""

    @property
    def id(self) -> str:
        """Of the query, and the same after a restart."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether it still runs."""

    @property
    def lastProgress(self) -> Mapping[str, Any] | None:  # noqa: N802 - Spark's name
        """What is known of its last batch."""

    @property
    def status(self) -> Mapping[str, Any]:
        """What it does now."""

    def awaitTermination(self, timeout: float) -> bool | None:  # noqa: N802 - Spark's name
        """Whether it has ended; raises what it has failed with."""

    def stop(self) -> None:
        """End it, also in the middle of a batch."""


def queries_of(returned: object) -> list[RunningQuery]:
    """What a job's function has returned: a query, several, or None for a job that has done its work. Raises UsageError."""
    if returned is None:
        return []
    if isinstance(returned, RunningQuery):
        return [returned]
    given = list(returned) if isinstance(returned, Iterable) else [returned]
    found = [query for query in given if isinstance(query, RunningQuery)]
    if len(found) < len(given):
        raise UsageError(f"a job returns a streaming query, several of them, or None, not {type(returned).__name__}")
    return found


class ProgressOfQueries:
    """Reports when every active query has got on since it was last reported so. Called by the driver's main thread."""

    def __init__(self) -> None:
        self.batches: dict[str, int] = {}
        self._got_on: set[str] = set()

    def look(self, active: Sequence[RunningQuery]) -> bool:
        """True when each of them has ended a batch, or was seen with nothing to do, since the last True."""
        for query in active:
            if self._gets_on(query):
                self._got_on.add(query.id)
        if not all(query.id in self._got_on for query in active):
            return False
        self._got_on.clear()
        return True

    def _gets_on(self, query: RunningQuery) -> bool:
        progress = query.lastProgress
        batch = -1 if progress is None else int(progress["batchId"])
        is_new = batch > self.batches.get(query.id, -1)
        if batch >= 0:
            self.batches[query.id] = batch
        return is_new or not query.status["isTriggerActive"]


class WatchedQuery:
    """One query until its end. Called by the driver's main thread."""

    def __init__(self, query: RunningQuery) -> None:
        self.query = query
        self.is_told = False

    def tell_to_end(self) -> None:
        """Have it start no further batch, and run none that is still being planned; once. Where that is not possible the batch
        under way is interrupted, and logged."""
        if self.is_told:
            return
        self.is_told = True
        try:
            finish_after_batch(self.query)
        except Exception as error:  # noqa: BLE001 - py4j's errors are many, and Spark's insides are its own
            log.warning("query %s cannot be ended after its batch, so it is interrupted: %s", self.query.id, error)
            self.query.stop()

    def has_ended(self, wait_s: float) -> bool:
        """Whether it has, within this many seconds. Raises what it has failed with, and UsageError for what Spark refuses.

        Once it is to end, Spark states that it is no longer active though a batch is under way: whether a trigger is, is true
        then. `stop()` follows between batches (it may wait for its next trigger), and returns when its thread is gone.
        """
        try:
            is_inactive = bool(self.query.awaitTermination(wait_s))
        except Exception as error:
            if self.query.lastProgress is None and (refusal := refusal_behind(error)) is not None:
                raise UsageError(f"Spark refuses query {self.query.id}: {refusal}") from error
            raise
        if not self.is_told:
            return is_inactive
        if self.query.status["isTriggerActive"]:
            return False
        self.query.stop()
        return True
