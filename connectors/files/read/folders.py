"""What the source asks of a filesystem: local disks by the operating system, others by fsspec or pyarrow.

Paths are relative to the folder that is read, with slashes. Names that start with `_` or `.` are left out, as by Hive,
except those of partitions' folders (`_day=1`); so are empty files. Symbolic links are followed; a folder is listed once,
however many links lead to it.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs as arrow_fs

from headrace.connectors.files.store import fsspec_of, is_local
from headrace.enumerator.errors import AuthenticationError, HeadraceError, PeerError, RetriableError, UsageError

_AWAY = (errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EINTR)
"""What a folder that is mounted from another machine answers while that is away."""
_REFUSED = re.compile(r"Credential|ACCESS_DENIED|AccessDenied|Forbidden")
"""What clients of stores say where no right is, in names of errors or in texts."""
_ITSELF = "./"
_PART = 1 << 20
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")
"""Where fsspec's filesystems have the time of a file."""


class FoundFile(NamedTuple):
    """A version of a file. Its hash, which differs between processes, is its identity in this one."""

    path: str
    size: int
    modified_ns: int


class Folder(ABC):
    """The files below one folder, or one file. Raises FileNotFoundError, and PeerError for what the filesystem refuses.

    RetriableError is what may pass. Any thread may call it.
    """

    @abstractmethod
    def list_files(self, skipped: Collection[int]) -> list[FoundFile]:
        """Every file whose hash is not in `skipped`, in no order."""

    @abstractmethod
    def find(self, path: str) -> FoundFile:
        """The file as it is now."""

    @abstractmethod
    def open(self, path: str) -> pa.NativeFile:
        """A file to be read from any place. Whatever fails in it later is raised as a PeerError, too."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file."""

    @abstractmethod
    def move(self, path: str, target: str) -> None:
        """Give a file this whole path, where none is. It is whole in one of both places, or in both if this process dies."""


def open_folder(path: str, options: Mapping[str, Any], filesystem: Any) -> Folder:  # noqa: ANN401 - of two libraries
    """The folder of a path that `normal_path` has given, or of a path of `filesystem`. Does no I/O, unless fsspec does."""
    if isinstance(filesystem, arrow_fs.FileSystem):
        return _ArrowFolder(filesystem, path)
    if filesystem is not None:
        return _FsspecFolder(filesystem, path)
    if is_local(path):
        return _LocalFolder(path)
    try:
        return _FsspecFolder(*fsspec_of(path, options))
    except UsageError:
        raise
    except Exception as error:  # of a filesystem that connects when it is made
        raise _of_a_store(path, error) from error


def _itself(path: str) -> str:
    """The path below itself of a file that is given in place of a folder: no other path starts so."""
    return _ITSELF + path.rsplit("/", 1)[-1]


def archive(folder: Folder, file: FoundFile, archived: Folder, target: str) -> None:
    """Put a file under its path below `target`, which is the folder `archived`, or where another file is, under its time.

    A file there with the same content is of a move that this one continues. Raises PeerError if both names are taken.
    """
    path = file.path.removeprefix(_ITSELF)
    parent, name = os.path.split(path)
    stem, dot, ending = name.partition(".")
    for each in (path, os.path.join(parent, f"{stem}-{file.modified_ns}{dot}{ending}")):
        try:
            there = archived.find(each)
        except FileNotFoundError:
            folder.move(file.path, f"{target.rstrip('/')}/{each}")
            return
        if there.size == file.size and _are_same(folder.open(file.path), archived.open(each)):
            folder.delete(file.path)
            return
    raise PeerError(f"{target} has other files of its name: move them away")


def _are_same(one: pa.NativeFile, other: pa.NativeFile) -> bool:
    with one, other:
        while (part := one.read(_PART)) == other.read(_PART):
            if not part:
                return True
    return False


def is_hidden(name: str) -> bool:
    """Whether readers of a folder ignore a file of this name: it is temporary, or no data."""
    return name.startswith((".", "_")) or name.endswith("._COPYING_")


def is_hidden_folder(name: str) -> bool:
    """Whether they ignore such a folder. `_day=1` is a partition."""
    return is_hidden(name) and not (name.startswith("_") and "=" in name)


