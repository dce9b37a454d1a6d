"""The initial offsets that Spark's JVM Kafka connector keeps in a query's checkpoint, for a query killed in batch 0.

Spark hands a data source the offsets of its offset log and nothing else. The JVM connector keeps where batch 0 started in a
file of its own, `<checkpoint>/sources/<n>/0`: a zero byte, the line `v1`, and its usual JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from headrace.enumerator.errors import StateError
from headrace.runners.spark.offset_log import read_file


@dataclass(frozen=True, slots=True)
class JvmCheckpoint:
    """A checkpoint directory, as Spark takes it: a path or a URI, of a store that Arrow knows (file:, hdfs:, s3:, s3a:, gs:).

    Of a query with several sources, name the source's own directory: `<checkpoint>/sources/<n>`.
    """

    location: str

    def initial_offsets(self) -> str:
        """The JSON of the initial offsets. Driver process. Raises StateError when there is no such file."""
        location = self.location.rstrip("/")
        of_source = PurePosixPath(location).parent.name == "sources"
        name = f"{location}/0" if of_source else f"{location}/sources/0/0"
        try:
            content = read_file(name)
        except (OSError, ValueError, NotImplementedError) as error:
            raise StateError(f"the JVM connector's initial offsets cannot be read from {name}: {error}") from error
        return _parse(content, name)


def _parse(content: bytes, name: str) -> str:
    version, newline, document = content.removeprefix(b"\0").decode("utf-8", "replace").partition("\n")
    if version.startswith("{"):
        return version  # Spark 2.1 wrote no version
    if version != "v1" or not newline:
        raise StateError(f"{name} does not hold initial offsets in a version known here, but: {version[:40]!r}")
    return document
