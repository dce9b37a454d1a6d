"""A run's files in a store that fsspec reaches (S3, GCS, Azure), without a lock: a log, in which one run at a time can write.

    log/000000000042    {"lifetime", "at", "kind": "file", "name", "size", "crc32"}, and the file, behind the first line break
    log/000000000043    {"lifetime", "at", "kind": "manifest", "entries": [42], "host", "pid"}

The first line is in an envelope (`headrace.enumerator.envelope`), of version 1.
Each change is a new object with the next number, created only if there is none (a conditional put). Of two who want the same
number one gets it, and the other knows that it is not alone. A *lifetime* is one opening of the log by a coordinator. It reads
everything, and then writes a manifest with the next number: if that is taken, something was written since, and it reads again.
So no other process's entry comes between what a lifetime has read and its manifest; and the previous writer finds the
number taken that it wants next, and ends (FencedError): the run that was started last continues. A coordinator that is started
again is not a new run: it gets the log only if no other command has claimed it since, as the manifest that counts shows.

What counts are the entries that the manifest with the highest number names, and later ones of the same lifetime; of several
with one name the last. Everything else may be deleted, in any order, at any time, by the writer of a later
manifest or entry of that name. A number may be free again then, and a process that was paused for long may get it. So after
each object that it creates a writer looks for higher numbers, and ends or reads again if there are any. What it leaves is in no
manifest if it took a number that was free again, or the next one names it if its maker has found it in the log in time. A
manifest that is left so lies between that of the running lifetime and its last object, and does not count
(`_manifest_that_counts`).

A put whose answer is lost is repeated: a number that is taken then may be by its own entry, which shows by its lifetime and
bytes.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from tenacity import (
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential,
)

from headrace.connectors.files.store import Store
from headrace.enumerator.envelope import Envelope
from headrace.enumerator.errors import (
    AuthenticationError,
    FencedError,
    HeadraceError,
    RetriableError,
    StateError,
    UnclassifiedError,
)
from headrace.runners.local.storage.files import NoPlaceError, RunFiles

log = logging.getLogger(__name__)

ENTRY = Envelope("headrace-run-entry", "entry of a run's log")

_LOG = "log"
_NUMBER = re.compile(r"\d{12}")
_FILE, _MANIFEST = "file", "manifest"
_OF = "."
"""In the name of a lifetime, between the command that it is of and its own."""

TIMEOUT_S = 30.0
"""A store may refuse or be silent for this long before the call fails; the coordinator is then started again."""

_CLAIMS = 50
"""A run running writes some objects a second; each of them makes a claim start again."""


_REFUSED = (401, 403)
_REFUSED_CODES = frozenset(
    (
        "AuthorizationHeaderMalformed",
        "CredentialsNotSupported",
        "InvalidToken",
        "MissingSecurityElement",
        "MissingSecurityHeader",
        "TokenRefreshRequired",
    )
)
"""S3's codes that refuse a login with the status 400: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html."""
_NO_LOGIN = frozenset(("NoCredentialsError", "PartialCredentialsError", "ClientAuthenticationError", "DefaultCredentialsError"))
"""By name, as no store's library need be there: botocore's (twice), Azure's, Google's."""
_UNSUPPORTED = (405, 501)
_UNSUPPORTED_NUMBERS = (errno.ENOSYS, errno.ENOTSUP, errno.EROFS)
"""s3fs makes the first of S3's NotImplemented."""
_NO_PLACE = frozenset(("NotImplementedError", "UnsupportedOperation", "ParamValidationError", "InvalidURL"))
"""By name: fsspec's, for what a filesystem does not have; botocore's, for a bucket's name that cannot be one; aiohttp's."""
_OF_ARGUMENTS = (TypeError, ValueError, AttributeError)
"""As of an option that the library does not know: it may pass, or never."""
_OF_ANSWERS = (json.JSONDecodeError, UnicodeDecodeError, OSError)
"""ValueErrors, too, as of half an answer, or a certificate that has expired."""


class _StoreError(Exception):
    """Whatever the store's own library raises: it may pass, or has happened all the same."""


class _RefusedError(Exception):
    """The store refuses the login, or what it may do, or there is none."""


class _MistakeError(_StoreError):
    """The store's library takes an argument for wrong."""


class _UnfitError(_StoreError):
    """The store does not have what is asked of it, or there can be no such place in it."""


class _ChangedError(Exception):
    """Something was written while the log was read."""


class _TakenError(Exception):
    """Another object has this number."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One object. `name` and `data` of a file; `entries` of a manifest."""

    number: int
    lifetime: str
    at_s: float
    name: str | None
    data: bytes
    entries: frozenset[int]