class _LocalFolder(Folder):
    """A folder of the operating system, or a file."""

    def __init__(self, path: str) -> None:
        self._root = path

    def list_files(self, skipped: Collection[int]) -> list[FoundFile]:
        with _translated(self._root, _of_the_system):
            if not os.path.isdir(self._root):
                found = self.find(_itself(self._root))
                return [found] if found.size and hash(found) not in skipped else []
            return self._listed(skipped)

    def _listed(self, skipped: Collection[int]) -> list[FoundFile]:
        found: list[FoundFile] = []
        folders, links, visited = [""], list[str](), set[tuple[int, int]]()
        while folders or links:
            folder = folders.pop() if folders else links.pop()
            try:
                status = os.stat(os.path.join(self._root, folder))
                if (status.st_dev, status.st_ino) in visited:
                    continue
                visited.add((status.st_dev, status.st_ino))
                self._list(folder, skipped, found, folders, links)
            except FileNotFoundError:
                if not folder:
                    raise
            links.sort(reverse=True)
        return found

    def _list(
        self, folder: str, skipped: Collection[int], found: list[FoundFile], folders: list[str], links: list[str]
    ) -> None:
        """One folder. What is done for each file counts: there may be very many."""
        prefix = f"{folder}/" if folder else ""
        with os.scandir(os.path.join(self._root, folder)) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError as error:
                    if error.errno in (errno.ENOENT, errno.ELOOP):  # removed just now, or a link to nothing
                        continue
                    raise
                file = (prefix + entry.name, status.st_size, status.st_mtime_ns or 1)  # 0 means that there is none
                if hash(file) in skipped:  # a plain tuple has the same hash, and is made sooner
                    continue
                if stat.S_ISDIR(status.st_mode):
                    if not is_hidden_folder(entry.name):
                        (links if entry.is_symlink() else folders).append(file[0])
                elif status.st_size and stat.S_ISREG(status.st_mode) and not is_hidden(entry.name):
                    found.append(FoundFile(*file))

    def find(self, path: str) -> FoundFile:
        with _translated(self._path(path), _of_the_system):
            status = os.stat(self._path(path))
            return FoundFile(path, status.st_size, status.st_mtime_ns or 1)

    def open(self, path: str) -> pa.NativeFile:
        with _translated(self._path(path), _of_the_system):
            return pa.OSFile(os.fsencode(self._path(path)))

    def delete(self, path: str) -> None:
        with _translated(self._path(path), _of_the_system):
            os.unlink(self._path(path))

    def move(self, path: str, target: str) -> None:
        with _translated(self._path(path), _of_the_system):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                os.rename(self._path(path), target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copy = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}")
                shutil.copy2(self._path(path), copy)
                os.replace(copy, target)
                os.unlink(self._path(path))

    def _path(self, path: str) -> str:
        return self._root if path.startswith(_ITSELF) else os.path.join(self._root, path)


class _RemoteFolder(Folder):
    """What is on another machine: whatever fails and is not known may pass."""

    def __init__(self, path: str) -> None:
        self._root = path.rstrip("/")

    @abstractmethod
    def _open(self, path: str) -> Any:  # noqa: ANN401 - a file of fsspec's or of pyarrow's
        """A file by its full path."""

    def open(self, path: str) -> pa.NativeFile:
        full = self._path(path)
        with _translated(full, _of_a_store):
            return pa.PythonFile(_StoreFile(self._open(full), full), mode="r")

    def _path(self, path: str) -> str:
        return self._root if path.startswith(_ITSELF) else f"{self._root}/{path}"

    def _relative(self, full: str) -> str:
        return full.removeprefix(self._root).removeprefix("/") or _itself(full)  # a key of a store may have two slashes

    def _chosen(self, files: Iterator[FoundFile], skipped: Collection[int]) -> list[FoundFile]:
        return [file for file in files if file.size and hash(file) not in skipped and not self._hides(file.path)]

    @staticmethod
    def _hides(path: str) -> bool:
        *folders, name = path.split("/")
        return not path.startswith(_ITSELF) and (is_hidden(name) or any(map(is_hidden_folder, folders)))


class _FsspecFolder(_RemoteFolder):
    def __init__(self, filesystem: Any, path: str) -> None:  # noqa: ANN401 - fsspec has no types
        super().__init__(str(path))
        self._filesystem = filesystem

    def list_files(self, skipped: Collection[int]) -> list[FoundFile]:
        with _translated(self._root, _of_a_store):
            self._filesystem.invalidate_cache()
            infos = self._filesystem.find(self._root, detail=True)
            if not infos:
                info = self._filesystem.info(self._root)
                infos = {self._root: info} if info.get("type") == "file" else {}  # of HTTP, whose folders are pages
        files = (self._file(str(path), info) for path, info in infos.items() if not str(path).endswith("/"))
        return self._chosen(files, skipped)

    def find(self, path: str) -> FoundFile:
        with _translated(self._path(path), _of_a_store):
            self._filesystem.invalidate_cache()
            return self._file(self._path(path), self._filesystem.info(self._path(path)))

    def _file(self, full: str, info: Mapping[str, Any]) -> FoundFile:
        time = next((info[name] for name in _TIMES if info.get(name) is not None), None)
        return FoundFile(self._relative(full), int(info.get("size") or 0), _nanoseconds(time))

    def _open(self, path: str) -> Any:  # noqa: ANN401
        if self._filesystem.protocol == "memory":  # it has one open file for all
            return io.BytesIO(self._filesystem.store[self._filesystem._strip_protocol(path)].getvalue())
        return self._filesystem.open(path, "rb")

    def delete(self, path: str) -> None:
        with _translated(self._path(path), _of_a_store):
            self._filesystem.rm_file(self._path(path))

    def move(self, path: str, target: str) -> None:
        target = self._filesystem._strip_protocol(target)
        with _translated(self._path(path), _of_a_store):
            with suppress(Exception):  # a store without folders
                self._filesystem.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self._filesystem.mv(self._path(path), target)


