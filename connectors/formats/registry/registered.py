"""Avro values by a schema registry: each says its writer's schema, and all become columns of one reader's schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.avro.avro_format import AvroFormat
from headrace.connectors.formats.registry.client import SchemaRegistry
from headrace.connectors.formats.registry.framing import Framed, framing, prefix
from headrace.connectors.formats.registry.schemas import RegisteredSchema, SchemaId
from headrace.connectors.formats.value_format import BadValue, ColumnFullError, DecodedValues, ValueFormat, as_binary
from headrace.enumerator.errors import UsageError

__all__ = ["RegisteredAvroFormat"]

_MOST_KNOWN = 20

_MOST_FORMATS = 256
"""Programs that are kept, one for each writer's schema: more than a topic has, and a bound on what garbage can cost."""


class RegisteredAvroFormat(ValueFormat):
    """Avro values in a registry's wire format as the one schema `reader` wants them, and back.

    `known`: schemas that were asked for already; others are asked for as they come, once in a process. `fields`: only these of
    the reader's record, as `AvroFormat` has them. `field`: "key" or "value" of a record, for the header that names a schema.

    A value whose schema no registry knows, is of another kind or does not resolve with the reader's is bad. Raises UsageError
    for a reader's schema that is not Avro, and as `AvroFormat`.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        reader: RegisteredSchema,
        *,
        known: Iterable[RegisteredSchema] = (),
        fields: Sequence[str] | None = None,
        field: Literal["key", "value"] = "value",
    ) -> None:
        if reader.kind != "AVRO":
            raise UsageError(f"schema {reader.id} of {registry.config.shown} is {reader.kind}, and not AVRO")
        self.registry: SchemaRegistry = registry
        self.reader: RegisteredSchema = reader
        self._known: dict[SchemaId, RegisteredSchema] = {schema.id: schema for schema in known}
        self._fields, self._field = fields, field
        self._own = self._format(reader, 0)
        self._formats: dict[tuple[SchemaId, int], AvroFormat | str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its arguments, and with the schemas that it knows: programs are compiled where it arrives."""
        known = tuple(self._known.values())
        make = partial(RegisteredAvroFormat, self.registry, self.reader, known=known, fields=self._fields, field=self._field)
        return make, ()

    @classmethod
    def of_subject(
        cls,
        registry: SchemaRegistry,
        subject: str,
        *,
        version: int | None = None,
        fields: Sequence[str] | None = None,
        field: Literal["key", "value"] = "value",
    ) -> RegisteredAvroFormat:
        """A format whose reader's schema is this version of a subject, the newest now by default (None).

        That is looked up here and once, with the newest 20 versions, which travel with the format. Raises UnknownSchemaError
        where there is no such subject or version, and as `SchemaRegistry.by_id`.
        """
        reader = registry.version(subject, version)
        return cls(registry, reader, known=[*registry.versions(subject, _MOST_KNOWN), reader], fields=fields, field=field)

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the reader's schema, with the fields that are asked for."""
        return self._own.arrow_type

    @property
    def reads_headers(self) -> bool:
        """True: a header may name the schema."""
        return True

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `ValueFormat` says, by what stands before each value."""
        return self.decode_records(values, None)

    def decode_records(self, values: pa.Array, headers: pa.Array | None) -> DecodedValues:
        """As `ValueFormat` says.

        Raises DeadlineExceededError where a schema is not known and the registry does not answer, and AuthenticationError.
        """
        binary = as_binary(values)
        bad: list[BadValue] = []
        parts: list[_Part] = [self._nothing(pc.indices_nonzero(binary.is_null()))] if binary.null_count else []
        groups = list(framing(binary, headers, self._field))
        writers = self._writers(group for group in groups if isinstance(group, Framed))
        for group in groups:
            avro = self._format_of(group, writers) if isinstance(group, Framed) else group.reason
            if isinstance(avro, str):
                bad += [BadValue(row, avro) for row in group.rows.to_pylist()]
                parts.append(self._nothing(group.rows))
                continue
            decoded = avro.decode(binary if len(group.rows) == len(binary) else binary.take(group.rows))
            rows = group.rows.to_pylist() if decoded.bad else []
            bad += [BadValue(rows[each.row], each.reason) for each in decoded.bad]
            parts.append(_Part(group.rows, decoded.values))
        return DecodedValues(self._in_order(parts), sorted(bad))

    def schema_ids(self, values: pa.Array, headers: pa.Array | None) -> list[str | None]:
        """Of each value the number or GUID that stands before it, or in a header, whether or not the registry knows it."""
        ids: dict[int, str] = {}
        for group in framing(as_binary(values), headers, self._field):
            if isinstance(group, Framed):
                ids |= dict.fromkeys(group.rows.to_pylist(), str(group.schema_id))
        return [ids.get(row) for row in range(len(values))]

    def encode(self, values: pa.Array) -> pa.Array:
        """Values by the reader's schema, with its id before each, as `ValueFormat` says."""
        if not isinstance(self.reader.id, int):
            raise UsageError("values can only be written by a schema that has a number in the registry")
        start = pa.scalar(prefix(self.reader.id), pa.binary())
        return pc.binary_join_element_wise(start, self._own.encode(values), pa.scalar(b"", pa.binary()))

    def _nothing(self, rows: pa.Array) -> _Part:
        return _Part(rows, self._own.decode(pa.nulls(len(rows), pa.binary())).values)

    def _in_order(self, parts: Sequence[_Part]) -> pa.Array:
        """One column. Every row is in one part."""
        if len(parts) <= 1:
            return parts[0].values if parts else self._nothing(pa.array([], pa.uint64())).values
        try:
            together = pa.concat_arrays([part.values for part in parts])
        except pa.ArrowInvalid as error:  # offsets overflow
            raise ColumnFullError(
                "values of several schemas are more than one column can hold; decode fewer at once"
            ) from error
        return together.take(pc.sort_indices(pa.concat_arrays([part.rows for part in parts])))

    def pinned(self, schema_id: SchemaId) -> RegisteredSchema:
        """The schema of this id as the registry has had it since this format was made. Raises as `SchemaRegistry.by_id`."""
        if schema_id not in self._known:
            self._known[schema_id] = self.registry.fetch(schema_id)
        return self._known[schema_id]

    def _writers(self, groups: Iterable[Framed]) -> dict[SchemaId, RegisteredSchema]:
        """The schemas that there are. What is not known is asked for together."""
        wanted = {group.schema_id for group in groups}
        known = {each: self._known[each] for each in wanted if each in self._known}
        return known | self.registry.by_ids(wanted - known.keys())

    def _format_of(self, group: Framed, writers: Mapping[SchemaId, RegisteredSchema]) -> AvroFormat | str:
        """What decodes these values, or why nothing does."""
        key = (group.schema_id, group.skipped)
        if key in self._formats:
            return self._formats[key]
        writer = writers.get(group.schema_id)
        if writer is None:  # it may be known later, so this is not kept here
            return f"the schema registry has no schema {group.schema_id}"
        if writer.kind != "AVRO":
            made: AvroFormat | str = f"schema {group.schema_id} of the registry is {writer.kind}, and not AVRO"
        else:
            try:
                made = self._format(writer, group.skipped)
            except UsageError as error:
                made = f"schema {group.schema_id} cannot be read by the reader's schema: {error}"
        if len(self._formats) >= _MOST_FORMATS:
            self._formats.clear()
        self._formats[key] = made
        return made

    def _format(self, writer: RegisteredSchema, skipped: int) -> AvroFormat:
        return AvroFormat(
            writer.text,
            references=dict(writer.references),
            reader_schema=self.reader.text,
            reader_references=dict(self.reader.references),
            fields=self._fields,
            header_bytes=skipped,
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """Values and their rows."""

    rows: pa.Array
    values: pa.Array
