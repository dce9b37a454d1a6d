"""The few things that the sink asks of a filesystem: local disks by the operating system, everything else by fsspec.

Names are relative to the folder that is written to. What a store must give, and what is done about one that does not:

- *Exclusive creation* (`create`): of two drivers one wins. Fencing rests on it. Local: a hard link, so that the file is whole
  at once. fsspec: `pipe_file(mode="create")` (S3, GCS, Azure: a conditional put). A store that does not know it, or does not
  keep to it when tried, is refused by its name. One that looks first and creates then (SFTP) passes the trial, and can then
  let two drivers win that start in the same instant.
- *Atomic renames* (`rename`): readers see whole files only. Local: yes. Object stores copy: each object appears whole, but a
  crash leaves both, and the next `end` does it again. A store that copies byte by byte (FTP) can show a partially committed
  file.
- *Listings that show what was just written.* Every store that is worth naming does by now.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any
from urllib.parse import unquote_to_bytes
from uuid import uuid4

from headrace.enumerator.errors import UsageError

TABLES = {"_delta_log": "Delta Lake", "_spark_metadata": "a streaming query's own file sink"}
"""Whose readers go by what they name in this folder."""
_LOCAL = ("file:", "local:")
_WITH_BUCKETS = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"))
"""Stores that need no folders, and in which making one makes its bucket (its container) if there is none."""
_WITH_HOSTS = frozenset(("ftp", "sftp", "ssh", "smb", "hdfs", "webhdfs", "webdav", "http", "https"))
"""Whose addresses name a machine, where those of other stores have a bucket, a container with an account, or a folder."""
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}
_PORTS = {"ftp": ":21", "sftp": ":22", "ssh": ":22", "smb": ":445", "hdfs": ":8020", "http": ":80", "https": ":443"}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # RFC 3986
_NO_LIBRARY = "Unable to load lib"
"""Of libhdfs or libjvm, in Arrow's client of HDFS."""
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")


