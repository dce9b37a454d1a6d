"""Results as files: JSON documents, and lines of them. What is written appears complete or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]


def write_whole(file: Path, text: str) -> None:
    """Write or replace a file, in a folder that is made if need be; the process that reads it meanwhile has the previous
    one.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(file)


def read_lines(file: Path) -> list[Document]:
    """The documents of a file, one a line; none without the file. Raises ValueError for a line that is not a JSON."""
    if not file.is_file():
        return []
    found = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError as error:
            where = f"{file.name}, line {number}"
            raise ValueError(f"{where}, is not JSON ({error}): restore the file with git, or remove the line") from error
    return found


def append_line(file: Path, document: Document) -> None:
    """Add a document to a file of lines, which is made if need be. One process at a time."""
    before = file.read_text() if file.is_file() else ""
    write_whole(file, f"{before}{json.dumps(document)}\n")
