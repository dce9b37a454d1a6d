"""What a streaming query's batch reads, according to the offset log in its checkpoint: the batch's identity, beside its number.

Spark writes `<checkpoint>/offsets/<batch>` before the batch runs, and a replay finds it there. An older copy of the checkpoint
plans the batch anew, and may end it elsewhere. The file: a version, the batch's metadata (its time, the watermark), then a line
of offsets for each source. All of it counts: some sources log no more than a counter (Spark's files), and the time makes rows,
too (timers). A batch that is planned anew has another time. The file is read by Arrow's file systems, since Spark hands a data
source no more than the location.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

__all__ = ["OffsetLog"]

_HEAD_LINES = 2  # the version and the metadata, before the first source's


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """The offset log of the checkpoint at `location`: a path, or a URI that Arrow knows (file:, s3:, s3a:, hdfs:, gs:)."""

    location: str

    def digest(self, batch: int) -> str | None:
        """A digest of the batch's plan; None where there is no such file, or it cannot be read. Driver process.

        What cannot be read is said once in a process, and tried again for the next batch: those that it was not read for are
        told by their numbers alone.
        """
        try:
            content = _read(f"{self.location.rstrip('/')}/offsets/{batch}")
        except (OSError, ValueError, NotImplementedError) as error:  # Spark has written it before anybody asks
            if self.location not in _unreadable:
                log.warning(
                    "the checkpoint at %s cannot be read here, so an older copy of it is noticed by the batch number alone: %s",
                    self.location,
                    error,
                )
            _unreadable.add(self.location)
            return None
        is_whole = content.count(b"\n") >= _HEAD_LINES
        return f"sha256:{hashlib.sha256(content).hexdigest()}" if is_whole else None

    def query_id(self) -> str | None:
        """The id of the query that the checkpoint is of; None where no query has begun there. Driver process.

        Raises OSError, ValueError or NotImplementedError where the checkpoint cannot be read here.
        """
        try:
            content = _read(f"{self.location.rstrip('/')}/metadata")
        except FileNotFoundError:
            return None
        return str(json.loads(content)["id"]) if content.strip() else None


_unreadable: set[str] = set()


def _read(name: str) -> bytes:
    from pyarrow import fs

    scheme, colon, rest = name.partition(":")
    if not colon or "/" in scheme:
        return Path(name).read_bytes()  # a relative one as the JVM takes it, whose working directory is ours
    filesystem, path = fs.FileSystem.from_uri(f"s3:{rest}" if scheme in ("s3a", "s3n") else name)
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())
