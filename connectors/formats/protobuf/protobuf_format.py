"""Protobuf's encoding of one message type as a format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.arguments import at_least, names, text, texts
from headrace.connectors.formats.protobuf import schema as messages
from headrace.connectors.formats.protobuf.columns import (
    DATE,
    beyond,
    has_dates_or_times,
    invalid_date_or_time,
    picked,
    struct_of,
)
from headrace.connectors.formats.protobuf.compiler import descriptor_set
from headrace.connectors.formats.protobuf.writing import writable
from headrace.connectors.formats.value_format import (
    BadValue,
    ColumnFullError,
    DecodedValues,
    ValueFormat,
    as_binary,
    field_tree,
    nullable,
)
from headrace.enumerator.errors import UsageError


class ProtobufFormat(ValueFormat):
    """Messages of the type `message` of a schema, as structs of its fields.

    `schema`: the text of a `.proto` file, whose imports `references` has by their names; or a serialized FileDescriptorSet.
    `message`: its full name; by default the first of the schema, or of the set's last file. `fields`: only these are decoded,
    `"address.city"` is one of a field, and none makes an empty struct; the default is all. `header_bytes` (default 0) are
    skipped at the start of each value.

    A value is read by Protobuf's own runtime, as to what is bad, which of several alternatives counts, and what an unknown
    number of a proto2 enum means. A field that can be determined from one that is not set is null where it is not; others have
    their default. Enums are strings; a message within itself is its bytes; a Timestamp has microseconds.

    Raises UsageError for what is no such schema, for a message or a field that it does not have, for groups and editions,
    which cannot be read, and where the libraries are missing (the extra `protobuf`).
    """

    def __init__(
        self,
        schema: str | bytes,
        *,
        message: str | None = None,
        references: Mapping[str, str] | None = None,
        fields: Sequence[str] | None = None,
        header_bytes: int = 0,
    ) -> None:
        if not isinstance(schema, bytes):
            text("schema", schema)
        texts("references", references or {})
        if message is not None:
            text("message", message)
        if fields is not None:
            names("fields", fields)
        at_least("header_bytes", header_bytes, 0)
        files = descriptor_set(schema, references)
        self.message: str = messages.first_message(files) if message is None else message
        # Pickled by the descriptors, so that no task needs a compiler.
        self._made_by = partial(ProtobufFormat, files, message=self.message, fields=fields, header_bytes=header_bytes)
        self._header_bytes = header_bytes
        self._reader = _Types(messages.only(files, self.message, fields), self.message)
        self._type = self._reader.kind if fields is None else picked(self._reader.kind, field_tree(fields))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its arguments."""
        return self._made_by, ()

    @property
    def arrow_type(self) -> pa.DataType:
        """A struct of the message's fields, all nullable."""
        return self._type

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `ValueFormat` says. Bad: what is no such message, text that is not UTF-8, a time beyond 64-bit microseconds, and
        what is not a day of a calendar, or a time before 24:00, of Google's types."""
        read, bad = self._reader.read(as_binary(values), self._header_bytes)
        parts = list(self._columns(read, 0, bad))
        try:
            column = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        except pa.ArrowInvalid as error:  # offsets overflow
            raise ColumnFullError(
                "a column of decoded values would be larger than 2 GiB; decode fewer values at once"
            ) from error
        return DecodedValues(column, [BadValue(row, bad[row]) for row in sorted(bad)])

    def encode(self, values: pa.Array) -> pa.Array:
        """As `ValueFormat` says. Fields are found by their names; those that are missing or null are not set.

        Raises UsageError for a field that the message does not have, for two alternatives at once, for a null in a list or a
        map, and for a text that is not a symbol.
        """
        checked = writable(values, self._reader.message.DESCRIPTOR, self._reader.number_kind)
        columns = [checked.field(index) for index in range(checked.type.num_fields)]
        if not columns:
            return pc.if_else(values.is_valid(), pa.scalar(b""), pa.scalar(None, pa.binary()))
        encoded = self._reader.numbers.record_batch_to_array(pa.record_batch(columns, names=checked.type.names))
        return pc.if_else(values.is_valid(), encoded, pa.scalar(None, pa.binary())) if values.null_count else encoded

    def _columns(self, read: pa.Array, start: int, bad: dict[int, str]) -> Iterator[pa.Array]:
        """Columns of these messages, by halves where one of them is bad."""
        try:
            batch = self._reader.symbols.array_to_record_batch(read)
            column = struct_of(batch, self._type, read.is_valid())
            fault = "a time or a duration in it does not fit 64-bit microseconds" if beyond(column) else None
        except ValueError as error:
            fault = "text is not UTF-8" if "UTF-8" in str(error) else "is no such message"
        if fault is None:
            yield column
        elif len(read) == 1:
            bad[start] = fault
            yield pa.nulls(1, self._type)
        else:
            half = len(read) // 2
            yield from self._columns(read.slice(0, half), start, bad)
            yield from self._columns(read.slice(half), start + half, bad)


