"""Which place a user's `checkpoints` names: a folder of this machine, or a store that fsspec reaches.

Of a run with checkpoints in a store some things are this machine's all the same: the lock that keeps a second run of this
machine out, what `headrace top` shows, and a request to rescale. They are in a folder of the user's among the temporary ones.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from headrace.enumerator.errors import UsageError
from headrace.runners.local.storage.files import RunFiles, UnusableError
from headrace.runners.local.storage.folder import FolderFiles, local_folder

_GONE_WITH_THE_PROCESS = "memory:"

_FOR_GOOD = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
)
"""What another try does not fix; a full disk and an input that fails may be fixed while the run tries on.

Others ask otherwise: a table's commit is tried for two minutes, in which no full disk gets space and no folder comes
(`metadata_folder.is_lasting`); of a store, which has no such numbers, only what it does not support is known (`object_log`);
a sink of files only names the path of two of these (`_folder_at`).
"""


def whole_name(checkpoints: str) -> str:
    """The same place, also for a process that has changed its working folder, as a user's file may. Raises UsageError."""
    return checkpoints if _is_url(checkpoints) else str(local_folder(checkpoints))


def run_files(checkpoints: str) -> RunFiles:
    """The run's files there, as of now. Asks a store. Raises UsageError for no such place, RetriableError without answer."""
    if not _is_url(checkpoints):
        return FolderFiles(local_folder(checkpoints))
    # A start with checkpoints in a folder need not wait for these to be loaded.
    from headrace.connectors.files.store import open_store
    from headrace.runners.local.storage.object_log import ObjectLog

    location = _normal(checkpoints)
    return ObjectLog(location, open_store(location, {}))


def machine_folder(checkpoints: str) -> Path:
    """What is this machine's; the checkpoints' own folder, where they are in one. Does no I/O. Raises UsageError."""
    if not _is_url(checkpoints):
        return local_folder(checkpoints)
    return _users_folder() / hashlib.sha256(_normal(checkpoints).encode()).hexdigest()[:32]


def make_machine_folder(checkpoints: str) -> Path:
    """Make it. Raises UsageError where another process's folder has the name."""
    folder = machine_folder(checkpoints)
    if _is_url(checkpoints):
        _make_private(_users_folder())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def usable(place: str) -> Iterator[None]:
    """Raises UnusableError, naming the place, where the body's OSError is one that stays: rights, a file for a folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FOR_GOOD:
            raise
        raise UnusableError(f"{place} cannot be used: {error}") from error


def _is_url(checkpoints: str) -> bool:
    if not isinstance(checkpoints, str) or not checkpoints:  # what a caller gives has no type yet
        raise UsageError(f"checkpoints must be a folder's path, a file: URL, or a URL that fsspec knows, not {checkpoints!r}")
    return "://" in checkpoints and not checkpoints.startswith("file:")


def _normal(checkpoints: str) -> str:
    from headrace.connectors.files.store import normal_path

    try:
        password = urlsplit(checkpoints).password
    except ValueError as error:
        raise UsageError(f"the checkpoints' URL is none: {error}") from error
    if password is not None:
        raise UsageError("the URL of the checkpoints has a password, which would be shown: fsspec's own configuration takes it")
    if checkpoints.startswith(_GONE_WITH_THE_PROCESS):
        raise UsageError(f"checkpoints must outlive the process, and {checkpoints!r} does not")
    return normal_path(checkpoints)


def _users_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}"


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{folder} is not a folder of this user's alone; remove it, or set TMPDIR to another folder")
