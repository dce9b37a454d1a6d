"""The names of prepared transactions, and the handles that carry them.

A name is `headrace.<place>.<job>.<epoch>.<task>.<number>.<nonce>`:

- `place` is a digest of where the job's durable list is kept, and of the table that it is for. Names are shared by a whole
  server; two databases on it may each have a job of the same name, and a job may write to two tables: none may touch the
  other's transactions.
- `job` is shortened to 13 characters, `~` and a digest if it is longer than 46: `~` is in no job's name, so a shortened one
  is no other job's name.
- `nonce` is new each time: after a checkpoint was thrown away, the same attempt comes again, and must not be taken for the one
  that was committed then.

MariaDB and MySQL take a name in two parts of up to 64 bytes, split here before the epoch; PostgreSQL takes one below 200 bytes.
No part holds a dot, so a job's prefix, which ends in one, is not a prefix of another job's names.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any

from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.sink import Attempt, HandleSerializer
from headrace.enumerator.envelope import readable_version, stored_number, stored_text
from headrace.enumerator.errors import UsageError

_LONGEST_PART = 64
_LONGEST_JOB = 46  # 64 without "headrace.", the place and its dot
_KEPT = 13
_GID = re.compile(r"headrace\.[0-9a-f]{8}\.[A-Za-z0-9_~-]{1,46}\.[0-9]+\.[0-9]+\.[0-9]+\.[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class SqlHandle:
    """A prepared transaction by its name in the database, and how many rows it holds."""

    gid: str
    rows: int


class SqlHandleSerializer(HandleSerializer[SqlHandle]):
    """A handle as a JSON object of `gid` and `rows`."""

    version = 1

    def serialize(self, handle: SqlHandle) -> Any:  # noqa: ANN401 - any JSON value
        return {"gid": handle.gid, "rows": handle.rows}

    def deserialize(self, version: int, value: Any) -> SqlHandle:  # noqa: ANN401 - any JSON value
        """What `serialize` was given. Raises ValueError for a name that is not ours: names become part of statements."""
        readable_version(version, self.version)
        gid = stored_text(value["gid"])
        if not is_gid(gid) or len(split_gid(gid)[0]) > _LONGEST_PART or len(split_gid(gid)[1]) > _LONGEST_PART:
            raise ValueError(f"{gid!r} names no transaction of headrace")
        return SqlHandle(gid, stored_number(value["rows"]))


def place_digest(*names: str) -> str:
    """Eight characters for the place of a list: the database, its schema if it has some, and the table that the list is for."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:8]


def list_key(job: str, destination: str) -> str:
    """What a job's list for one table is kept under."""
    return f"{job}.{place_digest(destination)}"


def job_of_key(key: str) -> str:
    """The job whose list is kept under this key."""
    return key.partition(".")[0]


def job_prefix(place: str, job: str) -> str:
    """How the names of all transactions of a job start, and of no other job. Raises UsageError for what names no job."""
    check_job(job)
    if len(job) > _LONGEST_JOB:
        job = f"{job[:_KEPT]}~{hashlib.sha256(job.encode()).hexdigest()[: _LONGEST_JOB - _KEPT - 1]}"
    return f"{place_prefix(place)}{job}."


def place_prefix(place: str) -> str:
    """How the names of all transactions start whose lists are in this place."""
    return f"headrace.{place}."


def is_gid(text: str) -> bool:
    """Whether this has the form of our names. Other applications name their transactions as they like."""
    return _GID.fullmatch(text) is not None


def is_of_job(gid: str, job: str) -> bool:
    """Whether this is the name of a transaction of the job, in whatever place."""
    place = gid.split(".", 2)[1]
    return gid.startswith(job_prefix(place, job))


def attempt_prefix(place: str, attempt: Attempt) -> str:
    """How the names of an attempt's transactions start, and of no other attempt."""
    return f"{job_prefix(place, attempt.job)}{attempt.epoch}.{attempt.task}.{attempt.number}."


def new_gid(place: str, attempt: Attempt) -> str:
    """A name that no transaction has had. Raises UsageError when the attempt's numbers do not fit a database's limit."""
    gid = attempt_prefix(place, attempt) + secrets.token_hex(4)
    if not is_gid(gid) or len(split_gid(gid)[1]) > _LONGEST_PART:
        raise UsageError(
            f"{attempt} cannot be made the name of a transaction: its numbers count from 0, up to 53 digits in all"
        )
    return gid


def epoch_of(gid: str) -> int:
    """The epoch in one of our names."""
    return int(gid.rsplit(".", 4)[1])


def split_gid(gid: str) -> tuple[str, str]:
    """The global transaction id and the branch qualifier, as XA calls them: the job, and the attempt."""
    job, *attempt = gid.rsplit(".", 4)
    return job, ".".join(attempt)