class ObjectLog(RunFiles):
    """What is read is kept in memory: the files are few and small. Methods may be called by any thread."""

    def __init__(self, location: str, store: Store, clock: Callable[[], float] = time.time) -> None:
        """`store`: the folder that `location` names. Reads it.

        Raises RetriableError, AuthenticationError for a login or rights that the store refuses, and StateError for a damaged
        entry; NoPlaceError for a place where no checkpoints can be, and UnclassifiedError where its library takes an argument
        for wrong. So do the methods that write, but for StateError; after `claim` all but FencedError are RetriableErrors:
        place and login were good, and a login may be renewed.
        """
        self.location = location
        self._store, self._clock = store, clock
        self._lifetime = uuid4().hex
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        # Every object that may be there: the name of its file, None of a manifest.
        self._objects: dict[int, str | None] = {}
        self._manifest, self._last = 0, 0
        self._holder = ""
        # An object that may come to be there later has the next number, which no other may get from this lifetime.
        self._dispute: str | None = None
        self._has_claimed = False
        self._load()

    # --- reading ------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """As they were when the log was opened or claimed, and of what this lifetime has written."""
        with self._lock:
            return list(self._entries)

    def read(self, name: str) -> bytes:
        return self._entry(name).data

    def size(self, name: str) -> int | None:
        """Of the file, without what is before it in its object."""
        with self._lock:
            entry = self._entries.get(name)
        return None if entry is None else len(entry.data)

    def written_s(self, name: str) -> float:
        """By the clock of who wrote it."""
        return self._entry(name).at_s

    def _entry(self, name: str) -> _Entry:
        with self._lock:
            try:
                return self._entries[name]
            except KeyError:
                raise FileNotFoundError(f"{self.where(name)} is not there") from None

    def _load(self) -> None:
        attempts = Retrying(retry=retry_if_exception_type(_ChangedError), stop=stop_after_attempt(_CLAIMS), reraise=True)
        try:
            found = attempts(self._found)
        except _ChangedError as error:
            raise RetriableError(f"{self.location} changes all the time while it is read") from error
        manifests = [number for number, entry in found.items() if entry.name is None]
        if found and not manifests:
            raise StateError(f"{self.location}: there are entries of a run, and no manifest that names those that count")
        self._objects, self._last = {number: entry.name for number, entry in sorted(found.items())}, max(found, default=0)
        self._manifest, self._entries = 0, {}
        if manifests:
            newest = _manifest_that_counts(found.values())
            self._manifest, self._holder = newest.number, newest.lifetime
            for number, entry in sorted(found.items()):
                counts = number in newest.entries or (number > newest.number and entry.lifetime == newest.lifetime)
                if counts and entry.name is not None:
                    self._entries[entry.name] = entry

    def _found(self) -> Mapping[int, _Entry]:
        """Everything, as of one moment. A writer adds an object before it deletes others, whose numbers may be used again.

        Raises _ChangedError where there was no such moment.
        """
        numbers = self._listed()
        try:
            data = {number: self._asked(self._store.read, _path(number)) for number in numbers}
        except FileNotFoundError as error:
            raise _ChangedError from error
        if max(self._listed(), default=0) != max(numbers, default=0):
            raise _ChangedError
        return {number: self._opened(number, whole) for number, whole in data.items()}

    def _listed(self) -> list[int]:
        return [int(name) for name in self._asked(self._store.names, _LOG) if _NUMBER.fullmatch(name)]

    def _opened(self, number: int, data: bytes) -> _Entry:
        where = self.where(_path(number))
        head, _, body = data.partition(b"\n")
        header = ENTRY.open(head, where)
        with ENTRY.reading(where):
            lifetime, at_s = str(header["life"]), float(header["at"])
            if header["kind"] == _MANIFEST:
                return _Entry(number, lifetime, at_s, None, b"", frozenset(map(int, header["entries"])))
            if header["kind"] != _FILE or type(header["name"]) is not str:
                raise ValueError(f"an entry {header['kind']!r} of {header['name']!r}")
            if (len(body), zlib.crc32(body)) != (header["size"], header["crc32"]):
                # Its name shows whose place it has: what is in it states that it is damaged.
                log.warning("%s is damaged: %d bytes, where %s were written", where, len(body), header["size"])
            return _Entry(number, lifetime, at_s, header["name"], body, frozenset())

    # --- writing ------------------------------------------------------------------------------------------------------

    def claim(self, owner: str = "", after: str | None = None) -> None:
        """By a manifest. Raises UsageError for a store that creates what is there already, RetriableError as `__init__`."""
        self._lifetime = f"{owner}{_OF}{self._lifetime}"
        self._asked(self._store.make_folder, _LOG)
        if after is None:  # else this run has had them: how such a store fails now says nothing of what it is
            self._asked(self._store.check_exclusive, _LOG)
        with self._lock:
            for _ in range(_CLAIMS):
                if after is not None and self._holder and self._holder.partition(_OF)[0] != after:
                    raise self._claimed_by_another()
                try:
                    self._write_manifest()
                except _TakenError:
                    self._load()
                else:
                    self._has_claimed = True
                    return
        raise RetriableError(f"{self.location}: another run writes there all the time, so its checkpoints cannot be claimed")

    def write(self, name: str, data: bytes) -> None:
        crc32 = zlib.crc32(data)
        with self._lock, self._alone():
            entry = self._append({"kind": _FILE, "name": name, "size": len(data), "crc32": crc32}, data)
            self._entries[name] = entry
            self._delete(number for number in self._of(name) if number != entry.number)
            if self._manifest not in self._objects:
                log.warning("%s was emptied while this run is running, and is recreated", self.location)
                self._write_manifest()

    def remove(self, names: Collection[str]) -> None:
        with self._lock, self._alone():
            self._entries = {name: entry for name, entry in self._entries.items() if name not in names}
            self._write_manifest()

    def discard(self, name: str) -> None:
        with self._lock:
            self._entries.pop(name, None)
            self._delete(self._of(name))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._dispute is not None:
            raise RetriableError(f"{self.location}: whether an earlier change was stored is not known: {self._dispute}")
        try:
            yield
        except _TakenError:
            raise self._claimed_by_another() from None
        except RetriableError as error:  # an earlier try may have been stored all the same
            self._dispute = str(error)
            raise

    def _write_manifest(self) -> None:
        """Naming all entries of now. Raises _TakenError."""
        entries = sorted(entry.number for entry in self._entries.values())
        header = {"kind": _MANIFEST, "entries": entries, "host": socket.gethostname(), "pid": os.getpid()}
        self._manifest = self._append(header, b"").number
        self._delete(number for number in sorted(self._objects) if number != self._manifest and number not in entries)

    def _append(self, header: Mapping[str, Any], data: bytes) -> _Entry:
        """Raises _TakenError where another lifetime has the number, or a higher one."""
        number, at_s = self._last + 1, self._clock()
        whole = ENTRY.seal({"life": self._lifetime, "at": at_s, **header}) + b"\n" + data
        self._asked(self._create, number, whole)
        listed = self._listed()
        if max(listed, default=number) > number:
            raise _TakenError  # what is there stays: a claim that has just come may have found it, and name it
        gone = self._objects.keys() - set(listed)
        if gone and self._has_claimed and self._is_anothers(listed):
            self._asked(self._store.remove, _path(number))  # which that run is not to find
            raise _TakenError
        self._last = number
        self._forget(gone)
        entry = self._opened(number, whole)
        self._objects[number] = entry.name
        return entry

    def _create(self, number: int, data: bytes) -> None:
        try:
            self._put(number, data)
        except FileExistsError:
            # It may be ours, of a put whose answer was lost.
            try:
                is_ours = self._store.read(_path(number)) == data
            except FileNotFoundError:
                is_ours = False  # another lifetime's, which a third one has deleted
            if not is_ours:
                raise _TakenError from None

    def _put(self, number: int, data: bytes) -> None:
        create = partial(self._store.create, _path(number), data, f"{_LOG}/.{self._lifetime}")
        try:
            create()
        except FileNotFoundError:  # the folder itself was removed
            self._store.make_folder(_LOG)
            create()

    def _header(self, number: int) -> Mapping[str, Any]:
        """Of the object as it is in the store."""
        return ENTRY.open(self._store.read(_path(number)).partition(b"\n")[0], self.where(_path(number)))

    def _is_anothers(self, listed: Collection[int]) -> bool:
        """Whether another run has started in the place that was emptied: it may have an object of our manifest's number."""
        if self._manifest not in listed:
            return any(number not in self._objects for number in listed if number <= self._last)
        return bool(self._asked(self._header, self._manifest)["life"] != self._lifetime)

    def _forget(self, gone: Collection[int]) -> None:
        """Another process has removed these objects, which no run does."""
        self._objects = {number: name for number, name in self._objects.items() if number not in gone}
        self._entries = {name: entry for name, entry in self._entries.items() if entry.number not in gone}

    def _of(self, name: str) -> list[int]:
        return sorted(number for number, of in self._objects.items() if of == name)

    def _delete(self, numbers: Iterable[int]) -> None:
        """What cannot be deleted now is left out by the next manifest, and deleted after it.

        In this order, and none after one that stays: a file that was replaced must not come back. Nor is the last object
        deleted: another lifetime would then get a number that this one takes for passed.
        """
        for number in list(numbers):
            if number == self._last:
                return
            try:
                self._store.remove(_path(number))
            except Exception as error:  # noqa: BLE001 - as fsspec's stores raise
                log.debug("%s is left for later: %s", self.where(_path(number)), error)
                return
            del self._objects[number]

    def _asked(self, ask: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - as `ask`
        attempts = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, _StoreError) and not self._is_of_place(error)),
            stop=stop_after_delay(TIMEOUT_S),
            wait=wait_exponential(0.1, max=2.0),
            reraise=True,
        )
        try:
            return attempts(_translated, ask, *arguments)
        except _StoreError as error:
            if self._is_of_place(error):
                kind = NoPlaceError if isinstance(error, _UnfitError) else UnclassifiedError
                raise kind(f"{self.location}: no checkpoints can be kept there: {error}") from error.__cause__
            raise RetriableError(f"{self.location}: the store does not answer as it should: {error}") from error.__cause__
        except _RefusedError as error:
            if self._has_claimed:
                raise RetriableError(
                    f"{self.location}: the store refuses what it tolerated before: {error}"
                ) from error.__cause__
            raise AuthenticationError(
                f"{self.location}: the store refuses the login, or its rights, or there is no login: {error}. They are "
                "set where fsspec's package for this store looks for them"
            ) from error.__cause__

    def _is_of_place(self, error: BaseException) -> bool:
        return isinstance(error, _MistakeError | _UnfitError) and not self._has_claimed

    def _claimed_by_another(self) -> FencedError:
        return FencedError(
            f"{self.location}: these checkpoints were claimed {self._taken_by()}, which continues from them. This run must "
            "end. Give each run its own place"
        )

    def _taken_by(self) -> str:
        try:
            for number in sorted(self._listed(), reverse=True):
                with suppress(FileNotFoundError):  # its maker continues
                    header = self._header(number)
                    if header["kind"] == _MANIFEST:
                        return f"by process {header['pid']} of {header['host']}"
        except Exception as error:  # noqa: BLE001 - it is for a message only
            log.debug("who has claimed %s cannot be read: %s", self.location, error)
        return "by another process"


