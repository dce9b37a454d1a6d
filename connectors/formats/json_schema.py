"""JSON values by a JSON Schema: columns of its properties, and back.

What has no Arrow type (alternatives of several types, anything at all, properties without names) is refused by name, and can be
left out by asking for other fields. A value is not validated beyond its types, as a registry's writers do that.
https://json-schema.org/draft/2020-12/json-schema-core, https://json-schema.org/draft-07/json-schema-release-notes
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.arguments import at_least, text, texts
from headrace.connectors.formats.json_references import Location, located
from headrace.connectors.formats.json_values import WholeNumbers
from headrace.connectors.formats.value_format import DecodedValues, ValueFormat, as_binary, field_tree
from headrace.enumerator.errors import UsageError

_PLAIN = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_OF_PARTS = ("oneOf", "anyOf", "allOf")
_MOST_NODES = 10_000
_LONGEST = 2**31 - 1
_NO_NUMBERS = '"(?:NaN|-?Infinity)"'
_NULLS_AND_NO_NUMBERS = f"null|{_NO_NUMBERS}"
_Schemas = Sequence[tuple[Any, Location]]
"""Schemas that all hold for a value, each with where it is."""


class JsonSchemaFormat(ValueFormat):
    """JSON values as the columns of a JSON Schema's properties.

    `schema`: its JSON text. `references`: texts of the schemas to which a `$ref` leads, by the names that it uses, or by their
    own `$id`. `fields`: only these properties, `"address.city"` is one of a property, a name with a dot is between backticks,
    and none makes an empty struct; the default is all. `header_bytes` (default 0) are skipped at the start of each value.

    `integer` is `int64`, `number` `double`; an object is a struct, an array a list; a property that is absent is null.
    Raises UsageError for what is not JSON Schema, for a field that it does not have, and for one that has no Arrow type.
    """

    def __init__(
        self,
        schema: str,
        *,
        references: Mapping[str, str] | None = None,
        fields: Sequence[str] | None = None,
        header_bytes: int = 0,
    ) -> None:
        text("schema", schema)
        texts("references", references or {})
        at_least("header_bytes", header_bytes, 0)
        self._made_by = partial(JsonSchemaFormat, schema, references=references, fields=fields, header_bytes=header_bytes)
        document = _document(schema)
        at = located(document, {name: _document(each) for name, each in (references or {}).items()})
        self._node = _Reader().node(((document, at),), "", None if fields is None else field_tree(fields))
        self._values = WholeNumbers(self._node.kind)
        self._header_bytes = header_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its arguments."""
        return self._made_by, ()

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the schema, with the fields that are asked for."""
        return self._node.kind

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `ValueFormat` says. Bad: what is not one JSON value in UTF-8, and what does not fit the type."""
        binary = as_binary(values)
        # with an end, as Arrow counts too much space without one
        return self._values.decode(pc.binary_slice(binary, self._header_bytes, _LONGEST) if self._header_bytes else binary)

    def encode(self, values: pa.Array) -> pa.Array:
        """As `ValueFormat` says. A null is written where the schema allows it, and is left out where it does not.

        Raises UsageError for a null that is required, for NaN and for an infinity.
        """
        encoded = self._values.encode(values)
        looked_at = _NULLS_AND_NO_NUMBERS if self._node.may_leave_out else _NO_NUMBERS
        rows = pc.indices_nonzero(pc.match_substring_regex(encoded, looked_at)).to_pylist()
        if not rows:
            return encoded
        found = encoded.to_pylist()
        for row in rows:
            found[row] = self._checked(found[row], row)
        return pa.array(found, pa.binary())

    def _checked(self, text: bytes, row: int) -> bytes:
        try:
            found = json.loads(text, parse_int=lambda digits: -0.0 if digits == "-0" else int(digits))
            return json.dumps(self._node.written(found, ""), ensure_ascii=False, separators=(",", ":")).encode()
        except UsageError as error:
            raise UsageError(f"row {row} cannot be written by the JSON Schema: {error}") from None


