"""A folder of this machine. A file is written under another name, and renamed when it is durable: so it is whole."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.enumerator.errors import UsageError
from headrace.runners.local.storage.files import NotWrittenError, RunFiles


class FolderFiles(RunFiles):
    """JSON files of a folder, which may hold others. Its lock is another process's (`headrace.runners.local.storage.lock`)."""

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        self._folder = folder

    def claim(self, owner: str = "", after: str | None = None) -> None:
        """Make the folder: the lock is what keeps others out."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        return [name for name in os.listdir(self._folder) if name.endswith(".json")]

    def read(self, name: str) -> bytes:
        """The process that wrote it may have died before it was durable, so it is synced."""
        path = self._folder / name
        data = path.read_bytes()
        _sync(path)
        _sync(self._folder)
        return data

    def size(self, name: str) -> int | None:
        try:
            return (self._folder / name).stat().st_size
        except OSError:
            return None

    def written_s(self, name: str) -> float:
        """By the filesystem's clock."""
        return (self._folder / name).stat().st_mtime

    def write(self, name: str, data: bytes) -> None:
        write_whole(self._folder / name, data)

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.discard(name)
        _sync(self._folder)

    def discard(self, name: str) -> None:
        """Not durably."""
        (self._folder / name).unlink(missing_ok=True)


def local_folder(url: str) -> Path:
    """The folder that a path or a `file:` URL names, absolute. Raises UsageError for another URL."""
    if not isinstance(url, str) or not url:  # what a caller gives has no type yet
        raise UsageError(f"a folder's path or a file: URL is needed, not {url!r}")
    parts = urlsplit(url)
    if parts.scheme == "file" and not {"?", "#"}.isdisjoint(url):
        raise UsageError(f"{url!r}: in a file: URL write ? as %3F and # as %23, or give the folder's path")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return Path(unquote(parts.path)).absolute()
    if "://" in url or parts.scheme == "file":
        raise UsageError(f"a folder of this machine is needed, a path or file:///..., not {url!r}")
    return Path(url).absolute()


def write_whole(path: Path, data: bytes) -> None:
    """Durably, in place of what is there: a reader that finds the file finds all of it. Raises as `RunFiles.write`."""
    scratch = path.with_suffix(".writing")
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()  # a part of it would fill a disk that is full to its last byte, and stay there
        raise NotWrittenError(error.errno, f"{path}: {error}") from error
    scratch.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