def _descriptor(files: bytes, name: str) -> Any:  # noqa: ANN401 - the runtime has no types
    """Of a message type. Raises UsageError for files that the runtime refuses."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except (TypeError, KeyError) as error:
        raise UsageError(f"the Protobuf schema cannot be used: {error}") from error


def _handler(descriptor: Any, enums: Literal["string", "int32"]) -> Any:  # noqa: ANN401 - the runtime has no types
    """ptars' of a type. Raises UsageError for what it panics at: fields of proto3 whose names are alike in camel case."""
    import ptars

    config = ptars.PtarsConfig(timestamp_unit="us", duration_unit="us", enum_repr=enums)
    try:
        return ptars.HandlerPool([descriptor.file], config=config).get_for_message(descriptor)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which is in no module
            raise
        why = str(error).rpartition(": ")[2]
        raise UsageError(
            f"the Protobuf schema cannot be used: {why}. Ask for other fields, or rename one: values do not have the names"
        ) from error


class _Types:
    """A message type with the fields that are asked for, by the runtime and by ptars. Made where it is used."""

    def __init__(self, files: bytes, name: str) -> None:
        from google.protobuf import message_factory

        descriptor = _descriptor(files, name)
        self.message: Any = message_factory.GetMessageClass(descriptor)
        self._has_dates_or_times = has_dates_or_times(descriptor)
        self.symbols: Any = _handler(descriptor, "string")
        # With dates as messages: what ptars writes of a date has no day for 1970-01-01.
        has_dates = self._has_dates_or_times and name != DATE
        plain = _descriptor(messages.renamed(files, DATE, "PlainDate"), name) if has_dates else descriptor
        self.numbers: Any = _handler(plain, "int32")
        self.kind: pa.DataType = nullable(pa.struct(list(self.symbols.schema())))
        self.number_kind: pa.DataType = nullable(pa.struct(list(self.numbers.schema())))

    def read(self, values: pa.Array, header_bytes: int) -> tuple[pa.Array, dict[int, str]]:
        """The messages as the runtime writes them: with what is asked for alone, and nothing that can be read in two ways."""
        from google.protobuf.message import DecodeError

        found: list[bytes | None] = []
        bad: dict[int, str] = {}
        new = self.message
        for row, value in enumerate(values.to_pylist()):
            if value is None:
                found.append(None)
                continue
            message = new()
            try:
                message.ParseFromString(value[header_bytes:] if header_bytes else value)
            except DecodeError:
                found.append(None)
                bad[row] = f"is not a message {message.DESCRIPTOR.full_name}: its bytes are not of Protobuf's wire format"
                continue
            message.DiscardUnknownFields()
            if self._has_dates_or_times and (fault := invalid_date_or_time(message)) is not None:
                found.append(None)
                bad[row] = fault
                continue
            found.append(message.SerializePartialToString())
        return pa.array(found, pa.binary()), bad
