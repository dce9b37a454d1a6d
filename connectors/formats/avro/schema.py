"""Avro schemas as trees of frozen values: names resolved, logical types read, one object for each place where a type is.

fastavro's parser checks the JSON and completes the names. What the specification says to ignore is ignored: a logical type
that is unknown, or that does not fit the type it is on. A default of another type than its field's is an error where it is
needed: registries are full of them, as Avro before 1.9 did not check. Names of other characters, and branches of one type, are
taken as they are, as their values are read and written all the same.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from headrace.connectors.formats.value_format import field_tree
from headrace.enumerator.errors import UsageError

MOST_NODES = 10_000
"""Types in one schema, each place where a named type is used counted: a bound on what its reading program may be."""

MOST_FIXED_BYTES = 2**31 - 1
"""The size of a fixed type that Arrow can hold."""

MOST_DECIMAL_DIGITS = 76
"""The precision of Arrow's widest decimal. A decimal of more digits is taken as its bytes."""


@dataclass(frozen=True)
class AvroPrimitive:
    """`kind` is Avro's name of the type; `logical` that of its logical type, with `precision` and `scale` of a decimal."""

    kind: str
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class AvroFixed:
    """`size` in bytes; a logical type as `AvroPrimitive` has it."""

    name: str
    aliases: tuple[str, ...]
    size: int
    logical: str | None = None
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class AvroEnum:
    """`default`: the symbol that represents those that a reader does not know."""

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None


@dataclass(frozen=True)
class AvroArray:
    """An array of `items`."""

    items: AvroType


@dataclass(frozen=True)
class AvroMap:
    """A map of strings to `values`."""

    values: AvroType


@dataclass(frozen=True)
class AvroField:
    """`default` is a JSON value, which counts where `has_default` says so: null is a default, too."""

    name: str
    aliases: tuple[str, ...]
    type: AvroType
    has_default: bool
    default: Any


@dataclass(frozen=True)
class AvroRecord:
    """A record, or an error of a protocol."""

    name: str
    aliases: tuple[str, ...]
    fields: tuple[AvroField, ...]


@dataclass(frozen=True)
class AvroUnion:
    """One of `branches`, which are not unions where it is read or written."""

    branches: tuple[AvroType, ...]


@dataclass(frozen=True)
class AvroReference:
    """A named type within itself."""

    name: str


AvroType: TypeAlias = AvroPrimitive | AvroFixed | AvroEnum | AvroArray | AvroMap | AvroRecord | AvroUnion | AvroReference

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

_LOGICAL_ON: dict[str, tuple[str, ...]] = {
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "duration": ("fixed",),
}
_LOGICAL_SIZES = {"uuid": 16, "duration": 12}
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|/\*.*?\*/|//[^\n]*', re.DOTALL)


def parse(schema: str, references: Mapping[str, str] | None = None) -> AvroType:
    """A schema's JSON text as a tree. `references`: the texts of schemas by the full names that this one uses.

    A name of a primitive type (`string`, with or without quotes) is a schema, too. Raises UsageError for text that is no
    Avro schema, for one of more than MOST_NODES types, and where fastavro is not installed.
    """
    parsed, named = parsed_json(schema, references or {})
    return _Tree(named).node(parsed, ())


def _is_odd_decimal(schema: Mapping[str, Any]) -> bool:
    """A decimal whose precision and scale are not those of one, or are more than the bytes of its fixed type hold."""
    if schema.get("logicalType") != "decimal":
        return False
    precision, scale, size = schema.get("precision"), schema.get("scale", 0), schema.get("size")
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision == 0:
        return True
    return type(size) is int and 0 <= size <= MOST_FIXED_BYTES and precision > math.log10(2) * max(8 * size - 1, 0)


