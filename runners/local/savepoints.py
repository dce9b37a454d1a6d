"""Savepoints: the positions of a run, with everything before them committed, as a file that belongs to the user.

    savepoint-<run>-<checkpoint>.json   {"run", "checkpoint_id", "source": "<what CheckpointSerializer writes>"}

It is in an envelope (`headrace.enumerator.envelope`), of version 1.
It holds no transactions, so that any number of workers and any sink can start with it. A run that starts with one has a name of
its own at the sink, and keeps a copy alongside its checkpoints (`savepoint.json`): so a restart is distinguished from another
beginning.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.envelope import Envelope, stored_number, stored_text
from headrace.enumerator.errors import RetriableError, StateError, UsageError
from headrace.enumerator.split import SplitT
from headrace.runners.local.checkpoints import RUN_CHECKPOINT, SAVEPOINT, CheckpointStore, RunCheckpoint, newest_body
from headrace.runners.local.storage.files import RunFiles
from headrace.runners.local.storage.folder import local_folder, write_whole
from headrace.runners.local.storage.places import usable

log = logging.getLogger(__name__)

_ENVELOPE = Envelope("headrace-savepoint", "savepoint")


@dataclass(frozen=True, slots=True)
class Savepoint:
    """`run`: the name, at its sink, of the run that it is of. `source`: the positions, as CheckpointSerializer writes them."""

    run: str
    checkpoint_id: int
    source: str

    @property
    def name(self) -> str:
        return f"savepoint-{self.run}-{self.checkpoint_id:012d}.json"

    def serialize(self) -> bytes:
        return _ENVELOPE.seal({"run": self.run, "checkpoint_id": self.checkpoint_id, "source": self.source})

    @classmethod
    def deserialize(cls, data: bytes, where: str) -> Savepoint:
        """What `serialize` wrote. Raises StateError, naming `where`, for anything else."""
        body = _ENVELOPE.open(data, where)
        with _ENVELOPE.reading(where):
            return cls(stored_text(body["run"]), stored_number(body["checkpoint_id"]), stored_text(body["source"]))

    def write(self, folder: Path) -> Path:
        """Into this folder, made if need be, durably, in place of one of the same name. Returns the file. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name
        write_whole(path, self.serialize())
        return path

    def positions(self, serializer: CheckpointSerializer[SplitT]) -> Checkpoint[SplitT]:
        """For a source of the same kind. Raises StateError for another, or a newer version of it."""
        return serializer.deserialize(self.source, f"savepoint {self.name}")


def make_savepoint_folder(folder: Path) -> None:
    """Make it, unless it is there, and write to it. Raises UsageError where that is not possible, OSError for what may pass."""
    with usable(f"the folder for savepoints {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()


def take_savepoint(files: RunFiles, target: Path) -> Path:
    """Write the run's newest checkpoint whose transactions are committed into the folder `target`; returns the file.

    The run may be running: then it is at most an interval old. Raises StateError for files without a good checkpoint,
    RetriableError while the newest one is still being committed, and OSError for what the filesystem refuses.
    """
    body, where = newest_body(files)
    with RUN_CHECKPOINT.reading(where):
        found, is_completed = Savepoint(body["run"], body["checkpoint_id"], body["source"]), body["completed"] is True
    if not is_completed:
        raise RetriableError(
            f"{files.location}: checkpoint {found.checkpoint_id} is not committed yet. That is for the run to do; for one "
            f"that has died: headrace savepoint {files.location} {target} --pipeline job.py:pipeline"
        )
    return found.write(target)


def fetch_savepoint(location: str | Path) -> Savepoint:
    """A path, or a URI that Arrow knows (file:, s3:, hdfs:, gs:): engines' drivers may be on other machines.

    Raises UsageError for a file that is not there or may not be read, and, naming the command that makes one, for checkpoints
    of a run; StateError for what is not a savepoint or damaged, and OSError for what may pass.
    """
    place = shown(str(location))
    with usable(f"the savepoint {place}"):
        try:
            return Savepoint.deserialize(_read(str(location)), place)
        except FileNotFoundError as error:
            raise UsageError(f"{place}: there is no such savepoint") from error
        except IsADirectoryError as error:
            raise UsageError(f"{place} is a folder; name the savepoint's file in it. {_MAKE_ONE}") from error
        except StateError as error:
            if RUN_CHECKPOINT.name in str(error):
                raise StateError(f"{error}. {_MAKE_ONE}") from error
            raise


def shown(location: str) -> str:
    """For messages: without who logs in and the parameters, among which secrets may be."""
    scheme, is_uri, rest = location.partition("://")
    if not is_uri:
        return location
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


_MAKE_ONE = (
    "Checkpoints of a run may list transactions that are not committed yet: headrace savepoint CHECKPOINTS TARGET makes a "
    "savepoint of a run that was stopped, and with --pipeline it first finishes what a run that has died orphaned"
)


def _read(location: str) -> bytes:
    if "://" not in location or location.startswith("file:"):
        return local_folder(location).read_bytes()
    from pyarrow import fs

    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except ValueError as error:  # as Arrow's own are
        why = str(error).replace(location, shown(location))
        raise UsageError(f"{shown(location)}: no savepoint can be read from there: {why}") from error
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def given_savepoint(path: Path | None, files: RunFiles) -> Savepoint | None:
    """The savepoint that a run is to start with. None if none was given, or if its file is gone and `files` have a copy of it.

    Raises UsageError for a file that is not there, and StateError as `fetch_savepoint`.
    """
    if path is None:
        return None
    if not os.path.exists(path) and SAVEPOINT in files.names():  # unlike Path's, false of a folder that may not be searched
        log.warning("%s is not there: the run continues from what it has, and started with its copy of a savepoint", path)
        return None
    return fetch_savepoint(path)


def begin_with(
    given: Savepoint | None,
    store: CheckpointStore[SplitT, Any],
    serializer: CheckpointSerializer[SplitT],
    start_at: Callable[[Checkpoint[SplitT]], Checkpoint[SplitT]],
) -> None:
    """Make the savepoint the first checkpoint of a folder that has none; one that has started with it continues from its own.

    `given`: what `given_savepoint` gave. The folder keeps a copy. So if a coordinator dies before the first checkpoint,
    the next one starts there too, and not where the source does. `start_at`: from positions of a savepoint to those at which
    this run starts (`resumed`).
    Raises UsageError for a folder that has started otherwise, StateError for a savepoint of another source, and what `start_at`
    raises.
    """
    with usable(store.location):
        has_copy = SAVEPOINT in store.files.names()
    if given is None and (store.last_id or not has_copy):
        return
    with usable(store.location):
        copy = Savepoint.deserialize(store.files.read(SAVEPOINT), store.files.where(SAVEPOINT)) if has_copy else None
    savepoint = given or copy
    assert savepoint is not None
    positions = replace(savepoint.positions(serializer), checkpoint_id=1)
    if copy is not None:
        if savepoint != copy:
            raise UsageError(
                f"{store.location}: this run started with another savepoint; give one that starts over another folder"
            )
    elif store.last_id:
        raise UsageError(
            f"{store.location}: there are checkpoints already; a run that starts with a savepoint needs a new folder"
        )
    else:
        with usable(store.location):
            store.files.write(SAVEPOINT, savepoint.serialize())
    if not store.last_id:
        store.write(RunCheckpoint(start_at(positions), (), completed=True))
