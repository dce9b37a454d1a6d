"""What a streaming query's batch reads, according to the offset log in its checkpoint: the batch's identity, beside its number.

Spark writes `<checkpoint>/offsets/<batch>` before the batch runs, and a replay finds it there. An older copy of the checkpoint
plans the batch anew, and may end it elsewhere. The file: a version, the batch's metadata (its time, the watermark), then a line
of offsets for each source. It is read by Arrow's file systems, since Spark hands a data source no more than the location.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

__all__ = ["OffsetLog"]

_HEAD_LINES = 2  # the version and the metadata, whose times differ where the same batch is planned twice


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """The offset log of the checkpoint at `location`: a path, or a URI that Arrow knows (file:, s3:, s3a:, hdfs:, gs:)."""

    location: str

    def digest(self, batch: int) -> str | None:
        """A digest of the batch's source offsets; None where there is no such file, or it cannot be read. Driver process.

        What cannot be read is said once in a process, and not tried again: batches are then told by their numbers alone.
        """
        if self.location in _unreadable:
            return None
        try:
            content = _read(f"{self.location.rstrip('/')}/offsets/{batch}")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, NotImplementedError) as error:
            _unreadable.add(self.location)
            log.warning(
                "the checkpoint at %s cannot be read here, so an older copy of it is noticed by the batch number alone: %s",
                self.location,
                error,
            )
            return None
        lines = content.split(b"\n", _HEAD_LINES)
        return f"sha256:{hashlib.sha256(lines[-1]).hexdigest()}" if len(lines) > _HEAD_LINES else None


_unreadable: set[str] = set()


def _read(name: str) -> bytes:
    from pyarrow import fs

    scheme, colon, rest = name.partition(":")
    if not colon or "/" in scheme:
        return Path(name).read_bytes()  # a relative one as the JVM takes it, whose working directory is ours
    filesystem, path = fs.FileSystem.from_uri(f"s3:{rest}" if scheme in ("s3a", "s3n") else name)
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())