def _manifest_that_counts(entries: Collection[_Entry]) -> _Entry:
    """The highest, but for those that came too late, under a number that the lifetime running had used and deleted.

    Such a manifest lies between that lifetime's own and its last object, which is never deleted. One that was in time has no
    later entry of an earlier lifetime behind it, as that lifetime wants the same number next. There is at least one manifest.
    """
    manifests = sorted((entry for entry in entries if entry.name is None), key=lambda entry: entry.number)

    def came_too_late(manifest: _Entry) -> bool:
        at_work = {earlier.lifetime for earlier in manifests if earlier.number < manifest.number} - {manifest.lifetime}
        return any(entry.number > manifest.number and entry.lifetime in at_work for entry in entries)

    return next(manifest for manifest in reversed(manifests) if not came_too_late(manifest))


def _translated(ask: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - as `ask`
    try:
        return ask(*arguments)
    except (FileNotFoundError, HeadraceError, _TakenError):
        raise
    except Exception as error:
        if _is_no_place(error):
            raise _UnfitError(_named(error)) from error
        if _refuses_login(error):
            raise _RefusedError(_named(error)) from error
        of_arguments = isinstance(error, _OF_ARGUMENTS) and not isinstance(error, _OF_ANSWERS)
        raise (_MistakeError if of_arguments else _StoreError)(_named(error)) from error


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _is_no_place(error: Exception) -> bool:
    is_unsupported = _has_status(error, _UNSUPPORTED) or getattr(error, "errno", None) in _UNSUPPORTED_NUMBERS
    return is_unsupported or _is_named(error, _NO_PLACE)


def _is_named(error: Exception, names: Collection[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _has_status(error: Exception, statuses: Collection[int]) -> bool:
    return any(getattr(error, name, None) in statuses for name in ("code", "status", "status_code"))


def _refuses_login(error: Exception) -> bool:
    """Not what may pass: throttling, a failure of the store's own, a lost connection.

    s3fs makes PermissionErrors of most of S3's refusals, and of others an OSError whose cause is botocore's; libraries of other
    stores have the answer's HTTP status in the error.
    """
    code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
    is_refused = isinstance(error, PermissionError) or _has_status(error, _REFUSED) or code in _REFUSED_CODES
    return is_refused or _is_named(error, _NO_LOGIN)


def _path(number: int) -> str:
    return f"{_LOG}/{number:012d}"
