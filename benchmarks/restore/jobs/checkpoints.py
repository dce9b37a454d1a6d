"""What Flink orphaned, to continue from."""

from __future__ import annotations

from pathlib import Path


def newest_checkpoint(directory: Path) -> Path | None:
    """The newest complete one, of whichever run: a checkpoint's metadata is written last."""
    complete = directory.glob("*/chk-*/_metadata")
    newest = max(complete, key=lambda file: file.stat().st_mtime_ns, default=None)
    return None if newest is None else newest.parent
