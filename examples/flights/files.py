"""What the files of a Spark query say about it; needs no word from Spark, and none from headrace."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlparse


def batch_under_way(checkpoint: Path, output: Path) -> int | None:
    """The batch whose offsets are in the checkpoint, and whose rows are not in the output."""
    planned = max(_numbers(checkpoint / "offsets"), default=None)
    return None if planned is None or _is_written(output, planned) else planned


def is_committed(checkpoint: Path, batch: int) -> bool:
    """Whether the checkpoint states that the batch is done."""
    return (checkpoint / "commits" / str(batch)).exists()


def offsets_read(checkpoint: Path, topic: str) -> dict[int, int]:
    """Up to where the committed batches have read the topic, by partition."""
    batch = max(_numbers(checkpoint / "commits"), default=None)
    if batch is None:
        return {}
    source = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
    return {int(partition): offset for partition, offset in json.loads(source)[topic].items()}


def committed_files(output: Path) -> list[Path]:
    """The Parquet files that the log of Spark's file sink names: others are left-overs of killed batches.

    Every tenth entry of the log, `<n>.compact`, repeats what all before it said.
    """
    log = output / "_spark_metadata"
    compact = max((int(path.stem) for path in log.glob("*.compact")), default=-1)
    entries = [log / str(number) for number in sorted(_numbers(log)) if number > compact]
    if compact >= 0:
        entries.insert(0, log / f"{compact}.compact")
    lines = (line for entry in entries for line in entry.read_text().splitlines()[1:])  # the first is the version
    actions = [json.loads(line) for line in lines]
    return [Path(unquote(urlparse(action["path"]).path)) for action in actions if action["action"] == "add"]


def _is_written(output: Path, batch: int) -> bool:
    entry = output / "_spark_metadata" / str(batch)
    return entry.exists() or entry.with_suffix(".compact").exists()


def _numbers(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.glob("*") if path.name.isdigit()]
