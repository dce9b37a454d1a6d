"""What names a file that is written and not published yet, and the two names it has: before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.sink import Attempt, HandleSerializer
from headrace.connectors.files.formats import FileFormat
from headrace.enumerator.envelope import readable_version, stored_number

OPEN = ".tmp"
CLEANED_UP = ".swept"


@dataclass(frozen=True, slots=True)
class FileHandle:
    """A whole file of `rows` rows and `size` bytes under its temporary name. `token` distinguishes it from every other file."""

    attempt: Attempt
    token: str
    format: FileFormat
    rows: int
    size: int

    @property
    def temporary(self) -> str:
        """The name before it is published, in the job's folder."""
        return temporary_name(self.attempt, self.token)

    @property
    def cleaned_up(self) -> str:
        """The name after a clean-up has started to remove it: it can still be published, until it is gone."""
        return self.temporary.removesuffix(OPEN) + CLEANED_UP

    @property
    def published(self) -> str:
        """The name by which readers see it; always the same, so that publishing twice is publishing once."""
        attempt = self.attempt
        place = f"{attempt.job}-{attempt.epoch:09d}-{attempt.task:05d}-{attempt.number}"
        return f"part-{place}-{self.token}.{self.format.value}"


def temporary_name(attempt: Attempt, token: str) -> str:
    return f"{attempt.epoch}.{attempt.task}.{attempt.number}.{token}{OPEN}"


class FileHandleSerializer(HandleSerializer[FileHandle]):
    """Version 1: {"job", "epoch", "task", "number", "token", "format", "rows", "size"}."""

    version = 1

    def serialize(self, handle: FileHandle) -> dict[str, Any]:
        return {
            "job": handle.attempt.job,
            "epoch": handle.attempt.epoch,
            "task": handle.attempt.task,
            "number": handle.attempt.number,
            "token": handle.token,
            "format": handle.format.value,
            "rows": handle.rows,
            "size": handle.size,
        }

    def deserialize(self, version: int, value: Any) -> FileHandle:  # noqa: ANN401 - any JSON value
        """What `serialize` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        readable_version(version, self.version)
        job, token = value["job"], value["token"]
        if not isinstance(token, str) or not token.isalnum():
            raise ValueError(f"not the token of a file: {token!r}")
        epoch, task, number, rows, size = (stored_number(value[name]) for name in ("epoch", "task", "number", "rows", "size"))
        return FileHandle(Attempt(check_job(job), epoch, task, number), token, FileFormat(value["format"]), rows, size)
