"""Reads a folder by discovery and reader alone, as a runner does, with the cursor in the caller's hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from headrace.enumerator.source import JsonObject, SplitBatch
from headrace.files import FileSource


def found(source: FileSource, cursor: JsonObject | None = None, limit: int = 1000) -> tuple[list[Any], JsonObject]:
    """The splits behind a cursor, and the next one, as it is after a checkpoint."""
    splits: list[Any] = []
    with closing(source.create_discovery()) as discovery:
        while True:
            answer = discovery.after(cursor, limit)
            splits += answer.added
            assert answer.cursor is not None
            cursor = json.loads(json.dumps(answer.cursor))
            if not answer.more:
                return splits, cursor


def batches(source: FileSource, splits: list[Any]) -> Iterator[SplitBatch[Any]]:
    """All that a reader gives of these."""
    left = len(splits)
    with source.create_reader() as reader:
        reader.add_splits(splits)
        while left:
            batch = reader.poll(0)
            assert batch is not None
            assert batch.records.schema == source.schema
            left -= batch.finished
            yield batch


def rows(source: FileSource, splits: list[Any] | None = None) -> list[Any]:
    """Of these splits, or of all there are: as tuples, and of a single column its values."""
    read = [
        row for batch in batches(source, found(source)[0] if splits is None else splits) for row in batch.records.to_pylist()
    ]
    return [tuple(row.values()) if len(row) > 1 else next(iter(row.values())) for row in read]
