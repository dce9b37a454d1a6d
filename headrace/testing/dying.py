"""A driver that is killed between two calls of its committer: for tests of sinks and of runners. Needs no pytest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeVar

from headrace.connectors.base import capabilities
from headrace.connectors.base.sink import CommitList, Committer, HandleT, Outcome

AnswerT = TypeVar("AnswerT")

Step = Literal["fence", "check", "record", "end", "copy", "clean_up"]
When = Literal["before", "after"]

COMMITTER_STEPS: tuple[Step, ...] = ("fence", "check", "record", "end", "copy", "clean_up")
"""The calls of a committer that a driver may die before or after."""


class Killed(BaseException):
    """Represents SIGKILL: no `except Exception` catches it."""


class DyingCommitter(Committer[HandleT], capabilities.Confirmation[HandleT], capabilities.TaskCleanup[HandleT]):
    """A real committer that is killed before or after its `nth` call of a method. It ends transactions one after the other.

    `died` says whether it came to that: a test asserts it.
    """

    def __init__(self, inner: Committer[HandleT], step: Step, when: When, nth: int = 1) -> None:
        """Counts the calls of `step` from 1."""
        self._inner, self._step, self._when, self._left = inner, step, when, nth
        self.died: bool = False

    def _call(self, step: Step, perform: Callable[[], AnswerT]) -> AnswerT:
        if step == self._step:
            self._left -= 1
        due = step == self._step and self._left == 0
        if due and self._when == "before":
            self._die()
        answer = perform()
        if due:
            self._die()
        return answer

    def _die(self) -> None:
        self.died = True
        raise Killed

    def fence(self) -> CommitList[HandleT] | None:
        """As the real one; raises Killed when it is due, like the calls below."""
        return self._call("fence", self._inner.fence)

    def check(self, handles: Sequence[HandleT]) -> None:
        self._call("check", lambda: self._inner.check(handles))

    def record(self, commits: CommitList[HandleT]) -> None:
        self._call("record", lambda: self._inner.record(commits))

    def end(self, handle: HandleT) -> Outcome:
        return self._call("end", lambda: self._inner.end(handle))

    def copy(self, handles: Sequence[HandleT]) -> HandleT:
        return self._call("copy", lambda: self._inner.copy(handles))

    def clean_up(self, keep: Collection[HandleT]) -> None:
        self._call("clean_up", lambda: self._inner.clean_up(keep))

    def confirm(self, handles: Sequence[HandleT]) -> None:
        capabilities.confirm(self._inner, handles)

    def clean_up_tasks(self, tasks: Collection[int], keep: Collection[HandleT]) -> None:
        capabilities.task_cleanup(self._inner).clean_up_tasks(tasks, keep)

    def open_tasks(self) -> frozenset[int]:
        return capabilities.task_cleanup(self._inner).open_tasks()

    def forget(self) -> None:
        self._inner.forget()

    def close(self) -> None:
        self._inner.close()
