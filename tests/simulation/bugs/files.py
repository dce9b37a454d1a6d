"""Injected bugs in the file sink's fencing and cleaning up: each must be caught by the tests that let another driver in."""

from typing import Any
from unittest.mock import patch

from headrace.connectors.files import FileCommitter, FileHandle, sink
from headrace.connectors.files.sink import _Lists
from tests.simulation.bugs.injecting import instead_of


@instead_of(FileCommitter, "clean_up")
def cleaned_up_in_one_step(_: Any, self: Any, keep: Any) -> None:
    """What is not kept is removed at once: a driver that was replaced removes what its successor has recorded."""
    self._lists.check_newest()
    kept = {handle.temporary for handle in keep}
    for name in self._store.names(self._folder):
        if name not in kept:
            self._store.remove(f"{self._folder}/{name}")


@instead_of(FileCommitter, "clean_up")
def clean_up_goes_on_after_a_takeover(clean_up: Any, self: Any, keep: Any) -> None:
    """No process looks whether another driver has claimed the job between the two steps of a clean-up."""
    self._lists.check_newest()
    with patch.object(self._lists, "check_newest", lambda: None):
        clean_up(self, keep)


@instead_of(FileCommitter, "end")
def renamed_files_not_found(end: Any, self: Any, handle: Any) -> Any:
    """A recorded file that a clean-up has renamed meanwhile counts as gone."""
    with patch.object(FileHandle, "cleaned_up", "nothing has this name"):
        return end(self, handle)


@instead_of(_Lists, "_write")
def free_number_trusted(write: Any, self: Any, number: int, commits: Any) -> None:
    """A list's number that is free counts as the next one, also when it is free because others have continued from it."""
    numbers = sink._numbers
    with patch.object(sink, "_numbers", lambda store, job: [other for other in numbers(store, job) if other <= number]):
        write(self, number, commits)


@instead_of(_Lists, "take_over")
def fence_only_reads(_: Any, self: Any) -> Any:
    """A driver that takes over writes nothing, so that the older one's next number is still free."""
    self._number, commits = self.latest()
    return commits


@instead_of(_Lists, "_write")
def older_lists_removed_first(write: Any, self: Any, number: int, commits: Any) -> None:
    """The list is replaced by removing the old one and writing the new one."""
    for older in sink._numbers(self._store, self._job):
        if older < number:
            self._store.remove(self._name(older))
    write(self, number, commits)


IN_CLEANING_UP = (cleaned_up_in_one_step, clean_up_goes_on_after_a_takeover, renamed_files_not_found)
IN_THE_LISTS = (free_number_trusted, fence_only_reads, older_lists_removed_first)
