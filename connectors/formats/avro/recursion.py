"""Fields whose type contains itself, as JSON texts: no Arrow type does, so fastavro reads them, and not the kernel.

The kernel reads all else, and has skipped these fields before: what fastavro is given is whole, has bounded depth, and no
more items than its bytes can mean.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.avro.program import children, nullable, refers
from headrace.connectors.formats.avro.schema import AvroField, AvroRecord, AvroReference, AvroType, AvroUnion, parsed_json
from headrace.connectors.formats.json_lines import json_number
from headrace.connectors.formats.value_format import BadValue
from headrace.enumerator.errors import UsageError

Recursive: TypeAlias = Literal["refuse", "json"]
"""What becomes of a field whose type contains itself: it is refused, or is a column of JSON texts."""

Path: TypeAlias = tuple[str, ...]


def without_recursive(schema: AvroType) -> tuple[AvroType, tuple[Path, ...]]:
    """The schema without the outermost fields whose types contain themselves, and where these stand.

    Such a field may be one of a record in a record; of one in an array or a map, that is the field which holds the array.
    Raises UsageError where the value itself is an array, a map or a union of such a type.
    """
    if not _recurs(schema):
        return schema, ()
    if not isinstance(schema, AvroRecord):
        raise UsageError("an Avro type that contains itself can be read as JSON where it is a record's field, and this is none")
    fields: list[AvroField] = []
    paths: list[Path] = []
    for field in schema.fields:
        record = _plain_record(field.type)
        if not _recurs(field.type):
            fields.append(field)
        elif record is None:
            paths.append((field.name,))
        else:
            inner, inside = without_recursive(record)
            fields.append(replace(field, type=_in_place(field.type, record, inner)))
            paths += [(field.name, *path) for path in inside]
    return replace(schema, fields=tuple(fields)), tuple(paths)


def _recurs(schema: AvroType) -> bool:
    return isinstance(schema, AvroReference) or any(map(_recurs, children(schema)))


def _plain_record(schema: AvroType) -> AvroRecord | None:
    """The record that a field has, or may have, if it does not contain itself."""
    record = nullable(schema) if isinstance(schema, AvroUnion) else schema
    return record if isinstance(record, AvroRecord) and not refers(record, record.name) else None


def _in_place(schema: AvroType, record: AvroRecord, other: AvroType) -> AvroType:
    if isinstance(schema, AvroUnion):
        return AvroUnion(tuple(other if each == record else each for each in schema.branches))
    return other


def with_texts(schema: AvroType, kind: pa.DataType, paths: Sequence[Path]) -> pa.DataType:
    """The type of a reader's record: `kind` is that of its other fields; texts stand at the paths, in the schema's order."""
    if not paths:
        return kind
    record = _record(schema)
    fields = []
    for field in record.fields:
        inside = [path[1:] for path in paths if path[0] == field.name]
        if () in inside:
            fields.append(pa.field(field.name, pa.string()))
        else:
            fields.append(pa.field(field.name, with_texts(field.type, kind.field(field.name).type, inside)))
    return pa.struct(fields)


def _record(schema: AvroType) -> AvroRecord:
    found = nullable(schema) if isinstance(schema, AvroUnion) else schema
    assert isinstance(found, AvroRecord)
    return found


class JsonFields:
    """Reads the fields at some paths of a reader's schema with fastavro, which resolves the writer's schema with it.

    A text is the JSON of Avro's underlying types: of a union's value without the name of its branch, of bytes with a character
    for each, of a number that is none as `"NaN"`, `"Infinity"` or `"-Infinity"`. Logical types stay numbers and texts.
    """

    def __init__(
        self,
        writer: tuple[str, Mapping[str, str]],
        reader: tuple[str, Mapping[str, str]],
        tree: AvroType,
        paths: Sequence[Path],
    ) -> None:
        """`writer`, `reader`: texts of schemas, and of those that they use by full name. `tree`: the reader's, as asked for."""
        self.paths = tuple(paths)
        self._tree = tree
        # What has no date, no time and no precision can be read whatever the number is.
        self._writer, self._reader = (parsed_json(*each, ignored=lambda _: True)[0] for each in (writer, reader))

    def added(self, column: pa.Array, values: pa.Array, header_bytes: int) -> tuple[pa.Array, list[BadValue]]:
        """The column of all other fields with these among them, and which values cannot be read, though the others can.

        `values` (binary) are null where the column is null, or is not to be read.
        """
        texts: list[list[str | None]] = [[] for _ in self.paths]
        bad: list[BadValue] = []
        for row, value in enumerate(values.to_pylist()):
            found = [None] * len(self.paths) if value is None else self._texts(value[header_bytes:])
            if isinstance(found, str):
                bad.append(BadValue(row, found))
                found = [None] * len(self.paths)
            for text, each in zip(found, texts, strict=True):
                each.append(text)
        by_path = {path: pa.array(each, pa.string()) for path, each in zip(self.paths, texts, strict=True)}
        lost = {each.row for each in bad}
        kept = pc.and_(column.is_valid(), pa.array([row not in lost for row in range(len(column))], pa.bool_()))
        return _assembled(self._tree, column, kept, by_path), bad

    def _texts(self, value: bytes) -> list[str | None] | str:
        """The texts of a value, or why there are none. The reason quotes nothing of the value."""
        import fastavro

        try:
            whole = fastavro.schemaless_reader(io.BytesIO(value), self._writer, self._reader)
            return [_text(_at(whole, path)) for path in self.paths]
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - fastavro raises of many kinds on bytes that are none of its schema's
            named = ", ".join(repr(".".join(path)) for path in self.paths)
            return f"field {named}: fastavro, which reads types that contain themselves, fails with {type(error).__name__}"


def _at(value: Any, path: Path) -> Any:  # noqa: ANN401 - JSON
    for name in path:
        if value is None:
            return None
        value = value[name]
    return value


def _text(value: Any) -> str | None:  # noqa: ANN401 - JSON
    return None if value is None else json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return value.decode("latin-1")
        case float():
            return json_number(value)
        case _:
            return value


def _assembled(schema: AvroType, column: pa.Array, kept: pa.Array, texts: Mapping[Path, pa.Array]) -> pa.Array:
    """The struct with the texts among its fields, in the order of the schema; null where it is not to be kept."""
    children, names = [], []
    for field in _record(schema).fields:
        inside = {path[1:]: each for path, each in texts.items() if path[0] == field.name}
        names.append(field.name)
        if () in inside:
            children.append(inside[()])
            continue
        child = column.field(field.name)
        children.append(_assembled(field.type, child, child.is_valid(), inside) if inside else child)
    return pa.StructArray.from_arrays(children, names=names, mask=pc.invert(kept))
