"""A run whose source has changed so that only a new start reads all of it (`DiscoveryResult.replan`).

The run takes a last checkpoint and ends; the supervisor starts a coordinator that loads the pipeline again and continues from
there. What that does not help by, such as a source that was made before, is not tried again.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Replanning:
    """What a coordinator does about that. Called by its main thread."""

    def __init__(self, change: str | None) -> None:
        """`change`: what this start of the run is for."""
        self.is_under_way = False
        self.change = change

    def is_to_stop(self, change: str | None) -> bool:
        """Whether the run is to stop now, as a discovery has found this. True at most once."""
        if self.is_under_way:
            return False
        self.is_under_way = change not in (None, self.change)
        self.change = change
        if self.is_under_way:
            log.warning("starting again after a checkpoint, as %s", change)
        return self.is_under_way
