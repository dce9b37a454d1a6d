"""From a writer's and a reader's Avro schema to a program: steps that read the writer's bytes into columns of the reader's.

Schema resolution as the specification has it, decided here once, and not for each value: fields by name and alias, defaults,
promotions, symbols, branches of unions. What a reader's schema does not have is skipped.
https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.connectors.formats.avro import decode as kernel
from headrace.connectors.formats.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroReference,
    AvroType,
    AvroUnion,
)
from headrace.enumerator.errors import UsageError

_INT = (-(1 << 31), (1 << 31) - 1)
_LONG = (-(1 << 63), (1 << 63) - 1)
_MILLIS_OF_A_DAY = 86_400_000
_LOGICAL_BOUNDS = {"time-millis": (0, _MILLIS_OF_A_DAY - 1), "time-micros": (0, 1000 * _MILLIS_OF_A_DAY - 1)}

_PLAIN_TYPES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL_TYPES: dict[str, pa.DataType] = {
    "uuid": pa.string(),
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "timestamp-nanos": pa.timestamp("ns", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
    "duration": pa.month_day_nano_interval(),
}
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
MOST_BRANCHES = 127
"""Branches of a union: as many as Arrow's dense unions can number."""


def arrow_type(schema: AvroType, path: str = "") -> pa.DataType:
    """The Arrow type of what is decoded by this reader's schema. All fields are nullable.

    A union of null and one type is that type. Any other is a dense union, whose fields are named after the branches. Raises
    UsageError, which names the field, for a type within itself, and for a union of more than MOST_BRANCHES branches.
    """
    match schema:
        case AvroPrimitive(logical="decimal") | AvroFixed(logical="decimal"):
            return pa.decimal128(schema.precision, schema.scale) if schema.precision <= 38 else _wide(schema)
        case AvroPrimitive() | AvroFixed() if schema.logical is not None:
            return _LOGICAL_TYPES[schema.logical]
        case AvroPrimitive():
            return _PLAIN_TYPES[schema.kind]
        case AvroFixed():
            return pa.binary(schema.size)
        case AvroEnum():
            return pa.dictionary(pa.int32(), pa.string())
        case AvroArray():
            return pa.list_(pa.field("item", arrow_type(schema.items, f"{path}[]")))
        case AvroMap():
            return pa.map_(pa.string(), pa.field("value", arrow_type(schema.values, f"{path}{{}}")))
        case AvroRecord():
            return pa.struct(
                [pa.field(each.name, arrow_type(each.type, inside_path(path, each.name))) for each in schema.fields]
            )
        case AvroUnion():
            return _union_type(schema, path)
        case AvroReference():
            raise UsageError(
                f"Avro type {schema.name} contains itself{_at(path)}, and no Arrow type does; ask only for fields without it, "
                "or for its JSON: recursive='json' (as an option: valueRecursive=json)"
            )


def _wide(schema: AvroPrimitive | AvroFixed) -> pa.DataType:
    return pa.decimal256(schema.precision, schema.scale)


def check_union(schema: AvroUnion, path: str) -> None:
    """That no branch is a union, for which a program has no step; it can be skipped."""
    if any(isinstance(branch, AvroUnion) for branch in schema.branches):
        raise UsageError(
            f"the Avro schema has a union directly in a union{_at(path)}, which Avro does not allow; make it one union"
        )


def _union_type(schema: AvroUnion, path: str) -> pa.DataType:
    check_union(schema, path)
    simple = nullable(schema)
    if simple is not None:
        return arrow_type(simple, path)
    if len(schema.branches) > MOST_BRANCHES:
        raise UsageError(f"the Avro union{_at(path)} has {len(schema.branches)} branches; at most {MOST_BRANCHES} can be read")
    fields = [pa.field(type_name(each), arrow_type(each, inside_path(path, type_name(each)))) for each in schema.branches]
    return pa.dense_union(fields)


def nullable(schema: AvroUnion) -> AvroType | None:
    """The one type alongside null of a union, or null where there is nothing else; None if there are several."""
    others = [each for each in schema.branches if each != AvroPrimitive("null")]
    return None if len(others) > 1 else others[0] if others else AvroPrimitive("null")


