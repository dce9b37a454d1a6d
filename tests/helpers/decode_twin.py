"""The record decoder uncompiled: the same source file, run by the interpreter, as the reference for the compiled one."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from headrace.connectors.kafka.format import decode as compiled


def load(module: ModuleType) -> ModuleType:
    """A compiled module as plain Python, under another name. Cython must be installed: it provides `cython`."""
    name = module.__name__.rpartition(".")[2]
    assert module.__file__ is not None
    spec = importlib.util.spec_from_file_location(f"headrace_{name}_uncompiled", Path(module.__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    twin = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = twin
    spec.loader.exec_module(twin)
    return twin


uncompiled = load(compiled)
