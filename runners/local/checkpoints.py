"""A run's checkpoints: positions and handles together, each file whole, durable and checked by a checksum.

    savepoint.json                   the savepoint that the run started with, if any (`headrace.runners.local.savepoints`)
    run.json                         the run's name at the sink, the workers whose transactions may still be open, and whether
                                     it has stored a checkpoint
    checkpoint-000000000007.json     {"run", "checkpoint_id", "completed", "epochs", "replaced": [<epoch>, ...],
                                      "outputs": {<name>: [before, last]}, "handle_version", "handles": [[number, ...]],
                                      "source": "<what CheckpointSerializer writes>"}

Each is in an envelope (`headrace.enumerator.envelope`), of version 1. `outputs` is empty for a run with one sink.
A checkpoint is written again under its name when its transactions are committed (`completed`, without handles), or copied.
Where the files are, and what keeps a second coordinator out, is `headrace.runners.local.storage`.
"""

from __future__ import annotations

import logging
import math
import os
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

from headrace.connectors.base.jobs import run_name
from headrace.connectors.base.outputs import DEFAULT_OUTPUT, OutputHandleSerializer
from headrace.connectors.base.sink import HandleSerializer, HandleT
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.envelope import Envelope, readable_version, stored_number, stored_text, stored_truth
from headrace.enumerator.errors import HeadraceError, RetriableError, StateError
from headrace.enumerator.split import SplitT
from headrace.runners.local.events import WorkerHandle
from headrace.runners.local.storage.files import NotWrittenError, RunFiles
from headrace.runners.local.storage.lock import FolderLock
from headrace.runners.local.storage.places import make_machine_folder, run_files, usable

log = logging.getLogger(__name__)

RUN_CHECKPOINT = Envelope("headrace-run-checkpoint", "checkpoint of a run")
RUN = Envelope("headrace-run", "state of a run")

_NAME = re.compile(r"checkpoint-(\d{12})\.json")
_RUN = "run.json"
SAVEPOINT = "savepoint.json"
"""The savepoint that the run started with, if it started with one."""


class CheckpointNotStoredError(HeadraceError):
    """A checkpoint could not be written, and no reader will ever find it (a full disk): the previous one is."""


@dataclass(frozen=True, slots=True)
class RunCheckpoint(Generic[SplitT, HandleT]):
    """Positions and committables of one checkpoint.

    `completed`: everything that the checkpoint listed is committed, and `handles` is empty.
    `epoch`: the epoch that is recorded at the sink before anything of the checkpoint is committed. A checkpoint without handles
    keeps the epoch of the last one that had some; 0 if there was none. No other checkpoint has it, in any copy of the folder.
    `epoch_before`: the epoch of the previous checkpoint.
    `by_output`: in a run with several outputs, (`epoch_before`, `epoch`) by output: not every checkpoint is recorded at each.
    `replaced`: epochs under which the checkpoint was recorded first, before aborted rows of it were copied.
    """

    positions: Checkpoint[SplitT]
    handles: tuple[WorkerHandle[HandleT], ...]
    completed: bool
    epoch: int = 0
    epoch_before: int = 0
    by_output: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    replaced: tuple[int, ...] = ()

    def reported(self, output: str) -> tuple[int, int]:
        """The epochs that the output's sink has recorded before this checkpoint, and with it; equal if it has no rows of it."""
        return (self.epoch_before, self.epoch) if output == DEFAULT_OUTPUT else self.by_output.get(output, (0, 0))