def type_name(schema: AvroType) -> str:
    """How Avro names a type, as in a union."""
    match schema:
        case AvroPrimitive():
            return schema.kind
        case AvroFixed() | AvroEnum() | AvroRecord() | AvroReference():
            return schema.name
        case AvroArray():
            return "array"
        case AvroMap():
            return "map"
        case AvroUnion():
            return "union"


def inside_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f" at field {path!r}" if path else ""


@dataclass(frozen=True)
class _Target:
    """A column under construction, its Arrow type, and those inside it."""

    column: Any  # of the kernel, which is untyped
    kind: pa.DataType
    inside: tuple[_Target, ...] = ()


@dataclass(frozen=True)
class Program:
    """What reads values: `step` into `column`, which becomes an array of `kind`. `places`: fields by a step's number.

    `used` is what all its steps share while they read a value.
    """

    step: Any  # of the kernel, which is untyped
    budget: Any
    column: Any
    kind: pa.DataType
    places: Sequence[str]


def compile_program(writer: AvroType, reader: AvroType) -> Program:
    """The program that reads values of `writer` as `reader` wants them.

    Raises UsageError, which names the field, where the two cannot be resolved whatever the values are: types that do not
    match, a field without a default that the writer does not have, two different logical types.
    """
    compiler = _Compiler(writer)
    target = _target(reader, arrow_type(reader))
    step = compiler.step(writer, reader, target, "")
    return Program(step, compiler.budget, target.column, target.kind, compiler.places)


def check_resolves(writer: AvroType, reader: AvroType, field: Sequence[str]) -> None:
    """That a field of the reader's, which no program reads, can be resolved as far as records lead to it.

    Raises UsageError as `compile_program` does.
    """
    path = ""
    for name in field:
        records = [nullable(each) if isinstance(each, AvroUnion) else each for each in (writer, reader)]
        match records:
            case [AvroRecord() as there, AvroRecord() as here]:
                pass
            case _:  # each value decides
                return
        inside = inside_path(path, name)
        wanted = next(each for each in here.fields if each.name == name)
        index = here.fields.index(wanted)
        written = next((each for each in there.fields if _fields(there, here).get(each.name) == index), None)
        if written is None:
            if not wanted.has_default:
                raise _lacking(here, inside)
            return
        if _choice(written.type, wanted.type) is None:
            raise UsageError(
                f"the reader's Avro schema wants {_said(wanted.type)}{_at(inside)}; the writer's has {_said(written.type)}"
            )
        writer, reader, path = written.type, wanted.type, inside


def _lacking(record: AvroRecord, path: str) -> UsageError:
    return UsageError(
        f"the reader's Avro schema {record.name} has a field {path!r} that the writer's has not; give it a default"
    )


