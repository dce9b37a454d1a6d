"""The record decoder uncompiled: the same source file, run by the interpreter, as the reference for the compiled one."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from headrace.connectors.kafka import records as compiled

SOURCE = Path(compiled.__file__).with_name("records.py")


def load() -> ModuleType:
    """The module of `records.py` as plain Python, under another name. Cython must be installed: it provides `cython`."""
    spec = importlib.util.spec_from_file_location("headrace_records_uncompiled", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


uncompiled = load()
