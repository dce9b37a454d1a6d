"""The public surface as text: every public name with its signature, as `tests/unit/tools/public_surface.txt` has it.

    python -m tests.helpers.surface > tests/unit/tools/public_surface.txt

Annotations are as written in the code, so the text is the same for every Python.
"""

import enum
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ForwardRef

MODULES = (
    "headrace.kafka", "headrace.sql", "headrace.files", "headrace.formats", "headrace.delta", "headrace.iceberg",
    "headrace.run", "headrace.beam", "headrace.spark", "headrace.testing", "headrace.errors", "headrace.enumerator",
    "headrace.sinks", "headrace.sources", "headrace.postgresql",
)  # fmt: skip


def names_of(module: str) -> list[str]:
    return sorted(import_module(module).__all__)


def surface() -> str:
    return "\n".join(line for module in MODULES for line in (module, *_of_module(module), ""))


def _of_module(module: str) -> Iterator[str]:
    for name in names_of(module):
        yield from (f"    {line}" for line in _of_value(name, getattr(import_module(module), name)))


def _of_value(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"def {name}{_signature(value)}" if inspect.isfunction(value) else f"{name} = {value}"
        return
    yield f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
    if issubclass(value, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in value)
        return
    if not issubclass(value, BaseException) or "__init__" in vars(value):
        yield f"    {name}{_signature(value)}".removesuffix(" -> None")
    for member, owner in sorted(members(value).items()):
        yield f"    {_of_member(member, vars(owner)[member])}"


class _Text:
    """Is shown as it is: `inspect` puts quotes around annotations that are text, and addresses into functions."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _signature(value: Any) -> str:
    found = inspect.signature(value)
    given = found.parameters.values()
    parameters = [each.replace(annotation=_annotation(each.annotation), default=_default(each.default)) for each in given]
    return str(found.replace(parameters=parameters, return_annotation=_annotation(found.return_annotation)))


def _annotation(annotation: Any) -> Any:
    match annotation:
        case inspect.Parameter.empty:
            return annotation
        case str():
            return _Text(annotation)
        case ForwardRef():
            return _Text(annotation.__forward_arg__)
        case _:
            return _Text(inspect.formatannotation(annotation))


def _default(default: Any) -> Any:
    if default is not inspect.Parameter.empty and hasattr(default, "__qualname__"):
        return _Text(default.__qualname__)
    return default


def members(kind: type) -> dict[str, type]:
    """Public attributes that a user may call or read, with the class that has them: ours, and none of a library's."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("headrace.")]
    found = {name: base for base in ours for name in vars(base) if not name.startswith("_")}
    fields = set(getattr(kind, "__dataclass_fields__", ())) | set(getattr(kind, "_fields", ()))
    return {name: base for name, base in found.items() if name not in fields}


def _of_member(name: str, value: Any) -> str:
    match value:
        case classmethod() | staticmethod():
            return f"{type(value).__name__} {name}{_signature(value.__func__)}"
        case property():
            return f"{name}: {inspect.signature(value.fget).return_annotation}" if value.fget else name
        case _ if hasattr(value, "func") and hasattr(value, "attrname"):  # functools.cached_property
            return f"{name}: {inspect.signature(value.func).return_annotation}"
        case _ if inspect.isfunction(value):
            return f"{name}{_signature(value)}"
        case _:
            return name


if __name__ == "__main__":
    sys.stdout.write(surface())