def _target(schema: AvroType, kind: pa.DataType) -> _Target:
    """An empty column for a reader's schema."""
    match schema:
        case AvroUnion():
            return _union_target(schema, kind)
        case AvroRecord():
            inside = tuple(_target(each.type, kind.field(i).type) for i, each in enumerate(schema.fields))
            return _Target(kernel.Struct([each.column for each in inside]), kind, inside)
        case AvroArray():
            item = _target(schema.items, kind.value_type)
            return _Target(kernel.Lists(item.column), kind, (item,))
        case AvroMap():
            keys, values = _Target(kernel.Binary(), pa.string()), _target(schema.values, kind.item_type)
            entries = _Target(kernel.Struct([keys.column, values.column]), pa.null())
            return _Target(kernel.Lists(entries.column), kind, (entries, keys, values))
        case AvroEnum():
            return _Target(kernel.Symbols(schema.symbols), kind)
    if pa.types.is_null(kind):
        return _Target(kernel.Nulls(), kind)
    if pa.types.is_boolean(kind):
        return _Target(kernel.Bits(), kind)
    if kind in (pa.binary(), pa.string()):
        return _Target(kernel.Binary(), kind)
    return _Target(kernel.Fixed(kind.bit_width // 8), kind)


def _union_target(schema: AvroUnion, kind: pa.DataType) -> _Target:
    simple = nullable(schema)
    if simple is not None:
        return _target(simple, kind)
    inside = tuple(_target(each, kind.field(i).type) for i, each in enumerate(schema.branches))
    null = next((i for i, each in enumerate(schema.branches) if each == AvroPrimitive("null")), 0)
    return _Target(kernel.Dense([each.column for each in inside], null), kind, inside)


class _Compiler:
    """Makes steps. `places` are the fields that they are for."""

    def __init__(self, writer: AvroType) -> None:
        self.places: list[str] = []
        self.budget = kernel.Budget()
        self._numbers: dict[str, int] = {}
        self._named = dict(_named(writer))
        self._skipping: dict[str, Any] = {}

    def _place(self, path: str) -> int:
        if path not in self._numbers:
            self._numbers[path] = len(self.places)
            self.places.append(path)
        return self._numbers[path]

    # Reading

    def step(self, writer: AvroType, reader: AvroType, target: _Target, path: str) -> Any:  # noqa: ANN401 - of the kernel
        """The step that reads a value of `writer` into a target of `reader`."""
        place = self._place(path)
        if isinstance(writer, AvroUnion):
            return self._branches(writer, reader, target, path)
        if isinstance(reader, AvroUnion):
            return self._into_union(writer, reader, target, path)
        if not matches(writer, reader):
            raise UsageError(f"the reader's Avro schema wants {_said(reader)}{_at(path)}; the writer's has {_said(writer)}")
        match writer, reader:
            case AvroRecord(), AvroRecord():
                return self._record(writer, reader, target, path)
            case AvroArray(), AvroArray():
                item = self.step(writer.items, reader.items, target.inside[0], f"{path}[]")
                return kernel.ReadItems(place, self.budget, target.column, item, least_size(writer.items), None, None)
            case AvroMap(), AvroMap():
                entries, keys, values = target.inside
                item = self.step(writer.values, reader.values, values, f"{path}{{}}")
                least = 1 + least_size(writer.values)
                return kernel.ReadItems(place, self.budget, target.column, item, least, keys.column, entries.column)
            case AvroEnum(), AvroEnum():
                default = -1 if reader.default is None else reader.symbols.index(reader.default)
                known = {symbol: number for number, symbol in enumerate(reader.symbols)}
                return kernel.ReadEnum(place, target.column, [known.get(symbol, default) for symbol in writer.symbols])
            case AvroFixed(), AvroFixed():
                _check_logical(writer, reader, path)
                return _fixed_step(place, reader, target.column)
            case AvroPrimitive(), AvroPrimitive():
                _check_logical(writer, reader, path)
                return _primitive_step(place, writer.kind, reader, target.column)
            case _:
                raise UsageError(f"Avro type {type_name(writer)} contains itself{_at(path)}, and cannot be read")

    def _branches(self, writer: AvroUnion, reader: AvroType, target: _Target, path: str) -> Any:  # noqa: ANN401 - of the kernel
        check_union(writer, path)
        place = self._place(path)
        fits = [_choice(branch, reader) is not None for branch in writer.branches]
        if not any(fits):
            raise UsageError(f"the reader's Avro schema wants {_said(reader)}{_at(path)}; the writer's has {_said(writer)}")
        return kernel.ReadBranch(
            place,
            [
                self.step(branch, reader, target, path) if fit else kernel.Step(place)
                for branch, fit in zip(writer.branches, fits, strict=True)
            ],
        )

    def _into_union(self, writer: AvroType, reader: AvroUnion, target: _Target, path: str) -> Any:  # noqa: ANN401 - of the kernel
        chosen = _choice(writer, reader)
        if chosen is None:
            raise UsageError(f"the reader's Avro schema wants {_said(reader)}{_at(path)}; the writer's has {_said(writer)}")
        branch = reader.branches[chosen]
        if nullable(reader) is None:
            step = self.step(writer, branch, target.inside[chosen], path)
            return kernel.IntoUnion(self._place(path), step, target.column, chosen)
        if branch == AvroPrimitive("null"):
            return kernel.ReadNull(self._place(path), target.column)
        return self.step(writer, branch, target, path)

    def _record(self, writer: AvroRecord, reader: AvroRecord, target: _Target, path: str) -> Any:  # noqa: ANN401 - of the kernel
        steps: list[Any] = []
        chosen = _fields(writer, reader)
        for field in writer.fields:
            index = chosen.get(field.name)
            if index is None:
                steps += self._skips(field.type, inside_path(path, field.name))
                continue
            wanted = reader.fields[index]
            steps.append(self.step(field.type, wanted.type, target.inside[index], inside_path(path, wanted.name)))
        for index in sorted(set(range(len(reader.fields))) - set(chosen.values())):
            steps.append(self._default(reader, reader.fields[index], target.inside[index], path))
        return kernel.ReadFields(self._place(path), self._joined(steps, path), target.column)

    def _default(self, record: AvroRecord, field: AvroField, target: _Target, path: str) -> Any:  # noqa: ANN401 - of the kernel
        inside = inside_path(path, field.name)
        if not field.has_default:
            raise _lacking(record, inside)
        step = self.step(field.type, field.type, target, inside)
        return kernel.Default(self._place(inside), step, encoded_default(field.type, field.default, inside))

    # Skipping

    def _joined(self, steps: Sequence[Any], path: str) -> list[Any]:
        """Numbers are sizes to be skipped: each run of them becomes one step."""
        joined: list[Any] = []
        run: list[int] = []
        for step in [*steps, None]:
            if isinstance(step, int):
                run.append(step)
                continue
            if run:
                joined.append(kernel.SkipRun(self._place(path), run))
                run = []
            if step is not None:
                joined.append(step)
        return joined

    def _skip(self, writer: AvroType, path: str) -> Any:  # noqa: ANN401 - of the kernel
        """One step that skips a value."""
        steps = self._joined(self._skips(writer, path), path)
        if len(steps) == 1:
            return steps[0]
        return kernel.SkipSteps(self._place(path), steps)

    def _skips(self, writer: AvroType, path: str) -> list[Any]:
        """Sizes and steps that skip a value."""
        place = self._place(path)
        match writer:
            case AvroPrimitive():
                return [_SIZES.get(writer.kind, kernel.PREFIXED if writer.kind in ("bytes", "string") else kernel.VARINT)]
            case AvroFixed():
                return [writer.size]
            case AvroEnum():
                return [kernel.VARINT]
            case AvroUnion():
                return [kernel.ReadBranch(place, [self._skip(branch, path) for branch in writer.branches])]
            case AvroArray():
                return [kernel.SkipItems(place, self.budget, self._skip(writer.items, path), least_size(writer.items))]
            case AvroMap():
                entry = kernel.SkipSteps(place, self._joined([kernel.PREFIXED, *self._skips(writer.values, path)], path))
                return [kernel.SkipItems(place, self.budget, entry, 1 + least_size(writer.values))]
            case AvroRecord():
                if refers(writer, writer.name):
                    return [self._recursive(writer.name, path)]
                return [each for field in writer.fields for each in self._skips(field.type, inside_path(path, field.name))]
            case AvroReference():
                return [self._recursive(writer.name, path)]

    def _recursive(self, name: str, path: str) -> Any:  # noqa: ANN401 - of the kernel
        """The step that skips a type which contains itself: one object, made once."""
        if name not in self._skipping:
            self._skipping[name] = kernel.SkipRecursive(self._place(path), self.budget)
            fields = self._named[name].fields
            steps = [each for field in fields for each in self._skips(field.type, inside_path(path, field.name))]
            self._skipping[name].set_steps(self._joined(steps, path))
        return self._skipping[name]


def _named(schema: AvroType) -> Iterator[tuple[str, AvroRecord]]:
    """The records in a schema, by name."""
    if isinstance(schema, AvroRecord):
        yield schema.name, schema
    for each in children(schema):
        yield from _named(each)


def children(schema: AvroType) -> list[AvroType]:
    """The types that a type is made of."""
    match schema:
        case AvroRecord():
            return [field.type for field in schema.fields]
        case AvroUnion():
            return [*schema.branches]
        case AvroArray():
            return [schema.items]
        case AvroMap():
            return [schema.values]
        case _:
            return []


def refers(schema: AvroType, name: str) -> bool:
    """Whether a type of this name is within itself somewhere in the schema."""
    return schema == AvroReference(name) or any(refers(each, name) for each in children(schema))


def least_size(schema: AvroType) -> int:
    """Bytes that a value of this writer's schema has at least."""
    match schema:
        case AvroPrimitive():
            return _SIZES.get(schema.kind, 1)
        case AvroFixed():
            return schema.size
        case AvroRecord():
            return sum(least_size(field.type) for field in schema.fields)
        case _:  # a number at least; a type within itself has a union, an array or a map
            return 1


def _said(schema: AvroType) -> str:
    if isinstance(schema, AvroUnion):
        return f"a union of {', '.join(map(type_name, schema.branches))}"
    return f"{type_name(schema)} of {schema.size} bytes" if isinstance(schema, AvroFixed) else type_name(schema)


def matches(writer: AvroType, reader: AvroType) -> bool:
    """Whether a value of the one may be read as the other, without a check inside records. Neither is a union.

    Names match without their namespaces; an alias of the reader's matches the full name, or a name without a namespace.
    """
    match writer, reader:
        case AvroPrimitive(), AvroPrimitive():
            return writer.kind == reader.kind or reader.kind in _PROMOTIONS.get(writer.kind, ())
        case AvroArray(), AvroArray():
            return _choice(writer.items, reader.items) is not None
        case AvroMap(), AvroMap():
            return _choice(writer.values, reader.values) is not None
        case AvroFixed(), AvroFixed():
            return writer.size == reader.size and _names_match(writer, reader)
        case AvroEnum(), AvroEnum():
            return _names_match(writer, reader)
        case AvroRecord(), AvroRecord():
            return _names_match(writer, reader)
        case AvroReference() | AvroRecord(), AvroReference() | AvroRecord():
            return _last(writer.name) == _last(reader.name)
        case _:
            return False


def _names_match(writer: AvroFixed | AvroEnum | AvroRecord, reader: AvroFixed | AvroEnum | AvroRecord) -> bool:
    names = {_last(reader.name), *reader.aliases, *map(_last, reader.aliases)}
    return writer.name in names or _last(writer.name) in names


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _choice(writer: AvroType, reader: AvroType) -> int | None:
    """Which branch of a reader's union a writer's value goes to (0 without a union); None if it has no place.

    The branch that is the same type, else one of the same name and kind, else the first that matches: so a union that both
    sides share keeps its branches, where an `int` would else go to a `long` that is before it.
    """
    if isinstance(writer, AvroUnion):
        return next((0 for branch in writer.branches if _choice(branch, reader) is not None), None)
    branches = reader.branches if isinstance(reader, AvroUnion) else (reader,)
    fitting = [i for i, branch in enumerate(branches) if matches(writer, branch)]
    same = [i for i in fitting if branches[i] == writer]
    named = [i for i in fitting if type_name(branches[i]) == type_name(writer)]
    return next(iter([*same, *named, *fitting]), None)


def _fields(writer: AvroRecord, reader: AvroRecord) -> dict[str, int]:
    """The reader's fields, as indices, by the names of the writer's: those of the same name, then those of an alias."""
    there = {field.name for field in writer.fields}
    chosen = {field.name: index for index, field in enumerate(reader.fields) if field.name in there}
    for index, field in enumerate(reader.fields):
        if field.name not in there:
            former = next((alias for alias in field.aliases if alias in there and alias not in chosen), None)
            if former is not None:
                chosen[former] = index
    return chosen


def _check_logical(writer: AvroPrimitive | AvroFixed, reader: AvroPrimitive | AvroFixed, path: str) -> None:
    """Raise UsageError for two logical types: the bytes of the one would be read as another time, or another number."""
    if writer.logical is None or reader.logical is None:
        return
    if (writer.logical, writer.scale) != (reader.logical, reader.scale):
        said = [f"{each.logical}{f' of scale {each.scale}' if each.logical == 'decimal' else ''}" for each in (reader, writer)]
        raise UsageError(
            f"the reader's Avro schema wants {said[0]}{_at(path)}; the writer's has {said[1]}; they are not converted"
        )


def _fixed_step(place: int, reader: AvroFixed, column: Any) -> Any:  # noqa: ANN401 - of the kernel
    match reader.logical:
        case "decimal":
            return kernel.ReadDecimal(place, column, reader.size, reader.precision)
        case "uuid":
            return kernel.ReadUuid(place, column)
        case "duration":
            return kernel.ReadDuration(place, column)
        case _:
            return kernel.ReadBytes(place, column)


def _primitive_step(place: int, kind: str, reader: AvroPrimitive, column: Any) -> Any:  # noqa: ANN401 - of the kernel
    """The step from the writer's primitive type to the reader's."""
    bounds = _INT if kind == "int" else _LONG
    match kind, reader.kind:
        case "null", _:
            return kernel.ReadNull(place, column)
        case "boolean", _:
            return kernel.ReadBoolean(place, column)
        case "int" | "long", "int" | "long":
            logical = _LOGICAL_BOUNDS.get(reader.logical or "")
            return kernel.ReadInt(place, column, *(logical or bounds), is_logical=logical is not None)
        case "int" | "long", _:
            return kernel.ReadIntAsFloat(place, column, *bounds)
        case "float", "double":
            return kernel.ReadFloatAsDouble(place, column)
        case "float" | "double", _:
            return kernel.ReadBytes(place, column)
        case _ if reader.logical == "decimal":
            return kernel.ReadDecimal(place, column, 0, reader.precision)
        case _:
            return kernel.ReadBinary(place, column, is_text=reader.kind == "string")


def encoded_default(schema: AvroType, value: Any, path: str) -> bytes:  # noqa: ANN401 - JSON
    """A default's JSON value in Avro's encoding. Raises UsageError, which names the field, where it does not fit the type."""
    try:
        return b"".join(_encoded(schema, value))
    except (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError) as error:
        raise UsageError(f"the Avro default{_at(path)} is not of type {type_name(schema)}: {value!r}") from error


def _encoded(schema: AvroType, value: Any) -> Iterator[bytes]:  # noqa: ANN401 - JSON
    match schema:
        case AvroPrimitive():
            yield _encoded_primitive(schema.kind, value)
        case AvroFixed():
            if len(value) != schema.size:
                raise ValueError(value)
            yield value.encode("latin-1")
        case AvroEnum():
            yield varint(schema.symbols.index(value))
        case AvroArray():
            if value:
                yield varint(len(value))
            for item in value:
                yield from _encoded(schema.items, item)
            yield varint(0)
        case AvroMap():
            if value:
                yield varint(len(value))
            for key, item in value.items():
                yield _encoded_primitive("string", key)
                yield from _encoded(schema.values, item)
            yield varint(0)
        case AvroRecord():
            for field in schema.fields:
                yield from _encoded(
                    field.type, value.get(field.name, field.default) if field.has_default else value[field.name]
                )
        case AvroUnion():
            yield _encoded_branch(schema, value)
        case AvroReference():
            raise ValueError(schema.name)


def _encoded_branch(schema: AvroUnion, value: Any) -> bytes:  # noqa: ANN401 - JSON
    """Of the first branch that fits; before version 1.12 of the specification that had to be the first."""
    for number, branch in enumerate(schema.branches):
        try:
            return b"".join([varint(number), *_encoded(branch, value)])
        except (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError):
            continue
    raise ValueError(value)


def _encoded_primitive(kind: str, value: Any) -> bytes:  # noqa: ANN401 - JSON
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    least, most = _INT if kind == "int" else _LONG
    match kind:
        case "null" if value is None:
            return b""
        case "boolean" if isinstance(value, bool):
            return bytes([value])
        case "int" | "long" if is_number and int(value) == value and least <= value <= most:
            return varint(int(value))
        case "float" | "double" if is_number or value in ("NaN", "Infinity", "-Infinity"):
            return struct.pack("<f" if kind == "float" else "<d", float(value))
        case "bytes" if isinstance(value, str):
            encoded = value.encode("latin-1")
            return varint(len(encoded)) + encoded
        case "string" if isinstance(value, str):
            encoded = value.encode()
            return varint(len(encoded)) + encoded
    raise ValueError(value)


def varint(number: int) -> bytes:
    """A number as Avro writes it, of 64 bits."""
    raw = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)