@dataclass(frozen=True)
class _Node:
    """What a schema reports about a value: its type, whether it may be null, and the same of what is in it."""

    kind: pa.DataType
    nullable: bool
    fields: Mapping[str, _Node] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    items: _Node | None = None

    @property
    def may_leave_out(self) -> bool:
        """Whether a null anywhere in it cannot be written as one."""
        inside = [*self.fields.values(), *([self.items] if self.items is not None else [])]
        return any(not each.nullable or each.may_leave_out for each in inside)

    def written(self, value: Any, path: str) -> Any:  # noqa: ANN401 - JSON
        """A value without the nulls that the schema does not allow. Raises UsageError where it needs another value."""
        if isinstance(value, str) and pa.types.is_floating(self.kind):
            raise UsageError(f"the number{_at(path)} is {value}, which JSON does not have")
        if isinstance(value, dict):
            return {name: each for name, each in self._written(value, path) if each is not None or self.fields[name].nullable}
        if isinstance(value, list) and self.items is not None:
            if None in value and not self.items.nullable:
                raise UsageError(f"field '{path}[]' is null, which its schema does not allow")
            return [self.items.written(each, f"{path}[]") for each in value]
        return value

    def _written(self, value: Mapping[str, Any], path: str) -> list[tuple[str, Any]]:
        found = []
        for name, each in value.items():
            inside = f"{path}.{name}" if path else name
            node = self.fields[name]
            if each is None and name in self.required and not node.nullable:
                raise UsageError(f"field '{inside}' is required, and null")
            found.append((name, node.written(each, inside)))
        return found


@dataclass(frozen=True)
class _Limits:
    """What schemas that all hold for a value say together. Each schema within them is given with where it is.

    `kinds`: the types it may have; None where no schema says it. `nullable` likewise. `constants`: both, by an `enum` or a
    `const`, which count where nothing else says them. `schemas`: identities of the schemas, but of those that only refer.
    """

    kinds: Sequence[str] | None = None
    nullable: bool | None = None
    constants: tuple[Sequence[str], bool] | None = None
    properties: Mapping[str, _Schemas] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    items: _Schemas = ()
    schemas: frozenset[int] = frozenset()


def _joined(limits: Sequence[_Limits], path: str) -> _Limits:
    """What these say together. Raises UsageError where no type is in all of them."""
    kinds: Sequence[str] | None = None
    properties: dict[str, list[tuple[Any, Location]]] = {}
    for each in limits:
        kinds = _of_both(kinds, each.kinds, path)
        for name, schemas in each.properties.items():
            properties.setdefault(name, []).extend(schemas)
    nullable = [each.nullable for each in limits if each.nullable is not None]
    constants = [each.constants for each in limits if each.constants is not None]
    return _Limits(
        kinds,
        all(nullable) if nullable else None,
        constants[0] if constants else None,
        properties,
        frozenset[str]().union(*(each.required for each in limits)),
        [schema for each in limits for schema in each.items],
        frozenset[int]().union(*(each.schemas for each in limits)),
    )


