"""A Python file of the user's, named on a command line as `job.py:name`: as a module of this process, and its pipeline."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import sys
import traceback
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from headrace.enumerator.errors import UsageError
from headrace.enumerator.source_driver import can_pass
from headrace.runners.pipeline import PipelineSpec


def named_in_file(text: str) -> tuple[str, str] | None:
    """`job.py:name` as the two; None for anything else. Whether there is such a file is not looked at."""
    path, _, name = text.rpartition(":")
    return (path, name) if path.endswith(".py") and name.isidentifier() else None


class _TextLoader(SourceFileLoader):
    """Loads a text that was read from its file before. Python's own loader reads the file, or the cache of a later version."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        code = self.source_to_code(self._text, self.path)
        lines = importlib.util.decode_source(self._text).splitlines(keepends=True)
        # Else tracebacks and `inspect` have the lines of an edited file. Those without a time are not compared to it.
        linecache.cache[self.path] = (len(self._text), None, lines, self.path)
        return code


def load_file(path: Path, name: str, text: bytes | None = None) -> ModuleType:
    """The module of this file, which is `sys.modules[name]` from now on, so that what the file defines can be pickled.

    The one that is there already, if it is of this file. `text`: what the file had when it was read; by default it is read now.
    Raises ImportError for what is not a Python file, and what the file raises: then `name` is in `sys.modules` what it was
    before.
    """
    before = sys.modules.get(name)
    if before is not None and getattr(before, "__file__", None) == str(path):
        return before
    loader = None if text is None else _TextLoader(name, str(path), text)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
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
    """A pipeline that a Python file has under a name.

    Each process of a run loads the file's text again: that of the run's start, so that all have one version of it.
    """

    path: Path
    name: str
    text: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> PipelineFile:
        """`job.py:pipeline`. Raises UsageError for something else, or a file that is not there or may not be read."""
        found = named_in_file(text)
        if found is None:
            raise UsageError(f"a pipeline is named by its file and its variable, such as job.py:pipeline, not {text!r}")
        path, name = found
        file = Path(path).absolute()
        if not file.is_file():
            raise UsageError(f"{path}: there is no such file")
        try:
            return cls(file, name, file.read_bytes())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error}") from error

    def load(self) -> PipelineSpec:
        """The pipeline. Raises UsageError where the file has none of this name, and for what the file raises; but an error that
        is transient as it is."""
        value = getattr(self._module(), self.name, None)
        if not isinstance(value, PipelineSpec):
            raise UsageError(f"{self.path}: {self.name} is not a Pipeline, but {type(value).__name__}")
        return value

    def modules(self) -> list[str]:
        """What its processes may have loaded before they are forked: headrace's own modules that the file names.

        Raises UsageError for a file that is not Python.
        """
        try:
            tree = ast.parse(self.text, str(self.path))
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"{self.path} cannot be read as Python: {error}") from error
        found = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        found += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
        return sorted({name for name in found if name.startswith("headrace.")})

    def _module(self) -> ModuleType:
        stem = self.path.stem
        taken = stem in sys.modules and getattr(sys.modules[stem], "__file__", None) != str(self.path)
        try:
            return load_file(self.path, f"__headrace_{stem}__" if taken else stem, self.text)
        except (Exception, SystemExit) as error:
            if can_pass(error):
                raise  # an outage (of a schema registry): another try may do better, which no mistake of the file would
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}:{frame.lineno}"
            raise UsageError(f"{self.path} cannot be loaded: {type(error).__name__}: {error} ({place})") from error
