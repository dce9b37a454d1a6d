"""Where a copy of a checkpoint is made, so that a process that is killed meanwhile leaves none that a query would start from.

A local copy is made alongside its place, and renamed. Other stores rename file by file, if at all: there a copy starts with a
`metadata` that is none, which Spark refuses to start from, and ends with the right one in its place.
"""

from __future__ import annotations

import os
import shutil
import uuid
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import IO

from headrace.connectors.files.store import Store, is_local, open_store
from headrace.enumerator.errors import UsageError
from headrace.spark.checkpoints.logs import METADATA

UNFINISHED = b"headrace checkpoint: this copy is not finished"


class CopyTarget(ABC):
    """One copy: `take` and `write`, then `finish`, or `discard`. Raises OSError for what the store refuses."""

    began_s: float  # when it was started, by the clock of its store

    def take(self, source: Store, name: str) -> None:
        with closing(source.open_to_read(name)) as data, closing(self.new_file(name)) as made:
            shutil.copyfileobj(data, made)

    def write(self, name: str, content: bytes) -> None:
        with closing(self.new_file(name)) as made:
            made.write(content)

    @abstractmethod
    def new_file(self, name: str) -> IO[bytes]:
        """A file to write, in a folder that is there then."""

    @abstractmethod
    def finish(self, metadata: bytes | None) -> None:
        """All other files are there: with this one, if there is one, the copy is."""

    @abstractmethod
    def discard(self) -> None:
        """Leave nothing, as far as possible."""


def copy_target(path: str) -> CopyTarget:
    """Start a copy at a path that `normal_path` has given. Raises UsageError where something is there."""
    return _LocalTarget(path) if is_local(path) else _StoreTarget(path)


class _LocalTarget(CopyTarget):
    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        if self._folder.exists():
            raise UsageError(f"{path} is there already: a copy goes into a new folder")
        self._made = self._folder.with_name(f".{self._folder.name}.{uuid.uuid4().hex}")
        self._made.mkdir(parents=True)
        self.began_s = self._made.stat().st_mtime

    def new_file(self, name: str) -> IO[bytes]:
        path = self._made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")

    def finish(self, metadata: bytes | None) -> None:
        if metadata is not None:
            self.write(METADATA, metadata)
        os.sync()  # once, as there may be thousands of files of state; before the name that states that all are there
        self._made.rename(self._folder)

    def discard(self) -> None:
        shutil.rmtree(self._made, ignore_errors=True)


class _StoreTarget(CopyTarget):
    def __init__(self, path: str) -> None:
        self._store = open_store(path, {})
        if self._store.files():
            unfinished = self._store.size(METADATA) == len(UNFINISHED) and self._store.read(METADATA) == UNFINISHED
            what = ", a copy that was not finished: remove it first" if unfinished else ": a copy goes into a new folder"
            raise UsageError(f"{path} is there already{what}")
        self.write(METADATA, UNFINISHED)
        self.began_s = self._store.modified_s(METADATA)

    def new_file(self, name: str) -> IO[bytes]:
        if folder := os.path.dirname(name):
            self._store.make_folder(folder)
        return self._store.open(name)

    def finish(self, metadata: bytes | None) -> None:
        if metadata is None:
            self._store.remove(METADATA)
        else:
            self.write(METADATA, metadata)

    def discard(self) -> None:
        for name in sorted(self._store.files(), key=lambda name: name == METADATA):  # that one last
            self._store.remove(name)