class _ArrowFolder(_RemoteFolder):
    def __init__(self, filesystem: arrow_fs.FileSystem, path: str) -> None:
        super().__init__(path)
        self._filesystem = filesystem

    def list_files(self, skipped: Collection[int]) -> list[FoundFile]:
        with _translated(self._root, _of_a_store):
            info = self._filesystem.get_file_info(self._root)
            if info.type == arrow_fs.FileType.NotFound:
                raise FileNotFoundError(self._root)
            infos = [info]
            if info.type == arrow_fs.FileType.Directory:
                infos = self._filesystem.get_file_info(arrow_fs.FileSelector(self._root, recursive=True))
        return self._chosen((self._file(each) for each in infos if each.type == arrow_fs.FileType.File), skipped)

    def find(self, path: str) -> FoundFile:
        with _translated(self._path(path), _of_a_store):
            info = self._filesystem.get_file_info(self._path(path))
            if info.type == arrow_fs.FileType.NotFound:
                raise FileNotFoundError(self._path(path))
            return self._file(info)

    def _file(self, info: Any) -> FoundFile:  # noqa: ANN401 - pyarrow has no types
        return FoundFile(self._relative(info.path), info.size or 0, info.mtime_ns or 0)

    def _open(self, path: str) -> Any:  # noqa: ANN401
        return self._filesystem.open_input_file(path)

    def delete(self, path: str) -> None:
        with _translated(self._path(path), _of_a_store):
            self._filesystem.delete_file(self._path(path))

    def move(self, path: str, target: str) -> None:
        with _translated(self._path(path), _of_a_store):
            self._filesystem.create_dir(target.rsplit("/", 1)[0])
            self._filesystem.move(self._path(path), target)


class _StoreFile(io.RawIOBase):
    """An open file of a store, whose failures are ours: what Arrow raises by itself is of the file's bytes then."""

    def __init__(self, file: Any, path: str) -> None:  # noqa: ANN401
        self._file, self._name = file, path

    def read(self, size: int = -1) -> bytes:
        with _translated(self._name, _of_a_store):
            data: bytes = self._file.read() if size is None or size < 0 else self._file.read(size)
            return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _translated(self._name, _of_a_store):
            self._file.seek(offset, whence)
            return int(self._file.tell())

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):
                self._file.close()
        super().close()


@contextmanager
def _translated(path: str, translate: Callable[[str, Exception], Exception]) -> Iterator[None]:
    try:
        yield
    except (HeadraceError, FileNotFoundError):
        raise
    except Exception as error:
        raise translate(os.fsencode(path).decode(errors="backslashreplace"), error) from error


def _of_the_system(path: str, error: Exception) -> Exception:
    if isinstance(error, OSError):
        kind = RetriableError if error.errno in _AWAY else PeerError
        return kind(f"{path}: {error.strerror or error}: let this process read it, or correct the path")
    return error


def _of_a_store(path: str, error: Exception) -> Exception:
    """Names and rights are wrong for good; anything else, such as a failed connection, may pass."""
    if isinstance(error, PermissionError) or _REFUSED.search(f"{type(error).__name__} {error}"):
        return AuthenticationError(f"{path}: the store refuses: {error}: correct the credentials, or the rights")
    if isinstance(error, (NotImplementedError, TypeError, AttributeError)):
        return error
    return RetriableError(f"{path}: the store does not answer as it should: {type(error).__name__}: {error}")


def _nanoseconds(time: object) -> int:
    """A file's time, however fsspec has it; 0 if there is none."""
    if isinstance(time, str):
        with suppress(ValueError):
            time = datetime.fromisoformat(time)
    if isinstance(time, datetime):
        return int(time.timestamp() * 1_000_000) * 1000
    return int(time * 1_000_000) * 1000 if isinstance(time, (int, float)) else 0
