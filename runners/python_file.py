"""A Python file of the user's, named on a command line as `job.py:name`, as a module of this process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["load_file", "named_in_file"]


def named_in_file(text: str) -> tuple[str, str] | None:
    """`job.py:name` as the two; None for anything else. Whether there is such a file is not looked at."""
    path, _, name = text.rpartition(":")
    return (path, name) if path.endswith(".py") and name.isidentifier() else None


def load_file(path: Path, name: str) -> ModuleType:
    """The module of this file, which is `sys.modules[name]` from now on, so that what the file defines can be pickled.

    The one that is there already, if it is of this file. Raises ImportError for what is not Python file, and what the file
    raises: then `name` is in `sys.modules` what it was before.
    """
    before = sys.modules.get(name)
    if before is not None and getattr(before, "__file__", None) == str(path):
        return before
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module
