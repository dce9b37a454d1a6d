"""A run instructed to use another number of workers while it is running: a file in its folder says how many.

The coordinator looks for it every second, takes a last checkpoint and ends; the supervisor starts one with this many workers.
That one continues from the checkpoint, deals the splits out again, and removes the file. Where one dies on the way the next
finds the file again. A file that was there before the run was started, whose start says again how many workers there are, is
removed.
Only who has the folder's lock removes what it has not written: a second start of the command by mistake changes nothing.

    rescale.json              a request; who has made it may withdraw it
    rescale-taken-up.json     the same, renamed by the coordinator that ends for it: it will be carried out

A request may be withdrawn during the last checkpoint. The rename decides: what was withdrawn before it is not carried out, and
a withdrawal after it gets the answer that it is too late.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.enumerator.errors import StateError, UsageError
from headrace.runners.local.storage.folder import write_whole

log = logging.getLogger(__name__)

_REQUEST = "rescale.json"
_TAKEN_UP = "rescale-taken-up.json"


@dataclass(frozen=True, slots=True)
class RescaleRequest:
    """How many workers a run is to have. `name`: no other request's."""

    workers: int
    name: str


# --- called by who asks -------------------------------------------------------------------------------------------------


def request_rescale(folder: Path, workers: int) -> None:
    """Tell the run of this folder. Raises UsageError for no worker, StateError where no run has worked, and OSError."""
    if workers < 1:
        raise UsageError(f"a run needs at least 1 worker, not {workers}")
    if not folder.is_dir():
        raise StateError(f"{folder}: no run of this machine works there")
    write_whole(folder / _REQUEST, json.dumps({"workers": workers, "name": uuid.uuid4().hex}).encode())


def is_requested(folder: Path) -> bool:
    """Whether there is a request that no run has carried out yet."""
    return (folder / _REQUEST).exists() or (folder / _TAKEN_UP).exists()


def withdraw_request(folder: Path) -> bool:
    """Whether it is withdrawn, and no run will carry it out: else one has, or has taken it up."""
    try:
        (folder / _REQUEST).unlink()
    except FileNotFoundError:
        return False
    return True


# --- called by the run --------------------------------------------------------------------------------------------------


def read_requests(folder: Path) -> tuple[RescaleRequest, ...]:
    """What is to be carried out, in this order: what was taken up, and a request. Raises StateError for a file that is none."""
    found = (_read(folder / name) for name in (_TAKEN_UP, _REQUEST))
    return tuple(request for request in found if request is not None)


def take_up_request(folder: Path) -> RescaleRequest | None:
    """From here on it cannot be withdrawn; None where it was. Called by the run's coordinator. Raises as `read_requests`."""
    if not (folder / _TAKEN_UP).exists():
        try:
            (folder / _REQUEST).rename(folder / _TAKEN_UP)
        except FileNotFoundError:
            return None
    return _read(folder / _TAKEN_UP)


def finish_request(folder: Path, request: RescaleRequest) -> None:
    """It is carried out, or of an earlier lifetime of the run. Another one in its place is kept. As `take_up_request`."""
    if take_up_request(folder) == request:
        (folder / _TAKEN_UP).unlink()


def drop_requests(folder: Path) -> None:
    """Whatever is there: it cannot be read. Called by the run's coordinator."""
    for name in (_TAKEN_UP, _REQUEST):
        (folder / name).unlink(missing_ok=True)


class Rescaling:
    """What a coordinator does about requests. Called by its main thread.

    Another number of workers is a stop with a last checkpoint, and a start from it, as every restart is.
    """

    def __init__(self, folder: Path, workers: int, passed_over: Collection[RescaleRequest]) -> None:
        """`workers`: how many there are. `passed_over`: requests from before the run was started."""
        self.is_under_way = False
        self._folder, self._workers, self._passed_over = folder, workers, passed_over

    def is_to_stop(self) -> bool:
        """Whether there is a request for which the run is to stop now. True at most once."""
        try:
            request = next(iter(read_requests(self._folder)), None)
            if request is not None and (request.workers == self._workers or request in self._passed_over):
                finish_request(self._folder, request)
                return False
        except (StateError, OSError) as error:
            self._skip(error)
            return False
        if request is None or self.is_under_way:
            return False
        log.warning("rescaling from %d to %d workers, after a checkpoint", self._workers, request.workers)
        self.is_under_way = True
        return True

    def next_workers(self) -> int:
        """After the last checkpoint: what the request says now. One that was withdrawn meanwhile changes nothing."""
        try:
            request = take_up_request(self._folder)
        except (StateError, OSError) as error:
            self._skip(error)
            return self._workers
        if request is None:
            log.warning("the request to rescale was withdrawn meanwhile: the run continues with %d workers", self._workers)
            return self._workers
        return request.workers

    def _skip(self, error: Exception) -> None:
        log.warning("a request to rescale is skipped: %s", error)
        with suppress(OSError):
            drop_requests(self._folder)


def _read(path: Path) -> RescaleRequest | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
        workers, name = found["workers"], found["name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        workers = name = None
    if type(workers) is not int or workers < 1 or type(name) is not str:
        raise StateError(f"{path} is not a request to rescale")
    return RescaleRequest(workers, name)
