"""What a streaming query's batch reads, by the offset log in its checkpoint: the batch's identity, alongside its number.

Spark writes `<checkpoint>/offsets/<batch>` before the batch runs, and a replay finds it there. An older copy of the checkpoint
plans the batch again, and may end it elsewhere. The file: a version, the batch's metadata (its time, the watermark), then a
line of offsets for each source. All of it counts: some sources log no more than a counter (Spark's files), and the time makes
rows, too (timers). A batch that is planned again has another time. The file is read by Arrow's file systems, since Spark hands
a data source no more than the location.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from headrace.connectors.base.sink import ENDS_BEHIND
from headrace.connectors.files.store import LocalStore, normal_path
from headrace.runners.spark.split_state import FOLDER, recorded_by

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)

LOCK_NAME = ".headrace.lock"
"""The file in a local checkpoint by which supervised drivers are kept apart (supervision/lock.py). Of no use in a copy."""


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """The offset log of the checkpoint at `location`: a path, or a URI as Hadoop takes it.

    Of a store that Arrow knows: file:, s3:, s3a:, hdfs:, gs:.
    """

    location: str

    def digest(self, batch: int) -> str | None:
        """A digest of the batch's plan; None where there is no such file, or it cannot be read. Driver process.

        That is logged once in a process, and tried again for the next batch. Without it a batch is identified by its number.
        """
        try:
            content = read_file(f"{self.location.rstrip('/')}/offsets/{batch}")
        except (OSError, ValueError, NotImplementedError) as error:  # Spark has written it before any process asks
            if self.location not in _unreadable:
                log.warning(
                    "the checkpoint at %s cannot be read here, so an older copy of it is noticed by the batch number alone: %s",
                    self.location,
                    error,
                )
            _unreadable.add(self.location)
            return None
        if content.count(b"\n") < 2:  # the version and the metadata, before the first source's
            return None
        ends = self._ends(content)
        return _digest(content) + (ENDS_BEHIND + _digest(ends) if ends else "")

    def _ends(self, content: bytes) -> bytes:
        """What the tasks of the batch have recorded, of sources whose splits have no end: how far it has read.

        Nothing where some have not, as the batch was not used as a whole: another use may have them record later.
        """
        ends = b""
        for line in content.splitlines():
            if (reading := recorded_by(line)) is not None:
                folder, _, start = f"{self.location.rstrip('/')}/{FOLDER}/{reading[0]}".rpartition("/")
                names = sorted(name for name in _names(folder) if name.startswith(start))
                if names and len(names) < reading[1]:
                    return b""
                ends += b"".join(name.encode() + read_file(f"{folder}/{name}") for name in names)
        return ends

    def query_id(self) -> str | None:
        """None where no query has started there. Raises OSError, ValueError or NotImplementedError for an unreadable one."""
        try:
            content = read_file(f"{self.location.rstrip('/')}/metadata")
        except FileNotFoundError:
            return None
        return str(json.loads(content)["id"]) if content.strip() else None

    def last_batch(self) -> int | None:
        """The last batch that was planned; None where none was. Driver process. Raises as `query_id`."""
        return newest_batch(_names(f"{self.location.rstrip('/')}/offsets"))

    def is_committed(self, batch: int) -> bool:
        """Whether the batch is in the commit log: then no start runs it again. Driver process. Raises as `query_id`."""
        return str(batch) in _names(f"{self.location.rstrip('/')}/commits")

    def complete(self, batch: int) -> None:
        """Put a batch whose rows are all committed into the commit log, so that no start runs it again. Driver process.

        Only of a query without state or watermark, of which the entry states no more than that the batch has ended, and in a
        folder of this machine. Else nothing is done: Spark runs the batch again, and the sink skips it. Before the query
        starts, by the process that has the checkpoint's lock.
        """
        if (root := _local(self.location)) is None or Path(root, "state").exists():
            return
        commits = Path(root, "commits")
        before = commits / str(batch - 1)
        if not before.exists() or before.read_bytes() != _ENDED:
            return
        if any(name.lstrip(".").partition(".")[0] == str(batch) and not name.endswith(".tmp") for name in _names(str(commits))):
            return  # it is there; or what is left of one, such as a checksum, would make this one a damaged one
        try:
            LocalStore(root).create(f"commits/{batch}", _ENDED, f"commits/.{batch}.{uuid4().hex}.tmp")
        except OSError as error:  # a full disk, or no hard links: it is spared nothing, and no start fails for it
            log.warning("batch %d is in the sink, and is run again, as the commit log cannot be written: %s", batch, error)


_unreadable: set[str] = set()
_ENDED = b'v1\n{"nextBatchWatermarkMs":0}'
"""An entry of Spark's commit log (`CommitMetadata`) of a query without a watermark, and without state."""


def newest_batch(names: Iterable[str]) -> int | None:
    """Of the files in a folder of an offset log, which has others too; None where there is none."""
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_file(name: str) -> bytes:
    """A file in a checkpoint, by its path or URI. Raises OSError, ValueError or NotImplementedError."""
    if (path := _local(name)) is not None:
        return Path(path).read_bytes()
    filesystem, path = _found(name)
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def _names(folder: str) -> list[str]:
    from pyarrow import fs

    if (path := _local(folder)) is not None:
        return os.listdir(path) if Path(path).is_dir() else []
    filesystem, path = _found(folder)
    return [entry.base_name for entry in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))]


def _local(name: str) -> str | None:
    """The path on this machine; None for a URI of another store. The working directory of the JVM is ours."""
    scheme, colon, _ = name.partition(":")
    if scheme == "file":
        return normal_path(name)
    return None if colon and "/" not in scheme else name


def _found(uri: str) -> tuple[FileSystem, str]:
    from pyarrow import fs

    filesystem, path = fs.FileSystem.from_uri(arrow_uri(uri))
    return filesystem, path


def arrow_uri(uri: str) -> str:
    """Of a URI of Hadoop, whose paths are not quoted."""
    scheme, _, rest = uri.partition(":")
    host, slash, path = rest.removeprefix("//").partition("/")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{host}{slash}{quote(path)}"
