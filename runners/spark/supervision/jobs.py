"""The job's function, named so that another process can find it: `path/to/job.py:job`, or `package.module:job`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.enumerator.errors import UsageError
from headrace.runners.job_file import load_file, named_in_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOADED_AS = "__headrace_job__"  # not `__main__`: a script's `if __name__ == "__main__"` is the supervisor's part


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function at the top of a file (absolute path, ends in `.py`) or of a module that can be imported.

    `package`: the one that the file's relative imports are from, as those of `python -m package.module`; empty for none.
    """

    place: str
    function: str
    package: str = ""

    @classmethod
    def parse(cls, text: str) -> FunctionName:
        """From `job.py:job` or `module:job`. Raises UsageError."""
        place, _, function = text.rpartition(":")
        if not place or not function.isidentifier():
            raise UsageError(f"a job is named as path/to/job.py:function or package.module:function, not {text!r}")
        if named_in_file(text) is None:
            return cls(place, function)
        if not Path(place).is_file():
            raise UsageError(f"there is no file {place!r}, which the job {text!r} is to be in")
        return cls(str(Path(place).absolute()), function)

    @classmethod
    def of(cls, function: Callable[..., object]) -> FunctionName:
        """Of a function of this process. Raises UsageError for one that no other process can find by its name."""
        name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
        if not name.isidentifier():
            raise UsageError(
                f"{function!r} is not a function at the top of a file: a driver is another process, and finds it by its name"
            )
        if module != "__main__":
            return cls(module, name)
        program = sys.modules["__main__"]
        file = getattr(program, "__file__", None)
        if file is None:
            raise UsageError(f"{name} is not in a file: a driver is another process, and cannot find it")
        return cls(str(Path(file).absolute()), name, getattr(program, "__package__", None) or "")

    @property
    def folder(self) -> str | None:
        """What a program in that file imports its neighbours from; None for a module, also one that was run as one."""
        return str(Path(self.place).parent) if self.place.endswith(".py") and not self.package else None

    def __str__(self) -> str:
        return f"{self.place}:{self.function}"


def load(name: FunctionName) -> Callable[..., Any]:
    """The function, in this process. Raises UsageError where there is none, and what the file itself raises."""
    found = getattr(_module(name), name.function, None)
    if not callable(found):
        raise UsageError(f"there is no function {name.function!r} in {name.place}")
    return found  # type: ignore[no-any-return]  # callable


def load_job(name: FunctionName) -> Callable[[SparkSession], object]:
    """A function of a session. Raises UsageError, as `load`, also for one that does not take exactly that."""
    job = load(name)
    try:
        signature = inspect.signature(job)
    except (TypeError, ValueError):  # of a function that Python knows none of
        return job
    try:
        signature.bind(None)
    except TypeError as error:
        raise UsageError(f"the job {name.function} is called with the session alone: {error}") from error
    return job


def _module(name: FunctionName) -> ModuleType:
    try:
        return _load_job(name) if name.place.endswith(".py") else importlib.import_module(name.place)
    except (ImportError, SyntaxError) as error:
        raise UsageError(f"the job's file {name.place} cannot be loaded: {type(error).__name__}: {error}") from error


def _load_job(name: FunctionName) -> ModuleType:
    from pyspark.cloudpickle import register_pickle_by_value

    module = load_file(Path(name.place), f"{name.package}.{_LOADED_AS}".removeprefix("."))
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # as a program's own functions: no worker can import it
    return module