class _Reader:
    """Reads nodes of one document and of those that it refers to."""

    def __init__(self) -> None:
        self._nodes_open: list[frozenset[int]] = []
        self._open: list[int] = []
        self._nodes = 0

    def node(self, schemas: _Schemas, path: str, wanted: Mapping[str, Any] | None) -> _Node:
        """The node of a value for which all these schemas hold; `wanted`: which fields, as a tree (None: all)."""
        limits = _joined([self._limits(schema, at, path) for schema, at in schemas], path)
        if limits.schemas in self._nodes_open:
            raise _contains_itself(path)
        self._nodes_open.append(limits.schemas)
        try:
            return self._read(limits, path, wanted)
        finally:
            self._nodes_open.pop()

    def _read(self, limits: _Limits, path: str, wanted: Mapping[str, Any] | None) -> _Node:
        kinds, nullable = limits.kinds, bool(limits.nullable)
        if kinds is None and limits.constants is not None:
            kinds, nullable = limits.constants[0], limits.constants[1] and limits.nullable is not False
        match kinds:
            case None:
                raise _no_type(path, "allows any value")
            case []:
                return _Node(pa.null(), nullable=True)
            case ["object"]:
                return replace(self._object(limits, path, wanted), nullable=nullable)
            case ["array"]:
                inner = self.node(limits.items, f"{path}[]", wanted)
                return _Node(pa.list_(inner.kind), nullable, items=inner)
            case [kind]:
                if wanted:
                    raise UsageError(f"field '{path}' is {kind}, and has no fields; asked for: {', '.join(wanted)}")
                return _Node(_PLAIN[kind], nullable)
        raise _no_type(path, f"may be {' or '.join(kinds)}")

    def _object(self, limits: _Limits, path: str, wanted: Mapping[str, Any] | None) -> _Node:
        properties = limits.properties
        if wanted is not None and not wanted:
            return _Node(pa.struct([]), nullable=False)
        if not properties:
            raise _no_type(path, "is an object without named properties")
        unknown = [name for name in wanted or () if name not in properties]
        if unknown:
            raise UsageError(f"the JSON Schema has the fields {', '.join(properties)}{_at(path)}; asked for: {unknown[0]!r}")
        names = [name for name in properties if wanted is None or name in wanted]
        inner = {name: (wanted[name] or None) if wanted is not None else None for name in names}
        fields = {name: self.node(properties[name], _inside(path, name), inner[name]) for name in names}
        kind = pa.struct([(name, each.kind) for name, each in fields.items()])
        return _Node(kind, nullable=False, fields=fields, required=limits.required & fields.keys())

    def _limits(self, schema: Any, at: Location, path: str) -> _Limits:  # noqa: ANN401 - JSON
        """Of one schema, with those that it refers to or is put together of."""
        self._nodes += 1
        if self._nodes > _MOST_NODES:
            raise UsageError(f"the JSON Schema has more than {_MOST_NODES} parts, each use counted")
        if not isinstance(schema, dict):
            return _Limits()
        if id(schema) in self._open:
            raise _contains_itself(path)
        self._open.append(id(schema))
        try:
            said = schema if "$ref" not in schema or at.applies_siblings else {}
            parts = [_Limits(schemas=frozenset({id(schema)} if schema.keys() != {"$ref"} else ())), _own(said, at, path)]
            parts += [self._alternative(said[word], at, path) for word in ("oneOf", "anyOf") if word in said]
            if "$ref" in schema:
                parts.append(self._limits(*self._referred(schema["$ref"], at, path), path))
            parts += [self._limits(each, at.inside(each), path) for each in _list(said.get("allOf"))]
            return _joined(parts, path)
        finally:
            self._open.pop()

    def _alternative(self, branches: Any, at: Location, path: str) -> _Limits:  # noqa: ANN401 - JSON
        """One type, or null. Of alternatives that only restrict an object further, nothing is known."""
        if not isinstance(branches, list):
            raise UsageError(f"this is not a JSON Schema: its alternatives{_at(path)} are not a list")
        others = [each for each in branches if not (isinstance(each, dict) and each.get("type") == "null")]
        if len(others) > 1 and all(map(_restricts, others)):
            return _Limits()
        if len(others) != 1:
            raise _no_type(path, f"is one of {len(others)} alternatives")
        inner = self._limits(others[0], at.inside(others[0]), path)
        return replace(inner, nullable=True) if len(others) < len(branches) else inner

    def _referred(self, ref: Any, at: Location, path: str) -> tuple[Any, Location]:  # noqa: ANN401 - JSON
        """The schema to which a reference leads, and where that is."""
        self._nodes += 1
        if not isinstance(ref, str) or self._nodes > _MOST_NODES:
            raise UsageError(f"this is not a JSON Schema: a $ref{_at(path)} is not text, or leads to itself")
        url, _, fragment = ref.partition("#")
        try:
            found, at = at.document(url) if url else at.part("")
        except LookupError:
            raise UsageError(f"the JSON Schema refers to {ref!r}{_at(path)}, which is not among its references") from None
        try:
            return at.part(fragment) if fragment else (found, at)
        except LookupError:
            raise UsageError(f"the JSON Schema refers to {ref!r}{_at(path)}, which there is not") from None