@dataclass(frozen=True, slots=True)
class WorkerRegistry:
    """`run`: the job's name at the sink, for good. `next_number`: above that of every worker that was ever started.

    `not_cleaned_up`: numbers whose transactions may be open still. `outputs`: their names, sorted; empty for a run with one
    sink.
    `checkpointed`: a checkpoint was stored, so a folder without one has lost it.
    `cleaned_up_s`: when some of `not_cleaned_up` were cleaned up first, in seconds of this boot's monotonic
    clock. A coordinator to which it means nothing, as on another machine, starts over with them.
    """

    run: str
    next_number: int = 0
    not_cleaned_up: tuple[int, ...] = ()
    outputs: tuple[str, ...] = ()
    checkpointed: bool = False
    cleaned_up_s: Mapping[int, float] = field(default_factory=dict)

    def run_at(self, output: str) -> str:
        """The run's name at the sink of this output. It starts with a letter, so it is not a worker's."""
        return self.run if output == DEFAULT_OUTPUT else f"{self.run}-{output}"

    def job(self, number: int, output: str = DEFAULT_OUTPUT) -> str:
        """The name under which this worker writes, at the sink: no other worker's, in any lifetime of the run."""
        return f"{self.run_at(output)}-{number}"


class RunCheckpointSerializer(Generic[SplitT, HandleT]):
    """A checkpoint of a run as bytes, and back. Used by one thread."""

    def __init__(self, source: CheckpointSerializer[SplitT], handles: HandleSerializer[HandleT]) -> None:
        self._source = source
        self._handles = handles
        self._last: tuple[Checkpoint[SplitT], str] | None = None
        self.outputs = handles.outputs if isinstance(handles, OutputHandleSerializer) else ()

    def serialize(self, run: str, checkpoint: RunCheckpoint[SplitT, HandleT]) -> bytes:
        return RUN_CHECKPOINT.seal(
            {
                "run": run,
                "checkpoint_id": checkpoint.positions.checkpoint_id,
                "completed": checkpoint.completed,
                "epochs": [checkpoint.epoch_before, checkpoint.epoch],
                "replaced": checkpoint.replaced,
                "outputs": {name: checkpoint.reported(name) for name in self.outputs},
                "handle_version": self._handles.version,
                "handles": [[listed.number, self._handles.serialize(listed.handle)] for listed in checkpoint.handles],
                "source": self._positions(checkpoint.positions),
            }
        )

    def _positions(self, positions: Checkpoint[SplitT]) -> str:
        """A checkpoint is written twice, and its positions are nearly all of it."""
        if self._last is None or self._last[0] is not positions:
            self._last = positions, self._source.serialize(positions).decode()
        return self._last[1]

    def deserialize(self, run: str, data: bytes, where: str) -> RunCheckpoint[SplitT, HandleT]:
        """What `serialize` wrote for this run. Raises StateError, naming `where`, otherwise."""
        body = RUN_CHECKPOINT.open(data, where)
        with RUN_CHECKPOINT.reading(where):
            if body["run"] != run:
                raise StateError(f"{where}: this checkpoint is of the run {body['run']!r}, and the folder is of {run!r}")
            reported = {name: _two(epochs) for name, epochs in body["outputs"].items()}
            if tuple(sorted(reported)) != self.outputs:
                raise other_outputs(where, tuple(sorted(reported)), self.outputs)
            handles = self._handles_of(body, where)
            completed = stored_truth(body["completed"])
            if completed and handles:
                raise ValueError(f"completed, with {len(handles)} handles")
            positions = self._source.deserialize(body["source"], where)
            if positions.checkpoint_id != body["checkpoint_id"]:
                raise ValueError(f"positions of checkpoint {positions.checkpoint_id} in checkpoint {body['checkpoint_id']}")
            before, epoch = _two(body["epochs"])
            replaced = tuple(map(stored_number, body["replaced"]))
            return RunCheckpoint(positions, handles, completed, epoch, before, reported, replaced)

    def _handles_of(self, body: Mapping[str, Any], where: str) -> tuple[WorkerHandle[HandleT], ...]:
        version, deserialize = readable_version(body["handle_version"], self._handles.version), self._handles.deserialize
        try:
            return tuple(WorkerHandle(stored_number(number), deserialize(version, value)) for number, value in body["handles"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{where}: its transactions, which are not committed yet, are not those of this kind of sink: start the run "
                "with the sink that it had, or let that commit them by `headrace savepoint ... --pipeline`. If it is the same "
                f"sink, the file is damaged ({type(error).__name__}: {error})"
            ) from error


def newest_body(files: RunFiles) -> tuple[Mapping[str, Any], str]:
    """What the newest checkpoint stores, unchecked, and its name for messages; whether or not a run is running.

    No older one will do, since later rows are committed. Raises StateError where there is none, or where it is damaged,
    RetriableError where a newer one has just taken its place.
    """
    checkpoint_id = max(_ids(files), default=None)
    if checkpoint_id is None:
        raise StateError(f"{files.location}: there is no checkpoint")
    where = files.where(_name(checkpoint_id))
    try:
        return RUN_CHECKPOINT.open(files.read(_name(checkpoint_id)), where), where
    except FileNotFoundError as error:
        raise RetriableError(f"{where} is not there any more") from error


class CheckpointStore(Generic[SplitT, HandleT]):
    """The files, claimed by the one coordinator there is. What changes the worker registry may be called by any thread, the
    rest by one.

    Raises OSError for what the filesystem refuses, UnusableError where that stays, but for what `write` says, and
    FencedError once another run has the files.
    """

    def __init__(
        self,
        checkpoints: str,
        serializer: RunCheckpointSerializer[SplitT, HandleT],
        retained: int,
        owner: str = "",
        after: str | None = None,
    ) -> None:
        """Lock and claim what `RunSettings.checkpoints` names. `retained`: this many newest checkpoints are kept, alongside one
        that is not committed yet. `owner`, `after`: as `RunFiles.claim` has them.

        Raises FencedError where another coordinator has the lock or the claim, StateError for files that cannot be read,
        UnusableError for a folder that cannot be used, and RetriableError for a store that does not answer.
        """
        self._serializer = serializer
        self._retained = retained
        self._registry_lock = threading.Lock()
        self._clock = _clock_of_boot()
        self.files = files = run_files(checkpoints)
        self.location = files.location
        with usable(files.location):
            self._lock = FolderLock(make_machine_folder(checkpoints), files.location)
            try:
                files.claim(owner, after)
                self.registry = self._read_registry()
                self._check_there()
            except BaseException:
                self._lock.close()
                raise

    def close(self) -> None:
        self._lock.close()

    def keep_lock(self) -> None:
        """Raises FencedError where another run has the lock, too. Called by any thread."""
        self._lock.keep()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def last_id(self) -> int:
        """The highest number of a checkpoint that is there, damaged or not; 0 without any."""
        return max(_ids(self.files), default=0)

    @property
    def last_written_s(self) -> float | None:
        """When the newest checkpoint was written or marked as committed, in seconds of the epoch; None without any."""
        return self.files.written_s(_name(self.last_id)) if self.last_id else None

    def size(self, checkpoint_id: int) -> int | None:
        """In bytes; None if it is not there. Called by any thread."""
        return self.files.size(_name(checkpoint_id))

    def latest(self) -> RunCheckpoint[SplitT, HandleT] | None:
        """The last good checkpoint; None where there is none at all. A damaged one is named in a warning.

        Raises StateError where all are damaged.
        """
        damaged: list[StateError] = []
        for checkpoint_id in sorted(_ids(self.files), reverse=True):
            try:
                return self._read(checkpoint_id)
            except StateError as error:
                log.warning("%s; the previous one is looked at", error)
                damaged.append(error)
        if damaged:
            raise StateError(f"{self.location}: no checkpoint is good: {'; '.join(map(str, damaged))}")
        return None

    def before(self, checkpoint: RunCheckpoint[SplitT, HandleT]) -> RunCheckpoint[SplitT, HandleT] | None:
        """The last good one before this, if nothing was committed between them, so that a run can go back to it; else None."""
        for checkpoint_id in sorted(_ids(self.files), reverse=True):
            if checkpoint_id < checkpoint.positions.checkpoint_id:
                with suppress(StateError):
                    found = self._read(checkpoint_id)
                    is_next = found.completed and found.epoch == checkpoint.epoch_before and not checkpoint.replaced
                    return found if is_next else None
        return None

    def take_back(self, checkpoint_id: int) -> None:
        """Remove it, durably: nothing of it was committed, and nothing will be. Raises as `keep_lock`."""
        self.keep_lock()
        self.files.remove((_name(checkpoint_id),))

    def _read(self, checkpoint_id: int) -> RunCheckpoint[SplitT, HandleT]:
        name = _name(checkpoint_id)
        with usable(self.location):
            data = self.files.read(name)
        return self._serializer.deserialize(self.registry.run, data, self.files.where(name))

    def write(self, checkpoint: RunCheckpoint[SplitT, HandleT]) -> None:
        """Make it durable, in place of one of the same number, then remove what is not retained.

        One that is not completed may have to be rolled back, so it takes no other's place yet.
        Raises CheckpointNotStoredError if it is certain not to be there; after any other error it may be. First as `keep_lock`.
        From the first one on `run.json` states that there is one: written after it, as who dies in between has lost nothing.
        Also where another process has removed it: without it no later start takes the checkpoints.
        """
        self.keep_lock()
        try:
            self.files.write(
                _name(checkpoint.positions.checkpoint_id), self._serializer.serialize(self.registry.run, checkpoint)
            )
        except NotWrittenError as error:
            raise CheckpointNotStoredError(error.strerror) from error
        with self._registry_lock:
            is_removed = self.registry.checkpointed and _RUN not in self.files.names()
            if is_removed:
                log.warning("%s was removed while this run is running, and is recreated", self.files.where(_RUN))
            if is_removed or not self.registry.checkpointed:
                self._write_registry(replace(self.registry, checkpointed=True))
        kept = self._retained if checkpoint.completed else self._retained + 1
        doomed = sorted(_ids(self.files), reverse=True)[kept:]
        if doomed and not checkpoint.completed:
            # Damaged files count, and must not push out the one that the run goes back to.
            needed = self.before(checkpoint)
            doomed = [older for older in doomed if needed is None or older != needed.positions.checkpoint_id]
        for older in doomed:
            self.files.discard(_name(older))

    def remove(self) -> None:
        """Everything of the run: it is over, and what it has written is committed. Raises as `keep_lock`."""
        with self._registry_lock:  # first: the next coordinator may find none, if this one dies before all are gone
            self._write_registry(replace(self.registry, checkpointed=False))
        self.files.remove([*map(_name, _ids(self.files)), SAVEPOINT, _RUN])  # in this order: no other run starts with it

    # --- the worker registry ------------------------------------------------------------------------------------------

    def add_worker(self, number: int) -> None:
        """This number is taken, durably, before it writes anything."""
        with self._registry_lock:
            self._write_registry(
                replace(self.registry, next_number=number + 1, not_cleaned_up=(*self.registry.not_cleaned_up, number))
            )

    def note_cleaned_up(self, numbers: Iterable[int], at_s: float) -> None:
        """They were cleaned up first at `at_s`, by `time.monotonic`: durably, so that no lifetime starts over with them."""
        with self._registry_lock:
            self._write_registry(
                replace(self.registry, cleaned_up_s={**self.registry.cleaned_up_s, **dict.fromkeys(numbers, at_s)})
            )

    def remove_workers(self, numbers: Iterable[int]) -> None:
        """Nothing of these numbers is open any more, and they are dead."""
        gone = set(numbers)
        with self._registry_lock:
            not_cleaned_up = tuple(n for n in self.registry.not_cleaned_up if n not in gone)
            cleaned_up_s = {n: at_s for n, at_s in self.registry.cleaned_up_s.items() if n not in gone}
            self._write_registry(replace(self.registry, not_cleaned_up=not_cleaned_up, cleaned_up_s=cleaned_up_s))

    def _check_there(self) -> None:
        """Raises StateError where a checkpoint was stored and none is there, which is not to be taken for a run that starts."""
        if self.registry.checkpointed and not _ids(self.files):
            raise StateError(
                f"{self.location}: the checkpoints of this run, {self.registry.run}, are gone, and {_RUN} is there: to start "
                "again would write all of it again. Put them back; if they are lost, start in a new folder, with a savepoint "
                "if any"
            )

    def _read_registry(self) -> WorkerRegistry:
        where = self.files.where(_RUN)
        try:
            data = self.files.read(_RUN)
        except FileNotFoundError as error:
            if _ids(self.files):
                missing = f"{where} is missing, and there are checkpoints: which run they are of is not known"
                raise StateError(missing) from error
            registry = WorkerRegistry(run_name(), outputs=self._serializer.outputs)
            self._write_registry(registry)
            return registry
        body = RUN.open(data, where)
        with RUN.reading(where):
            outputs = tuple(map(stored_text, body["outputs"]))
            not_cleaned_up, checkpointed = tuple(map(stored_number, body["not_cleaned_up"])), stored_truth(body["checkpointed"])
            same_clock = self._clock is not None and body["clock"] == self._clock
            cleaned_up_s = dict(map(_cleaned_up, body["cleaned_up"])) if same_clock else {}
            next_number = stored_number(body["next_number"])
            registry = WorkerRegistry(
                stored_text(body["run"]), next_number, not_cleaned_up, outputs, checkpointed, cleaned_up_s
            )
        if outputs != self._serializer.outputs:
            raise other_outputs(self.location, outputs, self._serializer.outputs)
        return registry

    def _write_registry(self, registry: WorkerRegistry) -> None:
        self.keep_lock()
        body = {
            "run": registry.run,
            "next_number": registry.next_number,
            "not_cleaned_up": list(registry.not_cleaned_up),
            "outputs": list(registry.outputs),
            "checkpointed": registry.checkpointed,
            "clock": self._clock,
            "cleaned_up": [[number, at_s] for number, at_s in sorted(registry.cleaned_up_s.items())],
        }
        with usable(self.location):
            self.files.write(_RUN, RUN.seal(body))
        self.registry = registry


def other_outputs(where: str, found: tuple[str, ...], wanted: tuple[str, ...]) -> StateError:
    """The error for a pipeline of other outputs: nothing would end what the run has prepared for those that are gone."""
    kinds = ["one sink" if not names else f"the outputs {', '.join(map(repr, names))}" for names in (found, wanted)]
    return StateError(
        f"{where}: this run has {kinds[0]}, and the pipeline has {kinds[1]}. Stop the run as it was with a savepoint (or make "
        "one: headrace savepoint CHECKPOINTS TARGET), and start with it in a new folder: --from-savepoint"
    )


def has_run(files: RunFiles) -> bool:
    """Whether a run has worked with these files, or has left checkpoints among them."""
    return _RUN in files.names() or bool(_ids(files))


def _ids(files: RunFiles) -> list[int]:
    with usable(files.location):
        found = map(_NAME.fullmatch, files.names())
    return [int(match[1]) for match in found if match is not None]


def _name(checkpoint_id: int) -> str:
    return f"checkpoint-{checkpoint_id:012d}.json"


def _two(value: Any) -> tuple[int, int]:  # noqa: ANN401 - any JSON value
    first, second = map(stored_number, value)
    return first, second


def _cleaned_up(entry: object) -> tuple[int, float]:
    match entry:
        case [number, int() | float() as at_s] if math.isfinite(at_s):
            return stored_number(number), float(at_s)
    raise ValueError(f"{entry!r} is not a number and when it was cleaned up")


def _clock_of_boot() -> str | None:
    """The name of the monotonic clock that all processes of this boot read alike; None where that is not known (macOS)."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"  # a namespace of time has its own offset
    return None
