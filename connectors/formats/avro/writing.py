"""Binds an Avro schema to an Arrow column: the tree of parts that writes its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.nested import plain, visible
from headrace.connectors.formats.avro import encode as kernel
from headrace.connectors.formats.avro.program import arrow_type, check_union, inside_path, nullable
from headrace.connectors.formats.avro.schema import AvroArray, AvroEnum, AvroMap, AvroPrimitive, AvroRecord, AvroType, AvroUnion
from headrace.connectors.formats.value_format import check_values, exactly
from headrace.enumerator.errors import UsageError

_UUID = r"\A[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\z"


def encode(schema: AvroType, values: pa.Array) -> pa.Array:
    """Each value in Avro's encoding by this schema, as a binary column; a null row stays null, whatever the schema.

    A struct's fields are found by their names, whatever their order; those that the schema does not have are refused.
    Numbers, times and texts are cast to the type that `arrow_type` gives, if no value changes. Raises UsageError, which names
    the field and the first bad row.
    """
    values = visible(plain(values))
    check_values(values)
    binder = _Binder()
    part = binder.part(schema, values, "")
    encoded, bad = kernel.run(part, binder.out, _with_nulls(values))
    if bad is not None:
        row, place, code = bad
        raise UsageError(f"row {row} cannot be written as Avro: {_named(binder.places[place])} {kernel.REASONS[code]}")
    return encoded


def _with_nulls(values: pa.Array) -> pa.Array:
    """What is null where a value is. A union is so nowhere, but in its branches."""
    if not pa.types.is_union(values.type):
        return values
    _, *buffers = values.buffers()[:3]  # pyarrow's own `type_codes` and `offsets` are not those of a slice
    codes, offsets = (
        pa.Array.from_buffers(kind, len(values), [None, buffer], offset=values.offset)
        for kind, buffer in zip((pa.int8(), pa.int32()), buffers, strict=True)
    )
    is_null = np.zeros(len(values), bool)
    for branch in range(values.type.num_fields):
        rows = pc.indices_nonzero(pc.equal(codes, branch))
        is_null[rows] = values.field(branch).is_null().take(offsets.take(rows))
    return pa.array(is_null, mask=is_null)


def _named(path: str) -> str:
    return f"field {path!r}" if path else "the value"


class _Binder:
    """Makes parts that write into one output."""

    def __init__(self) -> None:
        self.out = kernel.Output()
        self.places: list[str] = []

    def part(self, schema: AvroType, array: pa.Array, path: str) -> Any:  # noqa: ANN401 - of the kernel
        """The part for a column; its nulls are refused, if the schema has none."""
        place = len(self.places)
        self.places.append(path)
        if isinstance(schema, AvroUnion):
            return self._union(place, schema, array, path)
        cast = _cast(schema, array, path)
        part = self._plain(place, schema, cast, path)
        is_null = schema == AvroPrimitive("null")
        return kernel.WriteNullable(self.out, place, array, part, -1, -1) if array.null_count and not is_null else part

    def _union(self, place: int, schema: AvroUnion, array: pa.Array, path: str) -> Any:  # noqa: ANN401 - of the kernel
        check_union(schema, path)
        simple = nullable(schema)
        if simple is None:
            return self._dense(place, schema, array, path)
        branch = schema.branches.index(simple)
        null = schema.branches.index(AvroPrimitive("null")) if AvroPrimitive("null") in schema.branches else -1
        if simple == AvroPrimitive("null"):
            return kernel.WriteNullable(
                self.out, place, pa.array([False] * len(array)), kernel.Part(self.out, place, None), -1, 0
            )
        part = self._plain(place, simple, _cast(simple, array, path), path)
        return kernel.WriteNullable(self.out, place, array, part, null, branch)

    def _dense(self, place: int, schema: AvroUnion, array: pa.Array, path: str) -> Any:  # noqa: ANN401 - of the kernel
        if array.type != arrow_type(schema, path):
            raise UsageError(f"{_named(path)} is {array.type}; this Avro union takes {arrow_type(schema, path)}")
        array = array.take(pa.array(np.arange(len(array))))  # without what no row uses, which is checked, too
        branches = [self.part(each, array.field(i), path) for i, each in enumerate(schema.branches)]
        return kernel.WriteUnion(self.out, place, array, branches)

    def _plain(self, place: int, schema: AvroType, array: pa.Array, path: str) -> Any:  # noqa: ANN401 - of the kernel
        """The part for a column that has the schema's Arrow type, or its shape."""
        match schema:
            case AvroRecord():
                fields = {array.type.field(i).name: array.field(i) for i in range(array.type.num_fields)}
                _check_fields(schema, fields, path)
                parts = [self.part(each.type, fields[each.name], inside_path(path, each.name)) for each in schema.fields]
                return kernel.WriteRecord(self.out, place, parts)
            case AvroArray():
                return kernel.WriteItems(self.out, place, array, self.part(schema.items, array.values, f"{path}[]"))
            case AvroMap():
                key = kernel.WriteBinary(self.out, place, _cast(AvroPrimitive("string"), array.keys, path))
                value = self.part(schema.values, array.items, f"{path}{{}}")
                return kernel.WriteItems(self.out, place, array, kernel.WriteRecord(self.out, place, [key, value]))
            case AvroEnum():
                return kernel.WriteNumber(self.out, place, _indices(schema, array, path))
        return self._scalar(place, schema, array, path)

    def _scalar(self, place: int, schema: Any, array: pa.Array, path: str) -> Any:  # noqa: ANN401 - of the kernel
        kind, out = array.type, self.out
        if schema.logical == "decimal":
            return kernel.WriteDecimal(out, place, array, getattr(schema, "size", 0))
        if schema.logical == "duration":
            return kernel.WriteDuration(out, place, array)
        if schema.logical == "uuid" and not isinstance(schema, AvroPrimitive):
            return kernel.WriteUuid(out, place, array)
        if pa.types.is_null(kind):
            return kernel.Part(out, place, None)
        if pa.types.is_boolean(kind):
            return kernel.WriteBoolean(out, place, array)
        if schema.logical == "uuid":
            _check_uuids(array, path)
        if kind in (pa.binary(), pa.string()):
            return kernel.WriteBinary(out, place, array)
        if pa.types.is_floating(kind) or pa.types.is_fixed_size_binary(kind):
            return kernel.WriteFixed(out, place, array)
        return kernel.WriteNumber(out, place, array)


