"""Avro schemas and values from Hypothesis, and readers to hold ours against: a strict one here, and fastavro's."""

import copy
import io
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

LOGICAL = {
    "int": ["date"],
    "long": ["timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis", "local-timestamp-micros"],
    "string": ["uuid"],
}
PRIMITIVES = ["boolean", "int", "long", "float", "double", "bytes", "string"]


class _Names:
    """Gives each named type and field its own name."""

    def __init__(self) -> None:
        self.count = 0

    def next(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"


@st.composite
def schemas(draw: st.DrawFn, *, with_empty: bool = True, depth: int = 2) -> dict[str, Any]:
    """A record of some fields of all kinds of types. `with_empty`: also types whose values take no bytes."""
    return _record(draw, _Names(), depth, with_empty)


def _record(draw: st.DrawFn, names: _Names, depth: int, with_empty: bool) -> dict[str, Any]:
    count = draw(st.integers(0 if with_empty else 1, 4))
    fields = [{"name": names.next("f"), "type": _schema(draw, names, depth, with_empty)} for _ in range(count)]
    return {"type": "record", "name": f"space.{names.next('R')}", "fields": fields}


def _schema(draw: st.DrawFn, names: _Names, depth: int, with_empty: bool) -> Any:
    kinds = [*PRIMITIVES, "logical", "decimal", "fixed", "enum", *(["null"] if with_empty else [])]
    if depth:
        kinds += ["array", "map", "record", "nullable", "nullable", "union"]
    kind = draw(st.sampled_from(kinds))
    inner = depth - 1
    match kind:
        case "logical":
            base = draw(st.sampled_from(sorted(LOGICAL)))
            return {"type": base, "logicalType": draw(st.sampled_from(LOGICAL[base]))}
        case "decimal":
            precision = draw(st.integers(1, 76))
            scale = draw(st.integers(0, precision))
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        case "fixed":
            return {"type": "fixed", "name": names.next("F"), "size": draw(st.integers(0 if with_empty else 1, 20))}
        case "enum":
            named = {"type": "enum", "name": names.next("E")}
            return {**named, "symbols": [names.next("S") for _ in range(draw(st.integers(1, 4)))]}
        case "array":
            return {"type": "array", "items": _schema(draw, names, inner, with_empty)}
        case "map":
            return {"type": "map", "values": _schema(draw, names, inner, with_empty)}
        case "record":
            return _record(draw, names, inner, with_empty)
        case "nullable":
            there = draw(st.sampled_from(["int", "string", "double", _record(draw, names, inner, with_empty)]))
            return draw(st.sampled_from([["null", there], [there, "null"]]))
        case "union":
            return ["null", "string", draw(st.sampled_from(["long", "boolean"])), _record(draw, names, inner, with_empty)]
        case _:
            return kind


def raw(schema: Any) -> Any:
    """The same schema without logical types: fastavro then gives what is written, and not what it makes of it."""
    if isinstance(schema, list):
        return [raw(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    for key in ("type", "items", "values"):
        if isinstance(kept.get(key), dict | list):
            kept[key] = raw(kept[key])
    if "fields" in kept:
        kept["fields"] = [{**field, "type": raw(field["type"])} for field in kept["fields"]]
    return kept


@st.composite
def evolved(draw: st.DrawFn, writer: Any) -> Any:
    """A reader's schema: fields removed, added with a default, renamed with an alias, moved, promoted, made nullable."""
    reader = copy.deepcopy(raw(writer))
    for field in list(reader["fields"]):
        kind = field["type"]
        match draw(st.sampled_from(["keep", "remove", "rename", "promote", "wrap", "inside"])):
            case "remove":
                reader["fields"].remove(field)
            case "rename":
                field |= {"name": f"new_{field['name']}", "aliases": [field["name"]]}
            case "promote" if isinstance(kind, str):
                field["type"] = {"int": "long", "long": "double", "float": "double", "string": "bytes"}.get(kind, kind)
            case "wrap" if isinstance(kind, str) and kind != "null":
                field["type"] = ["null", kind]
            case "inside" if isinstance(kind, dict) and kind["type"] == "record":
                field["type"] = draw(evolved(kind))
    new = [("int", 7), (["null", "string"], None), ("string", "é"), ({"type": "array", "items": "long"}, [1])]
    added = draw(st.sampled_from(new))
    reader["fields"].insert(0, {"name": f"added_{reader['name'].rpartition('.')[2]}", "type": added[0], "default": added[1]})
    return {**reader, "fields": draw(st.permutations(reader["fields"]))}


def values(schema: Any, simple: Mapping[str, st.SearchStrategy[Any]] | None = None) -> st.SearchStrategy[Any]:
    """Values of a schema as fastavro writes them under `raw(schema)`. `simple`: of primitive types."""
    if isinstance(schema, list):
        return st.one_of([values(each, simple) for each in schema])
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            return st.fixed_dictionaries({field["name"]: values(field["type"], simple) for field in schema["fields"]})
        case "array":
            return st.lists(values(schema["items"], simple), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=3), values(schema["values"], simple), max_size=3)
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
    if isinstance(schema, dict) and schema.get("logicalType") == "uuid":
        return st.uuids().map(str)
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        most = 10 ** schema["precision"] - 1
        return st.integers(-most, most).map(_unscaled)
    return (simple or SIMPLE)[kind]


def _unscaled(number: int) -> bytes:
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(), "boolean": st.booleans(), "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1), "float": st.floats(width=32), "double": st.floats(),
    "bytes": st.binary(max_size=20), "string": st.text(max_size=20),
}  # fmt: skip


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(raw(schema)), value)
    return out.getvalue()