class Store(ABC):
    """One folder and what is in it. Not thread-safe. Raises OSError for what the filesystem refuses."""

    @abstractmethod
    def make_folder(self, name: str) -> None:
        """Make it and those above it, unless they are there."""

    @abstractmethod
    def check_exclusive(self, folder: str) -> None:
        """Raise UsageError naming the store when two drivers could both create the same name in this folder."""

    @abstractmethod
    def create(self, name: str, data: bytes, scratch: str) -> None:
        """A new whole, durable file. Raises FileExistsError when there is one. `scratch`: a name to write it under first."""

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """A new file to write."""

    @abstractmethod
    def finish(self, name: str, file: IO[bytes]) -> int:
        """Close it, durably. Its size in bytes."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A whole file. Raises FileNotFoundError."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """In bytes; None when there is no such file."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """What is in a folder, without the folder's name; nothing if there is no such folder."""

    @abstractmethod
    def files(self) -> list[str]:
        """Every file in the folder and in those below it, sorted; nothing if there is no such folder."""

    @abstractmethod
    def open_to_read(self, name: str) -> IO[bytes]:
        """A file from its start. Raises FileNotFoundError."""

    @abstractmethod
    def modified_s(self, name: str) -> float:
        """When a file, or a folder of the operating system, was written to last: epoch seconds of the store's own clock."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Durably; takes the place of what has the new name. Raises FileNotFoundError when nothing has the old name."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def remove_folder(self, name: str) -> None:
        """Remove a folder, if it is there and empty."""


class LocalStore(Store):
    """A folder of the operating system. Durable means fsync, of the file and of the folders it is in, where these can be."""

    def __init__(self, root: str) -> None:
        self._root = root

    def make_folder(self, name: str) -> None:
        os.makedirs(self._path(name), exist_ok=True)
        self._sync(name)
        _sync_folder(os.path.dirname(self._root))

    def check_exclusive(self, folder: str) -> None:
        source, target = (self._path(f"{folder}/.{uuid4().hex}.probe") for _ in range(2))
        try:
            with open(source, "xb"):
                os.link(source, target)
        except OSError as error:
            message = f"{self._root}: its filesystem has no hard links ({error}), so two drivers of a job cannot be kept apart"
            raise UsageError(message) from error
        finally:
            for path in (source, target):
                with suppress(FileNotFoundError):
                    os.unlink(path)

    def create(self, name: str, data: bytes, scratch: str) -> None:
        """Written under another name and linked: there is never half a file, and never two winners."""
        source = self._path(scratch)
        try:
            with _named(source), open(source, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(source, self._path(name))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(source)
        self._sync(os.path.dirname(name))

    def open(self, name: str) -> IO[bytes]:
        return open(self._path(name), "xb")

    def finish(self, name: str, file: IO[bytes]) -> int:
        size = file.tell()
        with _named(self._path(name)):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        self._sync(os.path.dirname(name))
        return size

    def read(self, name: str) -> bytes:
        with open(self._path(name), "rb") as file:
            return file.read()

    def size(self, name: str) -> int | None:
        try:
            return os.stat(self._path(name)).st_size
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._path(folder))
        except FileNotFoundError:
            return []

    def files(self) -> list[str]:
        found = ((os.path.relpath(folder, self._root), names) for folder, _, names in os.walk(self._root))
        return sorted(os.path.normpath(os.path.join(folder, name)) for folder, names in found for name in names)

    def open_to_read(self, name: str) -> IO[bytes]:
        return open(self._path(name), "rb")

    def modified_s(self, name: str) -> float:
        return os.stat(self._path(name)).st_mtime

    def rename(self, old: str, new: str) -> None:
        os.rename(self._path(old), self._path(new))
        _sync_folder(os.path.dirname(self._path(new)))

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def remove_folder(self, name: str) -> None:
        with suppress(OSError):
            os.rmdir(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _sync(self, folder: str) -> None:
        """The folder and those above it: a file's name is durable when the folders' names are."""
        while folder:
            _sync_folder(self._path(folder))
            folder = os.path.dirname(folder)
        _sync_folder(self._root)


class FsspecStore(Store):
    """A folder of an fsspec filesystem, which is as durable and as atomic as that one is."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        """Does no I/O, unless the filesystem does. Raises as `fsspec_of`."""
        self._filesystem, root = fsspec_of(url, options)
        self._root = root.rstrip("/")
        self._url = url

    def make_folder(self, name: str) -> None:
        """Make it, where the store has folders at all. Raises UsageError where the URL's bucket is not there."""
        if _WITH_BUCKETS.isdisjoint(self._url.partition("://")[0].split("::")):
            self._filesystem.makedirs(self._path(name), exist_ok=True)
            return
        bucket = self._root.partition("/")[0]
        try:
            self._filesystem.info(bucket)
        except FileNotFoundError as error:
            raise UsageError(f"{self._url}: there is no bucket {bucket!r}: create it, or correct the URL") from error
        except PermissionError:
            pass  # who may write to it need not be allowed to look at it

    def check_exclusive(self, folder: str) -> None:
        name = f"{folder}/.{uuid4().hex}.probe"
        try:
            self.create(name, b"1", "")
            self.create(name, b"2", "")
        except FileExistsError:
            return
        except (TypeError, ValueError, NotImplementedError) as error:
            raise UsageError(self._not_exclusive(f"cannot create a file only if there is none: {error!r}")) from error
        finally:
            with suppress(NotImplementedError):  # of a store that takes no files either
                self.remove(name)
        raise UsageError(self._not_exclusive("created a file that was there"))

    def create(self, name: str, data: bytes, scratch: str) -> None:
        self._filesystem.pipe_file(self._path(name), data, mode="create")

    def open(self, name: str) -> IO[bytes]:
        """A new file to write; most stores show it when it is closed."""
        file: IO[bytes] = self._filesystem.open(self._path(name), "wb")
        return file

    def finish(self, name: str, file: IO[bytes]) -> int:
        size = file.tell()
        file.close()
        return size

    def read(self, name: str) -> bytes:
        data: bytes = self._filesystem.cat_file(self._path(name))
        return data

    def size(self, name: str) -> int | None:
        self._filesystem.invalidate_cache()
        try:
            return int(self._filesystem.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """What is in a folder now, and not when it was last listed. Not what represents the folder itself, as in `files`."""
        self._filesystem.invalidate_cache()
        itself = self._path(folder).rstrip("/")
        try:
            found = [str(path).rstrip("/") for path in self._filesystem.ls(itself, detail=False)]
        except FileNotFoundError:
            return []
        return [path.rsplit("/", 1)[-1] for path in found if path != itself]

    def files(self) -> list[str]:
        """Every object whose name starts with the folder's, as of now.

        Not those that stand for a folder: Hadoop's S3A, and consoles, make an empty object whose name ends with a slash.
        """
        self._filesystem.invalidate_cache()
        found = [str(path) for path in self._filesystem.find(self._root)]
        return sorted(path.removeprefix(f"{self._root}/") for path in found if not path.endswith("/"))

    def open_to_read(self, name: str) -> IO[bytes]:
        file: IO[bytes] = self._filesystem.open(self._path(name), "rb")
        return file

    def modified_s(self, name: str) -> float:
        return float(self._filesystem.modified(self._path(name)).timestamp())

    def rename(self, old: str, new: str) -> None:
        if self.size(old) is None:
            raise FileNotFoundError(f"{self._url}: no file {old}")
        self._filesystem.mv(self._path(old), self._path(new))

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        with suppress(OSError):
            self._filesystem.rmdir(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _not_exclusive(self, why: str) -> str:
        kind = type(self._filesystem).__name__
        return f"{self._url}: its filesystem ({kind}) {why}, so two drivers of a job cannot be kept apart"


def fsspec_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """The filesystem of fsspec for a URL, and the path in it. Does no I/O, unless the filesystem does.

    Raises UsageError for one that cannot be used here, and what a filesystem raises that connects when it is made.
    """
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(f"{url}: this needs fsspec: pip install 'headrace[files]'") from error
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **options)
    except (ValueError, ImportError, TypeError) as error:
        raise UsageError(f"{url}: {error}") from error
    except OSError as error:
        if not str(error).startswith(_NO_LIBRARY):
            raise
        raise UsageError(
            f"{url}: Python reaches HDFS by Hadoop's libhdfs, which needs a JVM. This machine lacks one of them: "
            f"{str(error).splitlines()[0]}. Set JAVA_HOME, HADOOP_HOME and CLASSPATH (`hadoop classpath --glob`), for the "
            "driver and for all executors"
        ) from error
    return filesystem, str(root)


def normal_path(path: str) -> str:
    """The folder as every process will understand it: an absolute local path, or a URL. Raises UsageError for anything else."""
    if not path:
        raise UsageError("the path of a folder is needed, and this one is empty")
    for scheme in _LOCAL:
        if path.startswith(scheme):
            local = path.removeprefix(scheme)
            local = local.removeprefix("//") if local.startswith("//") else local
            if not local.startswith("/"):
                raise UsageError(f"{path}: write file:///folder: a host's name, or a relative path, is not possible here")
            return os.path.abspath(local)
    if is_local(path):
        return os.path.abspath(path)
    _check_url(path)
    if any(letter in path for letter in "*?["):
        raise UsageError(f"{shown_address(path)}: fsspec takes '*', '?' and '[' for patterns")
    return path.rstrip("/")


def given_path(path: str) -> str:
    """The same of a path that a program gives, in whose `file:` URL a space may be `%20`. Hadoop's paths are not quoted."""
    return normal_path(os.fsdecode(unquote_to_bytes(os.fsencode(path))) if path.startswith("file:") else path)


def as_given(path: str) -> str:
    """A path of Hadoop for `given_path`."""
    return path.replace("%", "%25") if path.startswith("file:") else path


def open_store(path: str, options: Mapping[str, Any]) -> Store:
    """The store of a path that `normal_path` has given."""
    return LocalStore(path) if is_local(path) else FsspecStore(path, options)


def is_local(path: str) -> bool:
    """Whether a path that `normal_path` has given, or one without `file:`, is the operating system's: it has no scheme.

    A colon behind the first slash is part of a name.
    """
    return _SCHEME.match(path) is None


def check_no_password(address: str) -> None:
    """Raise UsageError for a store's address that has one."""
    scheme, _, rest = address.partition(":")
    if _PASSWORD.search(rest):
        raise UsageError(f"{scheme}://...: a password in an address is printed with it: give it among the storage options")


def is_one_store(path: str, other: str) -> bool:
    """Whether two paths that `normal_path` has given may be in one store: of one scheme, and of no two hosts or accounts."""
    (scheme, host, _), (other_scheme, other_host, _) = map(_parts, (path, other))
    return scheme == other_scheme and (host == other_host or not host or not other_host)


def is_within(path: str, folder: str) -> bool:
    """Whether a path is the folder, or in it, where both are in one store."""
    inner, outer = (_parts(each)[2].rstrip("/") for each in (path, folder))
    return f"{inner}/".startswith(f"{outer}/")


def _parts(path: str) -> tuple[str, str, str]:
    """The scheme, the host or the account, and the path there, a bucket or a container among it. Each may be empty."""
    scheme, has_scheme, rest = path.partition("://")
    if not has_scheme or is_local(path):
        return "", "", path
    named, _, within = rest.partition("/")
    container, has_account, host = named.rpartition("@")
    if scheme in _WITH_HOSTS:
        return scheme, host.removesuffix(_PORTS.get(scheme, ":")), f"/{within}"
    scheme = _ALIASES.get(scheme, scheme)
    return (scheme, host, f"{container}/{within}") if has_account else (scheme, "", rest)


def shown_address(path: str) -> str:
    """An address for messages: behind a `?` there may be a token, as in signed URLs."""
    address, has_query, _ = path.partition("?")
    return f"{address}?..." if has_query and not is_local(path) else path


def _has_empty_name(address: str) -> bool:
    """Directly behind a bucket. Elsewhere two slashes are one, or start an absolute path (XRootD)."""
    scheme, _, rest = address.partition("://")
    return scheme in _WITH_BUCKETS and rest.partition("/")[2].startswith("/")


def _check_url(path: str) -> None:
    """Hadoop takes `scheme:/folder`, fsspec takes it for a local name, and a scheme of one letter for a drive of Windows."""
    scheme, rest = path.split(":", 1)
    check_no_password(path)
    if len(scheme) == 1 or not rest.startswith("//"):
        raise UsageError(
            f"{shown_address(path)}: this names no filesystem. Write an address of fsspec, like s3://bucket/folder; for a "
            "folder that is mounted its local path, like /dbfs/folder; for a local folder with a colon in its name ./a:b"
        )
    if any(map(_has_empty_name, path.rstrip("/").split("::"))):
        raise UsageError(
            f"{shown_address(path)}: between the two slashes behind the bucket there is an empty name, which fsspec leaves "
            "out where it lists this place: write one slash, or rename what is there"
        )


_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""What is answered where a folder cannot be fsynced: EINVAL by CIFS, and by the kernel for a filesystem without this operation;
the others by filesystems in user space. Nothing has failed then: how durable names are is up to that filesystem, as for any
other program. EIO, ENOSPC and the like are failures."""


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _named(path):
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Errors of an open file have no name: a disk is full, and which is not known."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise
