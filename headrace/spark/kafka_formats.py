"""What the options of typed keys and values mean: formats to read and to write, and what a checkpoint pins of them."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headrace.connectors.formats.by_name import FORMATS, FormatSpec, create_format
from headrace.connectors.formats.registry.registered import RegisteredFormat
from headrace.connectors.formats.registry.schemas import RegisteredSchema, SchemaReference, SubjectStrategy, UnknownSchemaError
from headrace.connectors.formats.value_format import BadValue, DecodedValues, ValueFormat, quoted_part
from headrace.connectors.kafka.read.typed import BadRecords
from headrace.enumerator.errors import StateError, UsageError
from headrace.runners.spark.column_types import in_microseconds
from headrace.spark.arrow_types import arrow_type
from headrace.spark.time_zone import session_time_zone

if TYPE_CHECKING:
    from headrace.connectors.formats.registry.client import SchemaRegistry

Field = Literal["key", "value"]
FIELDS: tuple[Field, Field] = ("key", "value")
REGISTRY_PREFIX = "schema.registry."
RECORD_FORMATS = {name: spec for name, spec in FORMATS.items() if name != "bytes"}
"""The formats of keys and values. Without one, a column has the bytes as they are."""


class RecursiveField(StrEnum):
    """What becomes of a field whose Avro type contains itself."""

    REFUSE = "refuse"
    JSON = "json"


class BadRecord(StrEnum):
    """What becomes of a record that cannot be decoded."""

    FAIL = "fail"
    KEEP = "keep"
    SKIP = "skip"


@dataclass(frozen=True)
class TypedOptions:
    """The formats of keys and values, where there are any, and what becomes of bad records."""

    formats: Mapping[Field, TypedFormat]
    on_bad: BadRecords


class TypedFormat(ValueFormat):
    """A format whose columns have the Arrow types that Spark is given. A value that does not fit such a type is bad."""

    def __init__(self, inner: ValueFormat, pinned: Mapping[str, Any], kind: pa.DataType) -> None:
        """`pinned`: what a checkpoint keeps of it, as JSON. `kind`: the type of its columns, to which they are cast."""
        self.inner, self.pinned = inner, pinned
        self._type = kind

    @classmethod
    def seen(cls, inner: ValueFormat, pinned: Mapping[str, Any], columns: StructType | None, field: Field) -> TypedFormat:
        """Of a `field` that may be one of the `columns` asked for (None: all). UsageError for a type that Spark has not."""
        is_seen = columns is None or field in columns.names
        return cls(inner, pinned, _spark_type(inner.arrow_type) if is_seen else inner.arrow_type)

    @property
    def arrow_type(self) -> pa.DataType:
        return self._type

    @functools.cached_property
    def _cut(self) -> pa.DataType:
        return in_microseconds(self.inner.arrow_type)

    @property
    def reads_headers(self) -> bool:
        return self.inner.reads_headers

    def decode(self, values: pa.Array) -> DecodedValues:
        return self.decode_records(values, None)

    def decode_records(self, values: pa.Array, headers: pa.Array | None) -> DecodedValues:
        decoded, bad = self.inner.decode_records(values, headers)
        if decoded.type != self._cut:  # else Spark keeps digits that its `time` does not have
            decoded = pc.cast(decoded, options=pc.CastOptions(self._cut, allow_time_truncate=True))
        if decoded.type == self._type:
            return DecodedValues(decoded, bad)
        unfit: list[int] = []
        parts = list(self._cast(decoded, 0, unfit))
        more = [BadValue(row, "a time or a number in it is beyond the range of Spark's type") for row in unfit]
        return DecodedValues(pa.concat_arrays(parts), sorted([*bad, *more]))

    def schema_ids(self, values: pa.Array, headers: pa.Array | None) -> list[str | None]:
        return self.inner.schema_ids(values, headers)

    def encode(self, values: pa.Array) -> pa.Array:
        return self.inner.encode(values)

    def _cast(self, values: pa.Array, start: int, unfit: list[int]) -> Iterator[pa.Array]:
        """The column in Spark's type, by halves where a value does not fit it."""
        try:
            yield pc.cast(values, options=pc.CastOptions(self._type, allow_time_truncate=True))
        except pa.ArrowInvalid:
            if len(values) == 1:
                unfit.append(start)
                yield pa.nulls(1, self._type)
                return
            half = len(values) // 2
            yield from self._cast(values.slice(0, half), start, unfit)
            yield from self._cast(values.slice(half), start + half, unfit)


# --- types ------------------------------------------------------------------------------------------------------------


def _spark_type(kind: pa.DataType) -> pa.DataType:
    try:
        return _as_spark_has(kind)
    except (PySparkException, TypeError, ValueError) as error:  # ValueError: a decimal of more than 38 digits
        path, unfit = _unfit(kind, "")
        where = f", which field '{path}' has" if path else ""
        raise UsageError(
            f"Spark has no type for {unfit}{where}; with .schema(...) ask only for fields of other types"
        ) from error


def _as_spark_has(kind: pa.DataType) -> pa.DataType:
    return to_arrow_type(from_arrow_type(_plain(kind)), timezone="UTC")


def _unfit(kind: pa.DataType, path: str) -> tuple[str, pa.DataType]:
    """The innermost type that Spark does not have, and the dotted name of its field."""
    inner: list[tuple[str, pa.DataType]] = []
    if pa.types.is_struct(kind):
        inner = [(f"{path}.{each.name}" if path else each.name, each.type) for each in kind]
    elif pa.types.is_list(kind):
        inner = [(path, kind.value_type)]
    elif pa.types.is_map(kind):
        inner = [(path, kind.item_type)]
    for name, each in inner:
        try:
            _as_spark_has(each)
        except (PySparkException, TypeError, ValueError):
            return _unfit(each, name)
    return path, kind


def _plain(kind: pa.DataType) -> pa.DataType:
    """Without the forms that Spark does not have, where another form has the same values."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([each.with_type(_plain(each.type)) for each in kind])
    if types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_dictionary(kind):
        return kind.value_type
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_time(kind):
        return pa.time64("ns")
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    return pa.timestamp("us", tz=kind.tz) if types.is_timestamp(kind) else kind


_UNSIGNED = {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
"""Numbers that Spark has no type for, in the narrowest of its own that has them all."""


def _described(kind: pa.DataType) -> Any:  # noqa: ANN401 - JSON
    """A type as JSON: an object of a record's fields, ["list", ...], ["map", ...], or Arrow's name."""
    if pa.types.is_struct(kind):
        return {each.name: _described(each.type) for each in kind}
    if pa.types.is_list(kind):
        return ["list", _described(kind.value_type)]
    if pa.types.is_map(kind):
        return ["map", _described(kind.item_type)]
    return str(kind)


# --- options ----------------------------------------------------------------------------------------------------------


def read_formats(
    given: Mapping[str, Any], topics: Sequence[str] | None, wanted: StructType | None, registry_properties: Mapping[str, str]
) -> TypedOptions:
    """What the options say. Contacts the schema registry, if they name one.

    `topics`: those that are read, if they are known; `wanted`: the columns that the user asks for, if that is known. Raises
    UsageError naming the option that is missing or means nothing here, UnknownSchemaError, and DeadlineExceededError.
    """
    _check(given, registry_properties)
    formats: dict[Field, TypedFormat] = {}
    for field in FIELDS:
        if f"{field}Format" not in given:
            continue
        said = _Said.of(field, given, tuple(topics or ()), registry_properties)
        if _has_schema(said.spec):
            inner, pinned = _schemed(said, wanted)
        else:
            inner = _without_schema(said, wanted, time_zone=given.get("timeZone", session_time_zone))
            pinned = {"format": said.spec.name, **_type_asked_for(said, inner)}
        formats[field] = TypedFormat.seen(inner, pinned, wanted, field)
    return TypedOptions(formats, str(given.get("onBadRecord", BadRecord.FAIL)))  # type: ignore[arg-type] # its values


@dataclass(frozen=True)
class _Said:
    """What the options say of keys, or of values. Hashable.

    `topics`: those that are read or written, if they are known. `text`: of a schema in the options, or in a file. `arguments`:
    what only one kind of format takes.
    """

    field: Field
    spec: FormatSpec
    topics: tuple[str, ...]
    url: str | None
    properties: tuple[tuple[str, str], ...]
    subject: str | None
    version: int | None
    record: str | None
    text: str | None
    references: tuple[SchemaReference, ...]
    registers: bool
    arguments: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, field: Field, given: Mapping[str, Any], topics: tuple[str, ...], properties: Mapping[str, str]) -> _Said:
        def of_field(name: str) -> Any:  # noqa: ANN401 - each option has its type
            return given.get(f"{field}{name}")

        only = {"message": of_field("Message"), "recursive": of_field("Recursive")}
        return cls(
            field,
            of_field("Format"),
            topics,
            given.get("schemaRegistryUrl"),
            tuple(sorted(properties.items())),
            of_field("Subject"),
            of_field("SchemaVersion"),
            of_field("Record"),
            _inline(field, given),
            of_field("SchemaReferences") or (),
            given.get("registerSchemas", False),
            tuple((name, str(value)) for name, value in only.items() if value is not None),
        )

    @property
    def registry(self) -> SchemaRegistry:
        from headrace.connectors.formats.registry.client import SchemaRegistry

        if self.url is None:
            raise UsageError(
                f"{self.field}Format={self.spec.name} needs schemaRegistryUrl, or a schema in {self.field}Schema or "
                f"{self.field}SchemaFile"
            )
        self._check_subject()
        return SchemaRegistry(self.url, dict(self.properties))

    @property
    def registered_class(self) -> type[RegisteredFormat]:
        if self.spec.load_registered is None:
            raise UsageError(f"a schema registry has no schemas of format {self.spec.name!r}")
        return self.spec.load_registered()

    def bare(self, fields: Sequence[str] | None) -> ValueFormat:
        """Of the schema's text, without a registry's wire format."""
        return create_format(self.spec.name, schema=self.text, fields=fields, **dict(self.arguments))

    def subject_in(self, registry: SchemaRegistry, record: str | None) -> str:
        """The one named, or the strategy's for the topic and a record of this name. Raises UsageError naming the option."""
        if self.subject is not None:
            return self.subject
        names = set(self.topics)
        strategy = dict(registry.config.strategies).get(self.field, SubjectStrategy.TOPIC_NAME)
        if strategy is not SubjectStrategy.RECORD_NAME and len(names) != 1:
            raise UsageError(
                f"option '{self.field}Subject' is missing: with a pattern or several topics it cannot be determined from the "
                "topic's name"
            )
        if strategy is not SubjectStrategy.TOPIC_NAME and record is None:
            option = "Message" if "message" in self.spec.arguments else "Record"
            raise UsageError(f"option '{self.field}{option}' is missing: {strategy} names the subject after the record")
        return registry.subject(names.pop() if len(names) == 1 else None, field=self.field, record=record)

    @property
    def record_name(self) -> str | None:
        """Of the record by which subjects may be named, if an option says it."""
        return dict(self.arguments).get("message", self.record)

    def _check_subject(self) -> None:
        field, strategy = self.field, f"{self.field}.subject.name.strategy"
        properties = dict(self.properties)
        if self.subject is not None and strategy in properties:
            raise UsageError(f"give {field}Subject or {REGISTRY_PREFIX}{strategy}, not both")
        if self.record is None:
            return
        if "message" in self.spec.arguments:
            raise UsageError(
                f"option '{field}Record' means nothing with {field}Format={self.spec.name}: {field}Message names the record"
            )
        if not properties.get(strategy, "").endswith("RecordNameStrategy"):
            raise UsageError(
                f"option '{field}Record' means nothing without {REGISTRY_PREFIX}{strategy} of RecordNameStrategy or "
                "TopicRecordNameStrategy"
            )
        if self.text is not None:
            raise UsageError(f"option '{field}Record' means nothing with {field}Schema, which has its own name")


def _check(given: Mapping[str, Any], registry_properties: Mapping[str, str]) -> None:
    for field in FIELDS:
        spec: FormatSpec | None = given.get(f"{field}Format")
        for option in (f"{field}Subject", f"{field}SchemaVersion", f"{field}Schema", f"{field}SchemaFile"):
            if option in given and (spec is None or not spec.arguments):
                raise UsageError(f"option '{option}' means nothing without {field}Format of another kind than string")
            if option in given and spec is not None and spec.registry_kind is None and option != f"{field}Schema":
                raise UsageError(f"option '{option}' means nothing with {field}Format={spec.name}")
        for option, argument in ((f"{field}Message", "message"), (f"{field}Recursive", "recursive")):
            if option in given and (spec is None or argument not in spec.arguments):
                takers = " or ".join(each.name for each in RECORD_FORMATS.values() if argument in each.arguments)
                raise UsageError(f"option '{option}' means nothing without {field}Format={takers}")
    if "schemaRegistryUrl" in given and not any(_has_schema(given.get(f"{field}Format")) for field in FIELDS):
        *others, last = (spec.name for spec in RECORD_FORMATS.values() if _has_schema(spec))
        raise UsageError(
            f"option 'schemaRegistryUrl' means nothing without valueFormat or keyFormat of {', '.join(others)} or {last}"
        )
    if registry_properties and "schemaRegistryUrl" not in given:
        raise UsageError(f"option '{REGISTRY_PREFIX}{min(registry_properties)}' needs schemaRegistryUrl")
    for field in FIELDS:
        strategy = f"{field}.subject.name.strategy"
        if strategy in registry_properties and not _has_schema(given.get(f"{field}Format")):
            raise UsageError(f"option '{REGISTRY_PREFIX}{strategy}' means nothing without {field}Format of a schema registry")
        if f"{field}Record" in given and "schemaRegistryUrl" not in given:
            raise UsageError(f"option '{field}Record' needs schemaRegistryUrl")
    if "timeZone" in given and not any(spec.name == "json" for field in FIELDS if (spec := given.get(f"{field}Format"))):
        raise UsageError("option 'timeZone' means nothing without valueFormat or keyFormat of json")
    if "onBadRecord" in given and not any(f"{field}Format" in given for field in FIELDS):
        raise UsageError("option 'onBadRecord' means nothing without valueFormat or keyFormat")


def _has_schema(spec: FormatSpec | None) -> bool:
    return spec is not None and spec.registry_kind is not None


def _schemed(said: _Said, wanted: StructType | None) -> tuple[ValueFormat, dict[str, Any]]:
    """Of values of a schema registry, or of one schema without its wire format; and what a checkpoint pins of it."""
    fields = _fields(said.field, wanted)
    if said.text is None:
        registry = said.registry
        subject, arguments = said.subject_in(registry, said.record_name), dict(said.arguments)
        found = said.registered_class.of_subject(
            registry, subject, version=said.version, fields=fields, field=said.field, **arguments
        )
        return found, _pin(said, found.reader, {"id": str(found.reader.id)})
    if said.url is not None:
        raise UsageError(f"give {said.field}Schema, or schemaRegistryUrl, whose values name their schemas, not both")
    if said.subject is not None or said.version is not None:
        raise UsageError(f"give {said.field}Schema, or {said.field}Subject of a schema registry, not both")
    return said.bare(fields), _pin(said, RegisteredSchema(0, str(said.spec.registry_kind), said.text), {})


def _pin(said: _Said, reader: RegisteredSchema, named: Mapping[str, str]) -> dict[str, Any]:
    """With the type of all that the schema has, of which a query may read a part; a type within itself has none."""
    pin = {"format": said.spec.name, **named, "fingerprint": reader.fingerprint}
    try:
        references, arguments = dict(reader.references), dict(said.arguments)
        made = create_format(said.spec.name, schema=reader.text, references=references, **arguments)
        return {**pin, "type": _described(made.arrow_type)}
    except UsageError:
        return pin


def _column(field: Field, columns: StructType | None) -> DataType | None:
    """The type that is asked for; None if any is taken, or if the field is not asked for."""
    return None if columns is None or field not in columns.names else columns[field].dataType


def _fields(field: Field, wanted: StructType | None) -> list[str] | None:
    """The fields that are asked for: None is all. None at all are needed of a column that is not asked for."""
    if wanted is None:
        return None
    column = _column(field, wanted)
    return [] if column is None else list(_leaves(column, "")) or None


def _leaves(kind: DataType, path: str) -> Iterator[str]:
    """The dotted names of all that a user asks for of a record; nothing for what is not a record."""
    match kind:
        case StructType():
            for each in kind.fields:
                part = quoted_part(each.name)
                inside = f"{path}.{part}" if path else part
                yield from list(_leaves(each.dataType, inside)) or [inside]
        case ArrayType():
            yield from _leaves(kind.elementType, path)
        case MapType():
            yield from _leaves(kind.valueType, path)


def _inline(field: Field, given: Mapping[str, Any]) -> str | None:
    """The text of a schema in the options, or in a file."""
    if f"{field}SchemaFile" not in given:
        text: str | None = given.get(f"{field}Schema")
        return text
    if f"{field}Schema" in given:
        raise UsageError(f"give {field}Schema or {field}SchemaFile, not both")
    path = given[f"{field}SchemaFile"]
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"option '{field}SchemaFile': {path} cannot be read: {error}") from error


def _without_schema(
    said: _Said, columns: StructType | None, *, time_zone: str | Callable[[], str] | None = None
) -> ValueFormat:
    """A format that no schema describes. It takes the type of its values from the frame's column, or needs none."""
    spec, field = said.spec, said.field
    if "arrow_type" not in spec.arguments:
        return create_format(spec.name)
    column = _column(field, columns)
    if column is None and said.text is not None:
        column = _from_json(field, said.text)
    if column is None and columns is not None:  # the field is not in the frame: whether it is JSON is all that may matter
        column = StructType([])
    if column is None:
        raise UsageError(
            f"{field}Format={spec.name} needs the type of the {field}: with .schema('{field} struct<...>'), or in "
            f"{field}Schema the type's JSON (frame.schema.json())"
        )
    return create_format(spec.name, arrow_type=arrow_type(field, column), time_zone=time_zone)


def _type_asked_for(said: _Said, made: ValueFormat) -> dict[str, Any]:
    """What a checkpoint pins of a format that has its type from the user. Nothing where a query does not read the field."""
    kind = _described(made.arrow_type) if "arrow_type" in said.spec.arguments else {}
    return {"type": kind} if kind else {}


def _from_json(field: Field, text: str) -> DataType:
    try:
        return StructType.fromJson(json.loads(text))
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"option '{field}Schema' must be the JSON of a Spark schema (frame.schema.json())") from error


# --- writing ----------------------------------------------------------------------------------------------------------


def write_formats(
    given: Mapping[str, Any], schema: StructType, registry_properties: Mapping[str, str]
) -> dict[Field, ValueFormat]:
    """What encodes the keys and values of a frame. Contacts the schema registry, if the options name one.

    Raises UsageError naming the option that is missing or means nothing here, or the field of the frame that does not fit the
    schema; UnknownSchemaError where a schema is not registered and is not to be; and DeadlineExceededError.
    """
    _check(given, registry_properties)
    if given.get("registerSchemas", False) and "schemaRegistryUrl" not in given:
        raise UsageError("option 'registerSchemas' needs schemaRegistryUrl")
    for field in FIELDS:
        has_text = f"{field}Schema" in given or f"{field}SchemaFile" in given
        if f"{field}SchemaReferences" in given and not (has_text and "schemaRegistryUrl" in given):
            raise UsageError(f"option '{field}SchemaReferences' needs schemaRegistryUrl and {field}Schema or {field}SchemaFile")
    formats: dict[Field, ValueFormat] = {}
    for field in FIELDS:
        spec: FormatSpec | None = given.get(f"{field}Format")
        if spec is None:
            continue
        column = _column(field, schema)
        if column is None:
            raise UsageError(f"option '{field}Format' needs a column {field!r}; the columns are {', '.join(schema.names)}")
        if spec.registry_kind is None and f"{field}Schema" in given:
            raise UsageError(
                f"option '{field}Schema' means nothing to a sink with {field}Format={spec.name}: the frame has the type"
            )
        topics = (given["topic"],) if "topic" in given else ()
        formats[field] = _writer(_Said.of(field, given, topics, registry_properties), schema)
        kind = arrow_type(field, column)
        formats[field].encode(pa.array([], kind))  # what can never fit is refused here, and not by every task
    return formats


