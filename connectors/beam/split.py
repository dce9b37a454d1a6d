"""A bundle of a Beam source, and how much of it was delivered.

The position is a number of rows from the bundle's start, and not a position of Beam's range tracker: that one can only stand
before a block (Avro, Parquet), and its type is the source's own business. A restore reads the bundle from its start and leaves
out what was delivered, so what it costs is bounded by the size of bundles, and the bundle must give the same rows each time.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any

from headrace.enumerator.envelope import readable_version
from headrace.enumerator.source import JsonObject, SplitSerializer


@dataclass(frozen=True, slots=True)
class BundleSplit:
    """`delivered` rows of this bundle were handed on. `bundle`: source, start and stop position, as Beam's pickler has them."""

    split_id: str
    bundle: bytes = field(repr=False)
    delivered: int = 0


class BundleSplitSerializer(SplitSerializer[BundleSplit]):
    """Version 1: {"id": "0-1f2e3d4c5b6a", "bundle": "<base64>", "delivered": 3}.

    The bundle is pickled, as in Beam's own state: another version of Beam, or of the source's code, may fail to read it, and
    who can write a checkpoint can run code where it is restored. It is unpickled by readers only.
    """

    version = 1

    def serialize(self, split: BundleSplit) -> JsonObject:
        """The split as a JSON object."""
        return {"id": split.split_id, "bundle": b64encode(split.bundle).decode(), "delivered": split.delivered}

    def deserialize(self, version: int, data: Any) -> BundleSplit:  # noqa: ANN401 - any JSON value
        """What `serialize` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        readable_version(version, self.version)
        split_id, delivered = data["id"], data["delivered"]
        if not isinstance(split_id, str) or type(delivered) is not int or delivered < 0:
            raise ValueError(f"not a bundle's id and rows: {split_id!r}, {delivered!r}")
        return BundleSplit(split_id, b64decode(data["bundle"], validate=True), delivered)
