"""Publishes the positions of the reading stage when they are durable: which those are is `publication`'s knowledge."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic

from headrace.enumerator.source import Source
from headrace.enumerator.source_driver import PositionPublisher, report_finished
from headrace.enumerator.split import SplitT
from headrace.runners.beam.publication import FinalizationToken, Publication
from headrace.runners.beam.reader_restriction import Published, ReaderRestriction
from headrace.runners.beam.worker import Worker

log = logging.getLogger(__name__)

PUBLISH_TIMEOUT_S = 900.0
"""How long last positions wait for a runner that finalises no bundle, in seconds; or three checkpoints, if that is longer."""


class Publisher(Generic[SplitT]):
    """Of one DoFn instance. `note` is called at the end of each call, by its thread; what it registers in any thread."""

    def __init__(
        self, source: Source[SplitT], worker: Worker[SplitT], timeout_s: float, *, reports_finished: bool = True
    ) -> None:
        """`reports_finished`: whether splits whose last position is published were read to their end."""
        self._source, self._reports_finished = source, reports_finished
        self._positions = PositionPublisher(source, worker.publish_failures)
        self._worker = worker
        self._timeout_s = timeout_s

    def note(self, started: ReaderRestriction[SplitT], stands: Mapping[str, SplitT], tracker: Any, finalizer: Any) -> None:
        """A call started there and its splits stand here; those that have ended go once their last position is published."""
        tokens = []
        for start in (*started.reading, *started.unpublished):
            publication = self._worker.publication(start.split_id)
            token = publication.register(start, stands.get(start.split_id, start))
            if token is not None:
                tokens.append((publication, token))
        publications = [(self._worker.publication(last.split_id), last) for last in started.unpublished]
        ended = [last for publication, last in publications if publication.settled(last)]
        if ended and self._reports_finished and not report_finished(self._source, ended, self._worker.finishing_failures):
            ended = []  # a later call is another try
        for last in started.unpublished:
            if (last in ended or self._given_up(last)) and tracker.try_claim(Published(last.split_id)):
                self._worker.forget(last.split_id)
        if tokens:
            finalizer.register(partial(self._finalised, tokens))

    def _given_up(self, last: SplitT) -> bool:
        """A runner that finalises no bundle must not keep a read that has ended from ending."""
        now_s = time.monotonic()
        waits_since_s = max(self._worker.ended_s.setdefault(last.split_id, now_s), self._worker.finalised_s)
        if now_s - waits_since_s < self._timeout_s:
            return False
        log.error(
            "%s was read to its end, and its last position is not published: the runner has finalised no bundle for %.0f s. "
            "That needs a runner with bundle finalization; on Flink the options --streaming and --checkpointing_interval",
            last,
            self._timeout_s,
        )
        return True

    def _finalised(self, tokens: Sequence[tuple[Publication[SplitT], FinalizationToken[SplitT]]]) -> None:
        """In a thread of the runner's choice, which may drop what is raised here."""
        self._worker.finalised_s = time.monotonic()
        found = [(publication, token, publication.finalised(token)) for publication, token in tokens]
        splits = [split for _, _, split in found if split is not None]
        if not splits:
            return
        try:
            is_published = self._positions.publish(splits)
        except Exception as error:  # noqa: BLE001 - a bundle that is durable cannot fail any more
            log.error("the positions of %s cannot be published: %s", ", ".join(map(str, splits)), error)
            return
        if not is_published:
            for publication, token, split in found:
                if split is not None:
                    publication.not_published(token)