def _writer(said: _Said, schema: StructType) -> ValueFormat:
    if said.spec.registry_kind is None:
        return _without_schema(said, schema)
    if said.url is not None or said.text is None:
        # Another number every five minutes: Spark makes a writer for every batch, and not every batch need ask the registry.
        return _registered(said, int(time.monotonic() // 300))
    if said.subject is not None or said.version is not None:
        raise UsageError(f"options '{said.field}Subject' and '{said.field}SchemaVersion' need schemaRegistryUrl")
    return said.bare(None)


@functools.lru_cache(maxsize=64)
def _registered(said: _Said, _period: int) -> ValueFormat:
    """Encodes by a version of a subject; or by a schema of one's own, as it is registered there, or is to be now."""
    registry = said.registry
    kind = said.registered_class

    def make(schema: RegisteredSchema) -> RegisteredFormat:
        return kind(registry, schema, **dict(said.arguments))

    if said.text is None:
        if said.registers:
            raise UsageError("option 'registerSchemas' needs the schema that is to be registered, in valueSchema or keySchema")
        return make(registry.version(said.subject_in(registry, said.record_name), said.version))
    if said.version is not None:
        raise UsageError("give a version of the subject, or a schema, not both")
    own = registry.compose(str(said.spec.registry_kind), said.text, said.references, subject=said.subject)
    subject = said.subject_in(registry, make(own).record)  # what is not a schema of the format is not registered
    return make(registry.register(subject, own) if said.registers else registry.lookup(subject, own))


# --- what a checkpoint pins -------------------------------------------------------------------------------------------


def check_pinned(pinned: Mapping[str, Mapping[str, Any]], formats: Mapping[Field, TypedFormat]) -> None:
    """That a query continues as its checkpoint says it started: `pinned` as in `TypedFormat`, by key and value.

    A format that is new to the checkpoint is taken, and a schema with more fields than before. Raises StateError for another
    format or none, for a field that is gone or has another type, and for a registry that has another schema, or none, under the
    id of earlier. That is asked of the registry, once, when the newest schema has another id: DeadlineExceededError
    without an answer.
    """
    for field in FIELDS:
        if (was := pinned.get(field)) is None:
            continue
        problem = _difference(was, formats[field]) if field in formats else f"there is no {field}Format now"
        if problem is not None:
            by = f" ({field}SchemaVersion names a version)" if "id" in was else ""
            raise StateError(
                f"this query's checkpoint was written with {field}Format={was.get('format')}, and {problem}. Continue with the "
                f"schema of earlier{by}, or start over with another checkpoint"
            )


def _difference(was: Mapping[str, Any], typed: TypedFormat) -> str | None:
    now = typed.pinned
    if was.get("format") != now["format"]:
        return f"it is {now['format']} now"
    if "id" in was and "id" in now and (problem := _other_registry(was, typed)) is not None:
        return f"{problem}: it is another registry, or it was set up again"
    if "type" in was and "type" in now:
        return _narrower(was["type"], now["type"], "")
    return None if was.get("fingerprint") == now.get("fingerprint") else "it has another schema now"


def _other_registry(was: Mapping[str, Any], typed: TypedFormat) -> str | None:
    """What the registry says otherwise of the schema that was the newest then. That there are newer ones proves nothing."""
    fingerprint = typed.pinned.get("fingerprint")
    if was["id"] != typed.pinned["id"] and isinstance(typed.inner, RegisteredFormat):
        if not isinstance(was["id"], str) or not was["id"].isascii() or not was["id"].isdigit():
            raise StateError("this query's checkpoint names a schema by something else than a registry's number; it is damaged")
        try:
            fingerprint = typed.inner.pinned(int(was["id"])).fingerprint
        except UnknownSchemaError:
            return f"the registry has no schema {was['id']}, which was read then"
    return None if was.get("fingerprint") == fingerprint else f"schema {was['id']} of the registry was another one then"


def _narrower(was: Any, now: Any, path: str) -> str | None:  # noqa: ANN401 - JSON
    if isinstance(was, dict) and isinstance(now, dict):
        for name, kind in was.items():
            inside = f"{path}.{name}" if path else name
            if name not in now:
                return f"its schema has no field '{inside}' any more"
            if (problem := _narrower(kind, now[name], inside)) is not None:
                return problem
        return None
    if isinstance(was, list) and isinstance(now, list) and was[0] == now[0]:
        return _narrower(was[1], now[1], path)
    of = f" of '{path}'" if path else ""
    return None if was == now else f"the type{of} is another one now: {_named(now)}, and was {_named(was)}"


def _named(kind: Any) -> str:  # noqa: ANN401 - JSON
    return kind if isinstance(kind, str) else "a record" if isinstance(kind, dict) else f"a {kind[0]}"