def read(writer: Any, data: bytes, reader: Any = None) -> Any:
    """A value by fastavro, without logical types."""
    wanted = None if reader is None else fastavro.parse_schema(raw(reader))
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(raw(writer)), wanted)


def expected(schema: Any, value: Any) -> Any:
    """What fastavro gives for a schema without logical types, as `plain` gives ours."""
    if isinstance(schema, list):
        if value is None:
            return None
        fitting = [each for each in schema if each != "null"]
        chosen = fitting[0] if len(fitting) == 1 else next(each for each in fitting if _is_of(each, value))
        return expected(chosen, value)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return {field["name"]: expected(field["type"], value[field["name"]]) for field in schema["fields"]}
    if kind == "array":
        return [expected(schema["items"], each) for each in value]
    if kind == "map":
        return {key: expected(schema["values"], each) for key, each in value.items()}
    if isinstance(schema, dict) and schema.get("logicalType") == "decimal":
        number = int.from_bytes(value, "big", signed=True)
        return Decimal((number < 0, tuple(map(int, str(abs(number)))), -schema["scale"]))
    return value


def _is_of(schema: Any, value: Any) -> bool:
    kind = schema if isinstance(schema, str) else schema["type"]
    fits = {"string": str, "int": int, "long": int, "boolean": bool, "record": dict}[kind]
    return isinstance(value, fits) and (fits is not int or not isinstance(value, bool))


def said(value: Any) -> str:
    """A text by which values are compared: NaN is NaN, 1 is not True, and the order of a record's fields is nothing."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{said(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(said, value)) + "]"
    return repr(value)


def plain(array: pa.Array) -> list[Any]:
    """An Arrow array as Python values; times are numbers, maps dictionaries, and a union's value is that of its branch."""
    kind = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        columns = {kind.field(i).name: plain(array.field(i)) for i in range(kind.num_fields)}
        return [{name: each[row] for name, each in columns.items()} if valid[row] else None for row in range(len(array))]
    if pa.types.is_list(kind):
        items, ends = plain(array.values), array.offsets.to_pylist()
        return [items[ends[row] : ends[row + 1]] if valid[row] else None for row in range(len(array))]
    if pa.types.is_map(kind):
        keys, items, ends = array.keys.to_pylist(), plain(array.items), array.offsets.to_pylist()
        runs = [slice(ends[row], ends[row + 1]) for row in range(len(array))]
        return [dict(zip(keys[run], items[run], strict=True)) if valid[row] else None for row, run in enumerate(runs)]
    if pa.types.is_union(kind):
        branches = [plain(array.field(i)) for i in range(kind.num_fields)]
        places = zip(array.type_codes.to_pylist(), array.offsets.to_pylist(), strict=True)
        return [branches[branch][at] for branch, at in places]
    if pa.types.is_date(kind) or (pa.types.is_time(kind) and kind.bit_width == 32):
        return array.view(pa.int32()).to_pylist()
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return array.view(pa.int64()).to_pylist()
    return array.to_pylist()


class RefusedError(Exception):
    """The strict reader's answer to bytes that are not value."""


class StrictReader:
    """Avro's specification to the letter, slowly. Surplus bytes are left.

    `sizes_hold`: whether each block of items that says its size in bytes has that size. Readers do not look at it, and who
    skips goes by it, or by the items: so where it does not hold, readers of a part differ.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.sizes_hold = True

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise RefusedError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, bits: int) -> int:
        raw_number, shift = 0, 0
        while True:
            (byte,) = self.take(1)
            raw_number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 63:
                raise RefusedError
        value = (raw_number >> 1) ^ -(raw_number & 1)
        if raw_number >> 64 or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise RefusedError
        return value

    def read(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return self.read(self.one_of(schema))
        kind = schema if isinstance(schema, str) else schema["type"]
        simple: dict[str, Callable[[], Any]] = {
            "null": lambda: None, "boolean": lambda: self.one_of([False, True], self.take(1)[0]),
            "int": lambda: self.number(32), "long": lambda: self.number(64),
            "float": lambda: struct.unpack("<f", self.take(4))[0], "double": lambda: struct.unpack("<d", self.take(8))[0],
            "bytes": lambda: self.blob(schema), "string": self.text, "fixed": lambda: self.take(schema["size"]),
            "enum": lambda: self.one_of(schema["symbols"]), "array": lambda: [self.read(schema["items"]) for _ in self.items()],
            "map": lambda: {self.text(): self.read(schema["values"]) for _ in self.items()},
            "record": lambda: {field["name"]: self.read(field["type"]) for field in schema["fields"]},
        }  # fmt: skip
        return simple[kind]()

    def one_of(self, choices: list[Any], number: int | None = None) -> Any:
        chosen = self.number(64) if number is None else number
        if not 0 <= chosen < len(choices):
            raise RefusedError
        return choices[chosen]

    def blob(self, schema: Any) -> bytes:
        value = self.take(self.number(64))
        if isinstance(schema, dict) and abs(int.from_bytes(value, "big", signed=True)) >= 10 ** schema["precision"]:
            raise RefusedError
        return value

    def text(self) -> str:
        try:
            return self.take(self.number(64)).decode()
        except UnicodeDecodeError as error:
            raise RefusedError from error

    def items(self) -> Any:
        while (count := self.number(64)) != 0:
            size = None
            if count < 0:
                size, count = self.number(64), -count
                if size < 0:
                    raise RefusedError
            start = self.at
            yield from range(count)
            self.sizes_hold = self.sizes_hold and size in (None, self.at - start)
