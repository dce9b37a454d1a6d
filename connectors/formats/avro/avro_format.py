"""Avro's binary encoding of one writer's schema as a format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

import pyarrow as pa

from headrace.connectors.formats.avro import decode as kernel
from headrace.connectors.formats.avro.program import Program, arrow_type, compile_program
from headrace.connectors.formats.avro.schema import only, parse
from headrace.connectors.formats.avro.writing import encode
from headrace.connectors.formats.value_format import BadValue, DecodedValues, ValueFormat, as_binary

__all__ = ["AvroFormat"]


class AvroFormat(ValueFormat):
    """Values that were written with the schema `schema`, as the schema `reader_schema` wants them.

    Both are JSON texts; the default reader's schema is the writer's. `references`: texts of the schemas that they use by full
    name. `fields`: only these fields of the reader's record are decoded, `"address.city"` is one of a field; the default is
    all. `header_bytes` (default 0) are passed over at the start of each value, such as the 5 of a registry's wire format.

    A value's bytes after its end are ignored, as other readers of Avro do; of a field that is skipped only the extent is
    checked, not whether its text is UTF-8 or its symbol known. Raises UsageError for what is no Avro schema, for
    schemas that do not resolve whatever the values are, and for a type that contains itself, unless `fields` leaves it out.
    """

    def __init__(
        self,
        schema: str,
        *,
        reader_schema: str | None = None,
        references: Mapping[str, str] | None = None,
        fields: Sequence[str] | None = None,
        header_bytes: int = 0,
    ) -> None:
        self._writer = parse(schema, references)
        reader = self._writer if reader_schema is None else parse(reader_schema, references)
        self._reader = reader if fields is None else only(reader, fields)
        self._header_bytes = header_bytes
        self._lock = Lock()
        self._program: Program | None = compile_program(self._writer, self._reader)

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the reader's schema."""
        return arrow_type(self._reader)

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `ValueFormat` says. Raises MemoryError if there is not enough for a column."""
        binary = as_binary(values)
        with self._lock:
            program, self._program = self._program or compile_program(self._writer, self._reader), None
            bad = kernel.run(program.step, program.column, binary, self._header_bytes)
            decoded = kernel.finished(program.column, program.kind)
            self._program = program  # one that failed half-way is not used again
        return DecodedValues(decoded, [_bad(program, *each) for each in bad])

    def encode(self, values: pa.Array) -> pa.Array:
        """Values in the encoding of the writer's schema, as `ValueFormat` says, without any header.

        A struct's fields are found by name, and all of the writer's have to be there. Raises MemoryError, too.
        """
        return encode(self._writer, values)


def _bad(program: Program, row: int, place: int, code: int) -> BadValue:
    path, reason = program.places[place], kernel.REASONS[code]
    return BadValue(row, f"field {path!r}: {reason}" if path else reason)
