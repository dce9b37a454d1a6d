"""Finds files that were not found before, oldest first, and cuts large ones into splits."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from headrace.connectors.files.read.cursor import NEVER, FileStatus, Key, Period, Remembered, age_order, key_of, restored_key
from headrace.connectors.files.read.folders import FoundFile
from headrace.connectors.files.read.plan import FilePlan, is_selected
from headrace.connectors.files.read.split import FileSplit, shown
from headrace.enumerator.envelope import readable_version, stored_text
from headrace.enumerator.errors import DataLossError, HeadraceError, RetriableError, StateError, UsageError
from headrace.enumerator.source import DiscoveryResult, IncrementalDiscovery, JsonObject

log = logging.getLogger(__name__)

_VERSION = 1  # of the cursor
_LEAST_HANDLED = 100_000


class FileDiscovery(IncrementalDiscovery[FileSplit]):
    """Lists the folder when the files of the last listing are given out.

    What it holds besides the cursor, which files need no attention and which wait, is made again when it is given another
    cursor than its last one.
    """

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._folder = plan.folder()
        self._last: JsonObject | None = None
        self._remembered = Remembered()
        self._name = ""
        self._periods = [Period(plan.pattern)]
        self._newest: Key | None = None
        self._newest_read_ms = NEVER[0]  # by order="name", as nothing else has it there
        self._handled: set[int] = set()
        self._most_handled = _LEAST_HANDLED
        self._waiting: deque[FoundFile] = deque()

    def after(self, cursor: JsonObject | None, limit: int) -> DiscoveryResult[FileSplit]:
        """As `IncrementalDiscovery` says: the pieces of the next files, as they were listed.

        Raises UsageError for a folder that is not there at the start, or whose store has no times; RetriableError for a store
        that is away; DataLossError for a file that has changed where that fails; StateError for a cursor that cannot be read.
        """
        if cursor is None:
            self._plan.refuse_tables(self._folder)
        if cursor is None or cursor != self._last:
            self._restore(cursor)
        if not self._waiting:
            self._list(missing=UsageError if cursor is None else RetriableError)
        schema = self._schema() if self._waiting else ""
        chosen: list[FoundFile] = []
        pieces = 0
        while self._waiting and pieces < limit:
            chosen.append(self._waiting.popleft())
            pieces += self._count(chosen[-1])
        if chosen or self._last is None:
            self._note(chosen)
            self._last = self._stored()
        more = bool(self._waiting)
        in_order = chosen if self._plan.order == "name" else sorted(chosen, key=age_order)
        splits = [piece for file in in_order for piece in self._pieces(file, schema)]
        return DiscoveryResult(splits, complete=not self._plan.watch and not more, cursor=self._last, more=more)

    def check_final(self, cursor: JsonObject) -> None:
        """Raise StateError where the pattern selects files now that the read has left out, which is over at this cursor.

        Lists the folder if the pattern is another one, and raises what that raises, but of a folder that is gone.
        """
        if self._plan.pattern == self._periods_of(cursor)[-1].pattern:
            return
        self._restore(cursor)
        with suppress(FileNotFoundError):
            for file in self._left_out(self._folder.list_files(())):
                raise self._refused(file)

    def _schema(self) -> str:
        """Asked for before a file is taken from those that wait, and before the cursor is stored, which has it."""
        try:
            return self._plan.schema_digest
        except HeadraceError:
            self._waiting.clear()  # listed again, as a file may be repaired
            raise

    def _restore(self, cursor: JsonObject | None) -> None:
        self._waiting.clear()
        self._handled.clear()
        self._last, self._name = cursor, ""
        self._remembered, self._periods, self._newest = Remembered(), [Period(self._plan.pattern)], None
        self._newest_read_ms = NEVER[0]
        if cursor is None:
            return
        try:
            readable_version(cursor["version"], _VERSION)
            path, self._name, pinned, found = cursor["path"], str(cursor["name"]), cursor["schema"], cursor["found"]
            self._newest = restored_key(cursor["newest"]) if "newest" in cursor else None
            self._newest_read_ms = int(cursor.get("newest_read_ms", NEVER[0]))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"a cursor of files cannot be read: {error!r}") from error
        self._periods = self._periods_of(cursor)
        self._remembered = Remembered.restored(found)
        self._warn_of_another_folder(path)
        self._check_order()
        if self._plan.watch and self._remembered.end is not None:  # of a bounded read, which this one continues
            self._warn_of_late_files()
            if self._plan.order == "name":
                self._newest_read_ms = self._remembered.end[0]
            self._remembered.end = self._remembered.left = None
        if self._plan.watch:  # there is no last listing
            self._newest = None
        self._plan.pin_schema(pinned)

    def _periods_of(self, cursor: JsonObject) -> list[Period]:
        """Of all patterns that the read has had so far. Older cursors of several do not have where each was in force."""
        stored = cursor.get("pattern", self._plan.pattern)
        try:
            patterns = [
                None if each is None else stored_text(each) for each in (stored if isinstance(stored, list) else [stored])
            ]
            if "places" not in cursor:
                return [*map(Period, patterns)]
            return [Period.restored(*each) for each in zip(patterns, cursor["places"], strict=True)]
        except (TypeError, ValueError) as error:
            raise StateError(f"the pattern in a cursor of files cannot be read: {error!r}") from error

    def _warn_of_another_folder(self, path: object) -> None:
        """A folder that was moved is read on; in another one the files are others, and those that are older are left."""
        if path != self._plan.path:
            log.warning(
                "%s: the checkpoint is of %s. What has its name and time counts as read here, what is older than what was read "
                "there is left, and all else is read. To read all of another folder start with a new checkpoint. Folders of a "
                "query that have changed places are to be changed back",
                self._plan.path,
                path,
            )

    def _warn_of_late_files(self) -> None:
        """A bounded read keeps the time of its newest file only, as its checkpoints are small."""
        if self._plan.order == "time":
            log.warning(
                "%s: the checkpoint is of a read without watch=True, which knows no more than the time of the newest file that "
                "it has read: what appears later with an older time is not read. To read that, start with a new checkpoint",
                self._plan.path,
            )

    def _check_order(self) -> None:
        by_time = self._plan.order == "time"
        if self._name if by_time else self._remembered.is_in_use:
            raise StateError(
                f"{self._plan.path}: the checkpoint is of order={'name' if by_time else 'time'!r}, and by "
                f"order={self._plan.order!r} all files would be read again: keep the order, or start with a new checkpoint"
            )

    def _list(self, *, missing: type[HeadraceError]) -> None:
        """Put what is new among the files that wait. `missing` is raised for a folder that is not there."""
        try:
            if len(self._handled) > self._most_handled:  # files that are gone are forgotten
                self._handled &= set(map(hash, self._folder.list_files(())))
                self._most_handled = max(_LEAST_HANDLED, 2 * len(self._handled))
            listed = self._folder.list_files(self._handled)
        except FileNotFoundError as error:
            raise missing(f"there is no folder or file {self._plan.path}: create it, or correct the path") from error
        self._check_pattern(listed)
        new = list(self._by_name(listed) if self._plan.order == "name" else self._by_time(listed))
        if self._last is None and not self._plan.watch:
            if self._plan.pattern is not None:
                self._newest = max(map(key_of, listed), default=NEVER)
            if new:
                self._remembered.end, self._remembered.left = max(map(key_of, new)), len(new)
        self._check_left(new)
        if self._plan.pattern != self._periods[-1].pattern:
            end = self._name, self._remembered.newest
            self._periods = [replace(period, end=period.end or end) for period in self._periods]
            self._periods.append(Period(self._plan.pattern, (self._name, self._remembered.horizon)))
        self._waiting.extend(new)

    def _check_pattern(self, listed: list[FoundFile]) -> None:
        """Raise StateError where files that were left out are selected now, and would not be read."""
        if self._plan.pattern == self._periods[-1].pattern:
            return
        for file in self._left_out(listed):
            if file.path <= self._name or self._remembered.finding(key_of(file)) is FileStatus.BEHIND:
                raise self._refused(file)

    def _left_out(self, listed: list[FoundFile]) -> list[FoundFile]:
        """Not what came later than the listing of a bounded read, as that ends there by any pattern. Of one that watches also
        what appeared too late for any pattern, which is not known.
        """
        found = (file for file in listed if self._plan.selects_name(file.path) and not self._was_selected(file))
        return [file for file in found if self._newest is None or key_of(file) <= self._newest]

    def _was_selected(self, file: FoundFile) -> bool:
        """By a pattern that was in force where the file is."""
        place = (file.path, NEVER) if self._plan.order == "name" else ("", key_of(file))
        return any(is_selected(file.path, period.pattern) for period in self._periods if period.has(place))

    def _refused(self, file: FoundFile) -> StateError:
        return StateError(
            f"{self._plan.path}: the checkpoint is of a read with pattern={self._periods[-1].pattern!r}, which has left out "
            f"{shown(file.path)}: keep that pattern, move the file away, or start with a new checkpoint"
        )

    def _check_left(self, new: list[FoundFile]) -> None:
        """Raise DataLossError, or warn, where a later listing lacks what is left of a bounded read's first one.

        By its new time a file that has changed is one that came later. One that came late, with an old time, is read, too.
        """
        left = self._remembered.left
        if left is None:
            return
        now = sum(map(self._was_selected, new))
        if now < left:
            why = (
                f"{self._plan.path} lacks {left - now} of the {left} files that it had at the start and that wait to be read: "
                "they were removed or changed, or their names have another pattern now"
            )
            if self._plan.fail_on_data_loss:
                raise DataLossError(
                    f"{why}. Put them back with the times they had, or read what is there: fail_on_data_loss=False (as an "
                    "option: failOnDataLoss)"
                )
            log.warning("%s. What is there is read", why)
        self._remembered.left = len(new)

    def _by_name(self, listed: list[FoundFile]) -> Iterator[FoundFile]:
        for file in sorted(_by_path(listed)):
            end = self._remembered.end
            if self._plan.selects_name(file.path) and file.path > self._name and (end is None or key_of(file) <= end):
                yield file
            else:
                self._handled.add(hash(file))

    def _by_time(self, listed: list[FoundFile]) -> list[FoundFile]:
        new: list[tuple[Key, FoundFile]] = []
        for file in _by_path(listed):
            if not self._plan.selects_name(file.path):
                self._handled.add(hash(file))
                continue
            if not file.modified_ns:
                raise UsageError(f"{shown(file.path)}: its store has no times of files: read them in the order of names")
            key = key_of(file)
            finding = self._remembered.finding(key)
            if finding is FileStatus.CHANGED:
                finding = self._changed(file)
            if finding is FileStatus.NEW:
                new.append((key, file))
            else:
                self._handled.add(hash(file))
        new.sort()
        return [file for _, file in new]

    def _changed(self, file: FoundFile) -> FileStatus:
        match self._plan.on_changed_file:
            case "fail":
                raise changed(file.path)
            case "reread":
                log.warning("%s has changed since it was found, and is read again", shown(file.path))
                return FileStatus.NEW
            case _:
                return FileStatus.FOUND

    def _note(self, chosen: list[FoundFile]) -> None:
        self._handled.update(map(hash, chosen))
        if self._remembered.left is not None:
            self._remembered.left -= len(chosen)
        if self._plan.order == "name":
            self._name = chosen[-1].path if chosen else self._name
            self._newest_read_ms = max([self._newest_read_ms, *(file.modified_ns // 1_000_000 for file in chosen)])
            return
        now_ms = time.time_ns() // 1_000_000
        self._remembered.add([key_of(file) for file in chosen], now_ms, self._plan.max_file_age_s * 1000)

    def _stored(self) -> JsonObject:
        found, schema = self._remembered.stored(), self._plan.pinned_schema
        stored = {"version": _VERSION, "path": self._plan.path, "name": self._name, "schema": schema, "found": found}
        patterns = [period.pattern for period in self._periods]
        places = {"places": [period.stored() for period in self._periods]} if len(patterns) > 1 else {}
        newest = {} if self._newest is None else {"newest": list(self._newest)}
        read = {} if self._newest_read_ms == NEVER[0] else {"newest_read_ms": self._newest_read_ms}
        return stored | {"pattern": patterns if len(patterns) > 1 else patterns[0]} | places | newest | read

    def _count(self, file: FoundFile) -> int:
        parts = -(-file.size // self._plan.split_bytes)
        return parts if parts > 1 and self._plan.can_cut(file.path) else 1

    def _pieces(self, file: FoundFile, schema: str) -> Iterator[FileSplit]:
        """A file in ranges of about the same size, each at most as large as a split may be."""
        count = self._count(file)
        ends = [file.size * number // count for number in range(count + 1)]
        for start, stop in pairwise(ends):
            yield FileSplit(file.path, file.size, file.modified_ns, start, stop, schema)


def _by_path(listed: list[FoundFile]) -> Collection[FoundFile]:
    """Each file once, though a listing may have it twice while the folder changes."""
    return {file.path: file for file in listed}.values()


def changed(path: str) -> DataLossError:
    """What is raised of a file that is not the one that was found."""
    return DataLossError(
        f"{shown(path)} has changed since it was found: what was read of it is not what it has now. Write files under a name "
        "that starts with '_' or '.', and rename them when they are whole; or choose on_changed_file='ignore' or 'reread'"
    )