def _own(schema: Mapping[str, Any], at: Location, path: str) -> _Limits:
    """What a schema says itself, without those that it is put together of."""
    if "prefixItems" in schema:
        raise _no_type(path, "is an array whose first items have other schemas")
    properties, required = schema.get("properties"), schema.get("required")
    kinds, nullable = _kinds(schema, path)
    return _Limits(
        kinds,
        nullable,
        _constants(schema),
        {name: ((each, at.inside(each)),) for name, each in properties.items()} if isinstance(properties, dict) else {},
        frozenset(each for each in _list(required) if isinstance(each, str)),
        ((schema["items"], at.inside(schema["items"])),) if "items" in schema else (),
    )


def _kinds(schema: Mapping[str, Any], path: str) -> tuple[list[str] | None, bool | None]:
    """The types that a value may have, and whether it may be null."""
    said = schema.get("type")
    nullable = True if schema.get("nullable") is True else None
    if said is None:
        return (["object"] if "properties" in schema else None), nullable
    kinds = [said] if isinstance(said, str) else said
    if not isinstance(kinds, list) or not kinds:
        raise _no_type(path, "allows any value")
    if unknown := [each for each in kinds if each not in ("null", "object", "array", *_PLAIN)]:
        raise UsageError(f"this is not a JSON Schema: there is no type {unknown[0]!r}{_at(path)}")
    others = _without_null(kinds)
    return others, nullable or "null" in kinds


def _constants(schema: Mapping[str, Any]) -> tuple[list[str], bool] | None:
    """The types of its constants, and whether null is among them; None where it has no constants."""
    if "enum" not in schema and "const" not in schema:
        return None
    constants = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
    kinds = sorted({_name_of(each) for each in constants})
    return _without_null(kinds), "null" in kinds


def _without_null(kinds: Sequence[str]) -> list[str]:
    """The types but null. Each integer is a number."""
    others = [each for each in kinds if each != "null"]
    return ["number"] if sorted(others) == ["integer", "number"] else others


def _of_both(kinds: Sequence[str] | None, more: Sequence[str] | None, path: str) -> Sequence[str] | None:
    """The types in both; an integer is a number, too. Raises UsageError where there are none, though each has some."""
    if kinds is None or more is None:
        return more if kinds is None else kinds
    both = [each for each in kinds if each in more or (each == "integer" and "number" in more)]
    both += [each for each in more if each == "integer" and "number" in kinds and each not in both]
    if not both and kinds and more:
        raise _no_type(path, f"has to be {' or '.join(kinds)} and {' or '.join(more)} at once")
    return both


def _list(value: object) -> list[Any]:
    """Nothing for what is none."""
    return value if isinstance(value, list) else []


def _restricts(branch: object) -> bool:
    """Whether it says nothing of an object's fields and their types."""
    said = {"properties", "items", "$ref", "enum", "const", *_OF_PARTS}
    return isinstance(branch, dict) and branch.get("type", "object") == "object" and not branch.keys() & said


def _name_of(value: Any) -> str:  # noqa: ANN401 - JSON
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _document(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"this is not a JSON Schema: {error}") from error


def _contains_itself(path: str) -> UsageError:
    return UsageError(f"the JSON Schema contains itself{_at(path)}, and no Arrow type does; ask only for fields without it")


def _no_type(path: str, why: str) -> UsageError:
    return UsageError(f"the JSON Schema {why}{_at(path)}, for which there is no Arrow type; ask only for other fields")


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f" at field '{path}'" if path else ""