def _check_fields(schema: AvroRecord, fields: Mapping[str, pa.Array], path: str) -> None:
    names = [field.name for field in schema.fields]
    missing, surplus = [name for name in names if name not in fields], [name for name in fields if name not in names]
    if missing or surplus:
        said = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(surplus)} besides"] * bool(surplus)
        raise UsageError(f"{_named(path)} is to be the Avro record {schema.name}, and {' and '.join(said)}")


def _cast(schema: AvroType, array: pa.Array, path: str) -> pa.Array:
    """The column in the schema's Arrow type; of a nested type only its own shape, as its parts are cast one by one."""
    kind = array.type
    match schema:
        case AvroRecord() if pa.types.is_struct(kind):
            return array
        case AvroMap() if pa.types.is_map(kind):
            return array
        case AvroArray() if pa.types.is_list(kind):
            return array
        case AvroArray() if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            return array.cast(pa.list_(kind.value_type))
        case AvroRecord() | AvroMap() | AvroArray():
            raise UsageError(f"{_named(path)} is {kind}; this Avro type takes {arrow_type(schema, path)}")
    wanted = pa.string() if isinstance(schema, AvroEnum) else arrow_type(schema, path)
    try:
        return array if kind == wanted else exactly(array, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"{_named(path)} is {kind}; this Avro type takes {wanted}: {error}") from error


def _check_uuids(array: pa.Array, path: str) -> None:
    others = pc.invert(pc.match_substring_regex(array, _UUID))
    if pc.any(others).as_py():
        row = pc.index(others, True).as_py()
        raise UsageError(f"{_named(path)} has a value at {row} that is not a UUID of 36 characters")


def _indices(schema: AvroEnum, array: pa.Array, path: str) -> pa.Array:
    """The numbers of an enum's symbols."""
    indices = pc.index_in(array, value_set=pa.array(schema.symbols, pa.string()))
    unknown = pc.and_(indices.is_null(), array.is_valid())
    if pc.any(unknown).as_py():
        row = pc.index(unknown, True).as_py()
        raise UsageError(f"{_named(path)} has a value at {row} that is not a symbol of the Avro enum {schema.name}")
    return indices
