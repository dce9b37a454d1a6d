"""Avro's binary encoding of one writer's schema as a format."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.connectors.base.arguments import at_least, names, texts
from headrace.connectors.formats.avro import decode as kernel
from headrace.connectors.formats.avro.program import Program, arrow_type, check_resolves, compile_program
from headrace.connectors.formats.avro.recursion import JsonFields, Recursive, with_texts, without_recursive
from headrace.connectors.formats.avro.schema import only, parse
from headrace.connectors.formats.avro.writing import encode
from headrace.connectors.formats.value_format import BadValue, ColumnFullError, DecodedValues, ValueFormat, as_binary, without
from headrace.enumerator.errors import UsageError

_FULL, _NO_MEMORY = 12, 13
"""Codes of the kernel's that tell nothing of the value, but of the previous ones and of the machine."""


class AvroFormat(ValueFormat):
    """Values that were written with the schema `schema`, as the schema `reader_schema` wants them.

    Both are JSON texts; the default reader's schema is the writer's. `references`: texts of the schemas that they use by full
    name; those of the reader's are `reader_references`, by default the same. `fields`: only these fields of the reader's record
    are decoded, `"address.city"` is one of a field, and none makes an empty struct; the default is all. `header_bytes`
    (default 0) are skipped at the start of each value, such as the 5 of a registry's wire format.

    A value's bytes after its end are ignored, as other readers of Avro do; of a field that is skipped only the extent is
    checked, not whether its text is UTF-8 or its symbol known. Raises UsageError for what is not Avro schema, for
    schemas that do not resolve whatever the values are, and for a type that contains itself, unless `fields` leaves it out.

    `recursive`: with "json" a field whose type contains itself is a text, its JSON, as `JsonFields` says. fastavro reads that,
    and all of the value for it: a Python object a record. Such a column is read, and not written.
    """

    def __init__(
        self,
        schema: str,
        *,
        reader_schema: str | None = None,
        references: Mapping[str, str] | None = None,
        reader_references: Mapping[str, str] | None = None,
        fields: Sequence[str] | None = None,
        header_bytes: int = 0,
        recursive: Recursive = "refuse",
    ) -> None:
        texts("references", references or {})
        texts("reader_references", reader_references or {})
        at_least("header_bytes", header_bytes, 0)
        self._made_by = partial(
            AvroFormat,
            schema,
            reader_schema=reader_schema,
            references=references,
            reader_references=reader_references,
            fields=fields,
            header_bytes=header_bytes,
            recursive=recursive,
        )
        self._writer = parse(schema, references)
        others = references if reader_references is None else reader_references
        reader = self._writer if reader_schema is None else parse(reader_schema, others)
        asked = reader if fields is None else only(reader, names("fields", fields))
        if recursive not in ("refuse", "json"):
            raise UsageError(f"recursive must be 'refuse' or 'json', not {recursive!r}")
        self._reader, paths = without_recursive(asked) if recursive == "json" else (asked, ())
        self._type = with_texts(asked, arrow_type(self._reader), paths)
        own = (schema, references or {})
        read = own if reader_schema is None else (reader_schema, others or {})
        self._header_bytes = header_bytes
        # A program has buffers for one thread at a time; taking one needs no lock, which a fork could leave held.
        self._spare: deque[Program] = deque([compile_program(self._writer, self._reader)])
        for path in paths:
            check_resolves(self._writer, asked, path)
        self._texts = JsonFields(own, read, asked, paths) if paths else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its arguments: programs are compiled where it arrives."""
        return self._made_by, ()

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the reader's schema."""
        return self._type

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `ValueFormat` says. A value that alone is more than a column can hold is bad."""
        binary = as_binary(values)
        try:
            program = self._spare.pop()
        except IndexError:  # another thread has it, or it failed half-way and is not used again
            program = compile_program(self._writer, self._reader)
        bad = kernel.run(program.step, program.budget, program.column, binary, self._header_bytes)
        _check_whole(bad)
        decoded = kernel.finished(program.column, program.kind)
        self._spare.append(program)
        found = [_bad(program, *each) for each in bad]
        if self._texts is None:
            return DecodedValues(decoded, found)
        good = without(binary, [each.row for each in found]) if found else binary
        whole, more = self._texts.added(decoded, good, self._header_bytes)
        return DecodedValues(whole, sorted([*found, *more]))

    def encode(self, values: pa.Array) -> pa.Array:
        """Values in the encoding of the writer's schema, as `ValueFormat` says, without any header.

        A struct's fields are found by name, and all of the writer's have to be there. Raises MemoryError, too.
        """
        return encode(self._writer, values)


def _check_whole(bad: list[tuple[int, int, int]]) -> None:
    """That those which could not be decoded are bad themselves."""
    if any(code == _NO_MEMORY for _, _, code in bad):
        raise MemoryError("there is not enough memory to decode a column of Avro values")
    if any(code == _FULL and row > 0 for row, _, code in bad):
        raise ColumnFullError("a column of decoded values would be larger than 2 GiB; decode fewer values at once")


def _bad(program: Program, row: int, place: int, code: int) -> BadValue:
    path, reason = program.places[place], kernel.REASONS[code]
    return BadValue(row, f"field {path!r}: {reason}" if path else reason)