def parsed_json(
    schema: str, references: Mapping[str, str], ignored: Callable[[Mapping[str, Any]], bool] = _is_odd_decimal
) -> tuple[Any, dict[str, Any]]:
    """A schema as fastavro parses it, and the named types in it. Raises as `parse`.

    `ignored`: of which types the logical type is left out; the default is what the specification ignores, and fastavro refuses.
    As in Java, the text may start with a byte order mark, and have comments.
    """
    try:
        from fastavro.schema import SchemaParseException, UnknownType, parse_schema
    except ModuleNotFoundError as error:
        raise UsageError("fastavro is not installed; run: pip install 'headrace[avro]'") from error
    named: dict[str, Any] = {}
    try:
        for each in [*references.values(), schema]:
            parsed = parse_schema(_without_logical(_loaded(each), ignored), named, _ignore_default_error=True)
    except UnknownType as error:
        raise UsageError(f"the Avro schema uses a type that it does not define: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SchemaParseException) as error:
        raise UsageError(f"this is not an Avro schema: {type(error).__name__}: {error}") from error
    return parsed, named


def _loaded(text: str) -> Any:  # noqa: ANN401 - JSON
    return text if text in PRIMITIVES else json.loads(_COMMENT.sub(r"\1", text.removeprefix("\ufeff")))


def _without_logical(schema: Any, ignored: Callable[[Mapping[str, Any]], bool]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(schema, list):
        return [_without_logical(each, ignored) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: each for name, each in schema.items() if name != "logicalType" or not ignored(schema)}
    return {name: each if name == "default" else _without_logical(each, ignored) for name, each in kept.items()}


class _Tree:
    """Turns fastavro's dictionaries into nodes, and counts them."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._nodes = 0

    def node(self, schema: Any, open_names: tuple[str, ...]) -> AvroType:  # noqa: ANN401 - JSON
        """One node; `open_names` are the named types that it is in."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise UsageError(f"the Avro schema has more than {MOST_NODES} types, each use of a named type counted")
        if isinstance(schema, list):
            return AvroUnion(tuple(self.node(branch, open_names) for branch in schema))
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return AvroPrimitive(schema)
            if schema in open_names:
                return AvroReference(schema)
            return self.node(self._named[schema], open_names)
        return self._complex(schema, open_names)

    def _complex(self, schema: Mapping[str, Any], open_names: tuple[str, ...]) -> AvroType:
        kind = schema["type"]
        match kind:
            case "array":
                return AvroArray(self.node(schema["items"], open_names))
            case "map":
                return AvroMap(self.node(schema["values"], open_names))
            case "record" | "error":
                inside = (*open_names, schema["name"])
                _check_names(schema["name"], [each["name"] for each in schema["fields"]])
                return AvroRecord(
                    schema["name"], _aliases(schema), tuple(self._field(each, inside) for each in schema["fields"])
                )
            case "enum":
                if not isinstance(schema["symbols"], list):
                    raise UsageError(f"the symbols of the Avro enum {schema['name']} must be a list")
                return AvroEnum(schema["name"], _aliases(schema), tuple(schema["symbols"]), schema.get("default"))
            case "fixed":
                return _with_logical(AvroFixed(schema["name"], _aliases(schema), _size(schema)), schema)
            case _ if isinstance(kind, str) and kind in PRIMITIVES:
                return _with_logical(AvroPrimitive(kind), schema)
            case _:
                return self.node(kind, open_names)

    def _field(self, field: Mapping[str, Any], open_names: tuple[str, ...]) -> AvroField:
        node = self.node(field["type"], open_names)
        return AvroField(field["name"], tuple(field.get("aliases", ())), node, "default" in field, field.get("default"))


def _size(schema: Mapping[str, Any]) -> int:
    """Of a fixed type. The parser passes anything on, and the kernel takes it for a number of bytes."""
    size = schema["size"]
    if type(size) is not int or not 0 <= size <= MOST_FIXED_BYTES:
        raise UsageError(
            f"the fixed type {schema['name']} has the size {size!r}: it must be a number from 0 to {MOST_FIXED_BYTES}"
        )
    return size


def _check_names(record: str, names: Sequence[object]) -> None:
    """That a record's fields have names, and each its own: the parser passes anything on, and columns are found by name."""
    if others := [name for name in names if not isinstance(name, str)]:
        raise UsageError(f"the Avro record {record} has a field whose name is {others[0]!r}: it must be text")
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise UsageError(f"the Avro record {record} has two fields {repeated[0]!r}; rename one")


def _aliases(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Full names: an alias without a namespace is in that of the type (as the specification has it)."""
    namespace, aliases = schema["name"].rpartition(".")[0], schema.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise UsageError(f"the aliases of the Avro type {schema['name']} must be a list of names, not {aliases!r}")
    return tuple(alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in aliases)


def _with_logical(node: AvroPrimitive | AvroFixed, schema: Mapping[str, Any]) -> AvroPrimitive | AvroFixed:
    logical = schema.get("logicalType")
    kind = "fixed" if isinstance(node, AvroFixed) else node.kind
    if not isinstance(logical, str) or kind not in _LOGICAL_ON.get(logical, ()):
        return node
    if isinstance(node, AvroFixed) and node.size != _LOGICAL_SIZES.get(logical, node.size):
        return node
    if logical != "decimal":
        return replace(node, logical=logical)
    precision, scale = schema["precision"], schema.get("scale", 0)
    return node if precision > MOST_DECIMAL_DIGITS else replace(node, logical=logical, precision=precision, scale=scale)


def only(schema: AvroType, fields: Sequence[str]) -> AvroType:
    """The same schema with only these fields of its record. A dotted name means one field of a field.

    With no field at all a record has none, and a schema that is not a record stays as it is. Raises UsageError for a field that
    there is not, and for fields of a schema that is not a record.
    """
    if not fields:
        return replace(schema, fields=()) if isinstance(schema, AvroRecord) else schema
    return _pruned(schema, fields, field_tree(fields))


def _pruned(schema: AvroType, fields: Sequence[str], wanted: Mapping[str, Any]) -> AvroType:
    match schema:
        case AvroArray():
            return AvroArray(_pruned(schema.items, fields, wanted))
        case AvroMap():
            return AvroMap(_pruned(schema.values, fields, wanted))
        case AvroUnion(branches) if sum(isinstance(each, AvroRecord) for each in branches) == 1:
            return AvroUnion(tuple(_pruned(e, fields, wanted) if isinstance(e, AvroRecord) else e for e in branches))
        case AvroRecord():
            pass
        case _:
            raise UsageError(f"fields {', '.join(map(repr, fields))} were asked for of a schema that is not a record")
    there = [field.name for field in schema.fields]
    unknown = [name for name in wanted if name not in there]
    if unknown:
        asked = ", ".join(map(repr, unknown))
        raise UsageError(f"record {schema.name} has the fields {', '.join(there)}; asked for: {asked}")
    kept = []
    for field in schema.fields:
        if (inner := wanted.get(field.name)) is not None:
            kept.append(replace(field, type=_pruned(field.type, list(inner), inner)) if inner else field)
    return replace(schema, fields=tuple(kept))
