"""A Python file of the user's, named on a command line as `job.py:name`: as a module of this process, and its pipeline."""

from __future__ import annotations

import ast
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from headrace.enumerator.errors import UsageError
from headrace.enumerator.source_driver import can_pass
from headrace.runners.pipeline import PipelineSpec


def named_in_file(text: str) -> tuple[str, str] | None:
    """`job.py:name` as the two; None for anything else. Whether there is such a file is not looked at."""
    path, _, name = text.rpartition(":")
    return (path, name) if path.endswith(".py") and name.isidentifier() else None


def load_file(path: Path, name: str) -> ModuleType:
    """The module of this file, which is `sys.modules[name]` from now on, so that what the file defines can be pickled.

    The one that is there already, if it is of this file. Raises ImportError for what is not a Python file, and what the file
    raises: then `name` is in `sys.modules` what it was before.
    """
    before = sys.modules.get(name)
    if before is not None and getattr(before, "__file__", None) == str(path):
        return before
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if (folder := str(path.parent)) not in sys.path:
        sys.path.insert(0, folder)  # as `python job.py` does: modules in its folder are found
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


@dataclass(frozen=True)
class PipelineFile:
    """A pipeline that a Python file has under a name. Each process of a run loads the file again."""

    path: Path
    name: str

    @classmethod
    def parse(cls, text: str) -> PipelineFile:
        """`job.py:pipeline`. Raises UsageError for something else, or a file that is not there."""
        found = named_in_file(text)
        if found is None:
            raise UsageError(f"a pipeline is named by its file and its variable, such as job.py:pipeline, not {text!r}")
        path, name = found
        file = Path(path).absolute()
        if not file.is_file():
            raise UsageError(f"{path}: there is no such file")
        return cls(file, name)

    def load(self) -> PipelineSpec:
        """The pipeline. Raises UsageError where the file has none of this name, and for what the file raises; but an error that
        is transient as it is."""
        value = getattr(self._module(), self.name, None)
        if not isinstance(value, PipelineSpec):
            raise UsageError(f"{self.path}: {self.name} is not a Pipeline, but {type(value).__name__}")
        return value

    def modules(self) -> list[str]:
        """What its processes may have loaded before they are forked: headrace's own modules that the file names.

        Raises UsageError for a file that may not be read, or is not a Python.
        """
        try:
            tree = ast.parse(self.path.read_bytes(), str(self.path))
        except (OSError, SyntaxError, ValueError) as error:
            raise UsageError(f"{self.path} cannot be read as Python: {error}") from error
        found = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        found += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
        return sorted({name for name in found if name.startswith("headrace.")})

    def _module(self) -> ModuleType:
        stem = self.path.stem
        taken = stem in sys.modules and getattr(sys.modules[stem], "__file__", None) != str(self.path)
        try:
            return load_file(self.path, f"__headrace_{stem}__" if taken else stem)
        except (Exception, SystemExit) as error:
            if can_pass(error):
                raise  # an outage (of a schema registry): another try may do better, which no mistake of the file would
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}:{frame.lineno}"
            raise UsageError(f"{self.path} cannot be loaded: {type(error).__name__}: {error} ({place})") from error
