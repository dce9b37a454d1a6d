"""The durable form of an epoch's committables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic

from headrace.connectors.base.sink import CommitList, HandleSerializer, HandleT, JobClaim
from headrace.enumerator.envelope import Envelope, readable_version, stored_number, stored_text, stored_truth

_COMMIT_LIST = Envelope("headrace-commit-list", "list of transactions")


class CommitListSerializer(Generic[HandleT]):
    """A `CommitList` as bytes (`headrace.enumerator.envelope`), version 1: its fields, and the version of the handles."""

    def __init__(self, handles: HandleSerializer[HandleT]) -> None:
        """`handles` is the sink's."""
        self._handles = handles

    def serialize(self, commits: CommitList[HandleT]) -> bytes:
        """The list in its envelope."""
        claim = commits.claim
        return _COMMIT_LIST.seal(
            {
                "epoch": commits.epoch,
                "completed": commits.completed,
                "destination": commits.destination,
                "targets": commits.targets,
                "content": commits.content,
                "claim": None if claim is None else {"number": claim.number, "driver_id": claim.driver_id},
                "handle_version": self._handles.version,
                "handles": [self._handles.serialize(handle) for handle in commits.handles],
            }
        )

    def deserialize(self, data: bytes | str, where: str) -> CommitList[HandleT]:
        """What `serialize` wrote. Raises StateError, naming `where`, for anything else."""
        body = _COMMIT_LIST.open(data, where)
        with _COMMIT_LIST.reading(where):
            return self._read(body)

    def _read(self, value: Mapping[str, Any]) -> CommitList[HandleT]:
        """Raises KeyError, TypeError or ValueError for what `serialize` has never written."""
        handle_version = readable_version(value["handle_version"], self._handles.version)
        completed = stored_truth(value["completed"])  # a list taken for completed loses rows
        handles = tuple(self._handles.deserialize(handle_version, item) for item in value["handles"])
        claim = None if value["claim"] is None else _claim(value["claim"])
        epoch = None if value["epoch"] is None else stored_number(value["epoch"])
        if epoch is None and (handles or not completed or claim is None):
            raise ValueError("no epoch is recorded, and transactions are to be committed, or no driver has claimed the job")
        content, destination = _text_or_null(value["content"]), _text_or_null(value["destination"])
        return CommitList(epoch, handles, completed, destination, _texts(value["targets"]), content, claim)


def _claim(value: Mapping[str, Any]) -> JobClaim:
    return JobClaim(stored_number(value["number"]), _text_or_null(value["driver_id"]))


def _text_or_null(value: object) -> str | None:
    return None if value is None else stored_text(value)


def _texts(value: list[object] | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(stored_text(item) for item in value)
