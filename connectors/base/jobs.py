"""Names of jobs: which there may be, those of one write that is never repeated, and those of a run of `headrace run`."""

from __future__ import annotations

import re
import uuid

from headrace.enumerator.errors import UsageError

_JOB_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_LONGEST_JOB = 100
_ONE_OFF = "batch-"
_ONE_OFF_NAME = re.compile(r"batch-[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")  # the digits of a random UUID
_RUN_NAME = re.compile("(?P<run>run-[0-9a-f]{32})(?P<output>-[A-Za-z][A-Za-z0-9_]{0,31})?(?P<worker>-[0-9]+)?")


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


def run_name() -> str:
    """A new name for a run of `headrace run`. Its outputs and workers write as `<run>[-<output>][-<worker's number>]`."""
    return f"run-{uuid.uuid4().hex}"


def owner_of(job: str) -> str:
    """The job that has recorded what is committed of this one: of a run's worker the run, at the worker's output."""
    found = _RUN_NAME.fullmatch(job)
    return job if found is None else job.removesuffix(found["worker"] or "")


def is_part_of(job: str, whole: str) -> bool:
    """Whether this is the job `whole`, or writes for it, where that is a run of `headrace run`, or one of its outputs.

    By the names of runs alone: another engine's job `orders-2` is not a part of `orders`.
    """
    found = _RUN_NAME.fullmatch(job)
    return whole in (job, owner_of(job)) or (found is not None and found["run"] == whole)
