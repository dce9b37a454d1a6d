"""Injected bugs in the file sink's fencing and cleaning up: each must be caught by the tests that let another driver in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from headrace.connectors.base.sink import Outcome
from headrace.connectors.files import FileCommitter, FileHandle, sink
from headrace.connectors.files.sink import _Lists

Injected = Callable[[], AbstractContextManager[None]]


@contextmanager
def cleaned_up_in_one_step() -> Iterator[None]:
    """What is not kept is removed at once: a driver that was replaced removes what its successor has recorded."""

    def injected(self: Any, keep: Any) -> None:
        self._lists.check_newest()
        kept = {handle.temporary for handle in keep}
        for name in self._store.names(self._folder):
            if name not in kept:
                self._store.remove(f"{self._folder}/{name}")

    with patch.object(FileCommitter, "clean_up", injected):
        yield


@contextmanager
def clean_up_goes_on_after_a_takeover() -> Iterator[None]:
    """No process looks whether another driver has claimed the job between the two steps of a clean-up."""
    clean_up = FileCommitter.clean_up

    def injected(self: Any, keep: Any) -> None:
        self._lists.check_newest()
        with patch.object(self._lists, "check_newest", lambda: None):
            clean_up(self, keep)

    with patch.object(FileCommitter, "clean_up", injected):
        yield


@contextmanager
def renamed_files_not_found() -> Iterator[None]:
    """A recorded file that a clean-up has renamed meanwhile counts as gone."""
    end = FileCommitter.end

    def injected(self: Any, handle: Any) -> Outcome:
        with patch.object(FileHandle, "cleaned_up", "nothing has this name"):
            return end(self, handle)

    with patch.object(FileCommitter, "end", injected):
        yield


@contextmanager
def free_number_trusted() -> Iterator[None]:
    """A list's number that is free counts as the next one, also when it is free because others have continued from it."""
    write, numbers = _Lists._write, sink._numbers

    def injected(self: Any, number: int, commits: Any) -> None:
        with patch.object(sink, "_numbers", lambda store, job: [other for other in numbers(store, job) if other <= number]):
            write(self, number, commits)

    with patch.object(_Lists, "_write", injected):
        yield


@contextmanager
def fence_only_reads() -> Iterator[None]:
    """A driver that takes over writes nothing, so that the older one's next number is still free."""

    def injected(self: Any) -> Any:
        self._number, commits = self.latest()
        return commits

    with patch.object(_Lists, "take_over", injected):
        yield


@contextmanager
def older_lists_removed_first() -> Iterator[None]:
    """The list is replaced by removing the old one and writing the new one."""
    write = _Lists._write

    def injected(self: Any, number: int, commits: Any) -> None:
        for older in sink._numbers(self._store, self._job):
            if older < number:
                self._store.remove(self._name(older))
        write(self, number, commits)

    with patch.object(_Lists, "_write", injected):
        yield


IN_CLEANING_UP: tuple[Injected, ...] = (cleaned_up_in_one_step, clean_up_goes_on_after_a_takeover, renamed_files_not_found)
IN_THE_LISTS: tuple[Injected, ...] = (free_number_trusted, fence_only_reads, older_lists_removed_first)
