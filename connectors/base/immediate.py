"""Sinks without a second phase: what is written is visible at once, and at least once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from headrace.connectors.base.sink import Committer, HandleSerializer, RecordedEpoch, TwoPhaseSink


class _Nothing(HandleSerializer[Any]):
    version = 1

    def serialize(self, handle: Any) -> Any:  # noqa: ANN401 - there is none
        raise NotImplementedError

    def deserialize(self, version: int, value: Any) -> Any:  # noqa: ANN401 - there is none
        raise ValueError("this sink has no handles")


class _NothingToCommit(Committer[Any]):
    def _nothing(self, *_: object, **__: object) -> None:
        pass

    def _no_handle(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError

    fence = check = record = clean_up = forget = close = _nothing
    end = copy = _no_handle


class ImmediateSink(TwoPhaseSink[Any]):
    """A sink whose rows are visible once `Transaction.prepare` has returned, always None: nothing is left to commit.

    After a failure an epoch is written again: at least once, or, where rows have keys and replace each other, effectively once.
    """

    @property
    def handles(self) -> HandleSerializer[Any]:
        """There are none."""
        return _Nothing()

    def committer(self, job: str) -> Committer[Any]:
        """It has nothing to do."""
        return _NothingToCommit()

    def recorded(self) -> Mapping[str, RecordedEpoch]:
        """None are."""
        return {}
