"""Names of jobs: which there may be, and those of one write that is never repeated."""

from __future__ import annotations

import re
import uuid

from headrace.enumerator.errors import UsageError

_JOB_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_LONGEST_JOB = 100
_ONE_OFF = "batch-"
_ONE_OFF_NAME = re.compile(r"batch-[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")  # the digits of a random UUID


def check_job(job: str) -> str:
    """The name, if it may name a job. Raises UsageError otherwise: it becomes part of names that are matched by patterns."""
    unchecked: object = job
    if not isinstance(unchecked, str) or not 0 < len(job) <= _LONGEST_JOB or not _JOB_CHARACTERS.issuperset(job):
        raise UsageError(f"a job's name has 1 to {_LONGEST_JOB} letters, digits, '-' and '_'; got {job!r}")
    return job


def one_off_job() -> str:
    """A new name for the job of one write that is never repeated: its list is of no use once it is completed."""
    return f"{_ONE_OFF}{uuid.uuid4().hex}"


def is_one_off(job: str) -> bool:
    """True for what `one_off_job` made, and for no other name: one that a user gave stays recorded."""
    return _ONE_OFF_NAME.fullmatch(job) is not None
