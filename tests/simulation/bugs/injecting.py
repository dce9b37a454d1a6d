"""How a bug is put into the real code: as a function that is called in place of another one, or as a context manager.

@instead_of(Ledger, "snapshot")
def finished_splits_forgotten(snapshot, self, reported):
    return [state for state in snapshot(self, reported) if not state.finished]

with finished_splits_forgotten():
    ...  # must fail
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Injected = Callable[[], AbstractContextManager[None]]


def bug(injected: Callable[[], Iterator[None]]) -> Injected:
    """What the context manager patches, is the bug."""
    made = contextmanager(injected)
    made.is_bug = True  # type: ignore[attr-defined]
    return made


def instead_of(owner: Any, name: str, *also: Injected) -> Callable[[Callable[..., Any]], Injected]:
    """The function is called in place of this one, with this one as its first argument. `also`: what else is injected."""

    def decorated(function: Callable[..., Any]) -> Injected:
        @functools.wraps(function)
        def injected() -> Iterator[None]:
            original = getattr(owner, name)
            with ExitStack() as stack:
                for other in also:
                    stack.enter_context(other())
                stack.enter_context(patch.object(owner, name, lambda *given, **named: function(original, *given, **named)))
                yield

        return bug(injected)

    return decorated


def by_name(**bugs: tuple[Any, str, Callable[..., Any]]) -> tuple[Injected, ...]:
    """A table of bugs: the name of each; and the owner and the name of what the function is called in place of."""

    def named(name: str, owner: Any, method: str, function: Callable[..., Any]) -> Injected:
        function.__name__ = name
        return instead_of(owner, method)(function)

    return tuple(named(name, *bug) for name, bug in bugs.items())


def bugs_of(module: Mapping[str, Any]) -> tuple[Injected, ...]:
    """The bugs that a module has defined so far, in this order. `module`: its `globals()`."""
    return tuple(value for name, value in module.items() if hasattr(value, "is_bug") and not name.startswith("_"))
