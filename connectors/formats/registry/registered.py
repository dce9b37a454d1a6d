"""Values by a schema registry: each says its writer's schema, and all become columns of one reader's schema."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.registry.client import SchemaRegistry
from headrace.connectors.formats.registry.framing import Framed, framing, prefix
from headrace.connectors.formats.registry.schemas import RegisteredSchema, SchemaId
from headrace.connectors.formats.value_format import BadValue, ColumnFullError, DecodedValues, ValueFormat, as_binary
from headrace.enumerator.errors import UsageError

_MOST_KNOWN = 20


class RegisteredFormat(ValueFormat):
    """Values in a registry's wire format as the one schema `reader` wants them, and back. There is a class for each kind.

    `known`: schemas that were asked for already; others are asked for as they come, once in a process. `field`: "key" or
    "value" of a record, for the header that names a schema.

    A value whose schema no registry knows, is of another kind or does not resolve with the reader's is bad. Raises UsageError
    for a reader's schema of another kind.

    Rules of a schema (encryption, conditions in CEL, migrations) are not executed. As in Confluent's clients, which lack an
    executor then, writing by a schema that has one for writing is a UsageError, and so is reading, unless its failure there is
    none (`onFailure` NONE). A value whose writer's schema has one for reading, or that needs a migration, is bad.
    """

    kind: ClassVar[str]
    """AVRO, JSON or PROTOBUF, as the registry has it."""

    def __init__(
        self,
        registry: SchemaRegistry,
        reader: RegisteredSchema,
        *,
        known: Iterable[RegisteredSchema] = (),
        fields: Sequence[str] | None = None,
        field: Literal["key", "value"] = "value",
    ) -> None:
        if reader.kind != self.kind:
            raise UsageError(f"schema {reader.id} of {registry.config.shown} is {reader.kind}, and not {self.kind}")
        self.registry: SchemaRegistry = registry
        self.reader: RegisteredSchema = reader
        self._known: dict[SchemaId, RegisteredSchema] = {schema.id: schema for schema in known}
        self._fields, self._field = fields, field
        self._own = self._reading_own()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its arguments, and with the schemas that it knows: what is compiled is compiled where it arrives."""
        known = tuple(self._known.values())
        return partial(type(self), self.registry, self.reader, known=known, field=self._field, **self._arguments()), ()

    def _arguments(self) -> dict[str, Any]:
        """Those of the format, whatever the registry."""
        return {"fields": self._fields}

    @classmethod
    def of_subject(
        cls,
        registry: SchemaRegistry,
        subject: str,
        *,
        version: int | None = None,
        fields: Sequence[str] | None = None,
        field: Literal["key", "value"] = "value",
        **more: Any,  # noqa: ANN401 - what a class has besides
    ) -> Self:
        """A format whose reader's schema is this version of a subject, the newest now by default (None).

        That is looked up here and once, with the newest 20 versions, which travel with the format. Raises UnknownSchemaError
        where there is no such subject or version, and as `SchemaRegistry.by_id`.
        """
        reader = registry.version(subject, version)
        known = [*registry.versions(subject, _MOST_KNOWN), reader]
        return cls(registry, reader, known=known, fields=fields, field=field, **more)

    @classmethod
    def of_topic(
        cls,
        registry: SchemaRegistry,
        topic: str | None,
        *,
        record: str | None = None,
        version: int | None = None,
        fields: Sequence[str] | None = None,
        field: Literal["key", "value"] = "value",
        **more: Any,  # noqa: ANN401 - what a class has besides
    ) -> Self:
        """As `of_subject`, of the subject that `registry.subject` names for these records, by the strategy of its properties.

        `topic`: None where a strategy does not need it. `record`: as `subject_name` has it, where the strategy needs it; of
        Protobuf `message` represents it. Raises UsageError, too, where the strategy needs what is None.
        """
        subject = registry.subject(topic, field=field, record=record or more.get("message"))
        return cls.of_subject(registry, subject, version=version, fields=fields, field=field, **more)

    @property
    @abstractmethod
    def record(self) -> str | None:
        """What subjects are named after where they are named after a record; None where the schema has no such name."""

    @abstractmethod
    def _reading_own(self) -> ValueFormat:
        """What reads and writes values of the reader's schema, without what is before them. Raises UsageError."""

    @abstractmethod
    def _decoded(self, writer: RegisteredSchema, group: Framed, values: pa.Array) -> DecodedValues | str:
        """Values that were written with this schema, each behind `group.skipped` bytes; or why none can be read."""

    def _prefix(self, schema_id: int) -> bytes:
        """What is before a value of the reader's schema."""
        return prefix(schema_id)

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the reader's schema, with the fields that are asked for."""
        return self._own.arrow_type

    @property
    def reads_headers(self) -> bool:
        """True: a header may name the schema."""
        return True

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `ValueFormat` says, by what is before each value."""
        return self.decode_records(values, None)

    def decode_records(self, values: pa.Array, headers: pa.Array | None) -> DecodedValues:
        """As `ValueFormat` says.

        Raises DeadlineExceededError where a schema is not known and the registry does not answer, and AuthenticationError;
        UsageError where the reader's schema has a rule for reading, unless no field is asked for.
        """
        rule = self.reader.rule_of(["READ"]) if self._fields != [] else None
        if rule is not None:
            raise UsageError(
                f"{rule}: values would be read as they are stored, encrypted or not checked. Read them by a client of "
                "Confluent's that has the rule's executor, or take a version of the subject without the rule"
            )
        binary = as_binary(values)
        bad: list[BadValue] = []
        parts: list[_Part] = [self._nothing(pc.indices_nonzero(binary.is_null()))] if binary.null_count else []
        groups = list(framing(binary, headers, self._field))
        writers = self._writers(group for group in groups if isinstance(group, Framed))
        for group in groups:
            decoded = self._group(group, writers, binary) if isinstance(group, Framed) else group.reason
            if isinstance(decoded, str):
                bad += [BadValue(row, decoded) for row in group.rows.to_pylist()]
                parts.append(self._nothing(group.rows))
                continue
            rows = group.rows.to_pylist() if decoded.bad else []
            bad += [BadValue(rows[each.row], each.reason) for each in decoded.bad]
            parts.append(_Part(group.rows, decoded.values))
        return DecodedValues(self._in_order(parts), sorted(bad))

    def schema_ids(self, values: pa.Array, headers: pa.Array | None) -> list[str | None]:
        """Of each value the number or GUID that is before it, or in a header, whether or not the registry knows it."""
        ids: dict[int, str] = {}
        for group in framing(as_binary(values), headers, self._field):
            if isinstance(group, Framed):
                ids |= dict.fromkeys(group.rows.to_pylist(), str(group.schema_id))
        return [ids.get(row) for row in range(len(values))]

    def encode(self, values: pa.Array) -> pa.Array:
        """Values by the reader's schema, with its id before each, as `ValueFormat` says.

        Raises UsageError, too, where the schema has a rule for writing.
        """
        rule = self.reader.rule_of(["WRITE"])
        if rule is not None:
            raise UsageError(
                f"{rule}: values would be written in clear or unchecked. Write them by a client of Confluent's that has the "
                "rule's executor, or take a version of the subject without the rule"
            )
        if not isinstance(self.reader.id, int):
            raise UsageError("values can only be written by a schema that has a number in the registry")
        start = pa.scalar(self._prefix(self.reader.id), pa.binary())
        return pc.binary_join_element_wise(start, self._encoded(values), pa.scalar(b"", pa.binary()))

    def _encoded(self, values: pa.Array) -> pa.Array:
        """Values by the reader's schema, without anything before them."""
        return self._own.encode(values)

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
            self._known[schema_id] = self.registry.fetch(schema_id, self.reader.subject)
        return self._known[schema_id]

    def _writers(self, groups: Iterable[Framed]) -> dict[SchemaId, RegisteredSchema]:
        """The schemas that there are. What is not known is asked for together."""
        wanted = {group.schema_id for group in groups}
        known = {each: self._known[each] for each in wanted if each in self._known}
        return known | self.registry.by_ids(wanted - known.keys(), self.reader.subject)

    def _rule_between(self, writer: RegisteredSchema) -> str | None:
        """A rule that values of this schema need, in words. Which of it and the reader's is newer is not known."""
        if self._fields == []:
            return None
        migration = writer.rule_of(["DOWNGRADE"]) or self.reader.rule_of(["UPGRADE"])
        is_other = migration is not None and writer.fingerprint != self.reader.fingerprint
        return writer.rule_of(["READ"]) or (migration if is_other else None)

    def _group(self, group: Framed, writers: Mapping[SchemaId, RegisteredSchema], binary: pa.Array) -> DecodedValues | str:
        """The values of one schema, or why none of them can be read."""
        writer = writers.get(group.schema_id)
        if writer is None:
            return f"the schema registry has no schema {group.schema_id}"
        if writer.kind != self.kind:
            return f"schema {group.schema_id} of the registry is {writer.kind}, and not {self.kind}"
        if (rule := self._rule_between(writer)) is not None:
            return rule
        try:
            return self._decoded(writer, group, binary if len(group.rows) == len(binary) else binary.take(group.rows))
        except UsageError as error:
            return f"schema {group.schema_id} cannot be read by the reader's schema: {error}"


@dataclass(frozen=True, slots=True)
class _Part:
    """Values and their rows."""

    rows: pa.Array
    values: pa.Array
