"""What the options of typed keys and values mean: formats to read and to write, and what a checkpoint pins of them."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headrace.connectors.formats.by_name import FORMATS, FormatSpec, create_format
from headrace.connectors.formats.registry.registered import RegisteredFormat
from headrace.connectors.formats.registry.schemas import RegisteredSchema, SchemaReference, SubjectStrategy, UnknownSchemaError
from headrace.connectors.formats.value_format import BadValue, DecodedValues, ValueFormat, quoted_part
from headrace.connectors.kafka.read.typed import BadRecords
from headrace.enumerator.errors import StateError, UsageError

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
        """Of a `field` that may be one of the `columns` asked for (None: of all).

        Raises UsageError, which names the type, where Spark has to take the field, and has no type for it.
        """
        is_seen = columns is None or field in columns.names
        return cls(inner, pinned, _spark_type(inner.arrow_type) if is_seen else inner.arrow_type)

    @property
    def arrow_type(self) -> pa.DataType:
        return self._type

    @property
    def reads_headers(self) -> bool:
        return self.inner.reads_headers

    def decode(self, values: pa.Array) -> DecodedValues:
        return self.decode_records(values, None)

    def decode_records(self, values: pa.Array, headers: pa.Array | None) -> DecodedValues:
        decoded, bad = self.inner.decode_records(values, headers)
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
        spec: FormatSpec | None = given.get(f"{field}Format")
        if spec is None:
            continue
        if spec.registry_kind is not None:
            formats[field] = _schemed(spec, field, given, topics, wanted, registry_properties)
        else:
            plain = _without_schema(spec, field, given, wanted, time_zone=given.get("timeZone", session_time_zone))
            formats[field] = TypedFormat.seen(plain, {"format": spec.name}, wanted, field)
    return TypedOptions(formats, str(given.get("onBadRecord", BadRecord.FAIL)))  # type: ignore[arg-type] # its values


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
        said = f"{field}.subject.name.strategy"
        if said in registry_properties and not _has_schema(given.get(f"{field}Format")):
            raise UsageError(f"option '{REGISTRY_PREFIX}{said}' means nothing without {field}Format of a schema registry")
        if f"{field}Record" in given and "schemaRegistryUrl" not in given:
            raise UsageError(f"option '{field}Record' needs schemaRegistryUrl")
    if "timeZone" in given and not any(spec.name == "json" for field in FIELDS if (spec := given.get(f"{field}Format"))):
        raise UsageError("option 'timeZone' means nothing without valueFormat or keyFormat of json")
    if "onBadRecord" in given and not any(f"{field}Format" in given for field in FIELDS):
        raise UsageError("option 'onBadRecord' means nothing without valueFormat or keyFormat")


def _has_schema(spec: FormatSpec | None) -> bool:
    return spec is not None and spec.registry_kind is not None


def _no_schema(spec: FormatSpec, field: Field) -> UsageError:
    return UsageError(f"{field}Format={spec.name} needs schemaRegistryUrl, or a schema in {field}Schema or {field}SchemaFile")


def _schemed(
    spec: FormatSpec,
    field: Field,
    given: Mapping[str, Any],
    topics: Sequence[str] | None,
    wanted: StructType | None,
    registry_properties: Mapping[str, str],
) -> TypedFormat:
    """Values of a schema registry, or of one schema without its wire format."""
    from headrace.connectors.formats.registry.client import SchemaRegistry

    fields, text = _fields(field, wanted), _inline(field, given)
    if text is not None and "schemaRegistryUrl" in given:
        raise UsageError(f"give {field}Schema, or schemaRegistryUrl, whose values name their schemas, not both")
    if text is not None:
        if f"{field}Subject" in given or f"{field}SchemaVersion" in given:
            raise UsageError(f"give {field}Schema, or {field}Subject of a schema registry, not both")
        own = RegisteredSchema(0, str(spec.registry_kind), text)
        made = _bare(spec, field, given, text, fields)
        return TypedFormat.seen(made, _pin(spec, field, given, own, {}), wanted, field)
    if "schemaRegistryUrl" not in given:
        raise _no_schema(spec, field)
    registry = SchemaRegistry(given["schemaRegistryUrl"], registry_properties)
    _check_subject(field, given, registry_properties)
    version, more = given.get(f"{field}SchemaVersion"), _own_arguments(field, given)
    subject = given.get(f"{field}Subject") or _subject(registry, spec, field, topics, _record(field, given))
    found = _registered_class(spec).of_subject(registry, subject, version=version, fields=fields, field=field, **more)
    return TypedFormat.seen(found, _pin(spec, field, given, found.reader, {"id": str(found.reader.id)}), wanted, field)


def _registered_class(spec: FormatSpec) -> type[RegisteredFormat]:
    if spec.load_registered is None:
        raise UsageError(f"a schema registry has no schemas of format {spec.name!r}")
    return spec.load_registered()


def _own_arguments(field: Field, given: Mapping[str, Any]) -> dict[str, Any]:
    """What only one kind of format takes, as arguments, if it is said."""
    found = {"message": given.get(f"{field}Message"), "recursive": given.get(f"{field}Recursive")}
    return {name: str(value) for name, value in found.items() if value is not None}


def _bare(spec: FormatSpec, field: Field, given: Mapping[str, Any], text: str, fields: Sequence[str] | None) -> ValueFormat:
    return create_format(spec.name, schema=text, fields=fields, **_own_arguments(field, given))


def _pin(
    spec: FormatSpec, field: Field, given: Mapping[str, Any], reader: RegisteredSchema, named: Mapping[str, str]
) -> dict[str, Any]:
    """With the type of all that the schema has, of which a query may read a part; a type within itself has none."""
    pin = {"format": spec.name, **named, "fingerprint": reader.fingerprint}
    try:
        made = create_format(spec.name, schema=reader.text, references=dict(reader.references), **_own_arguments(field, given))
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


def _subject(registry: SchemaRegistry, spec: FormatSpec, field: Field, topics: Sequence[str] | None, record: str | None) -> str:
    """What the registry's strategy makes of the topic and of the record's name. Raises UsageError naming the option to give."""
    names = set(topics or ())
    strategy = dict(registry.config.strategies).get(field, SubjectStrategy.TOPIC_NAME)
    if strategy is not SubjectStrategy.RECORD_NAME and len(names) != 1:
        raise UsageError(
            f"option '{field}Subject' is missing: with a pattern or several topics it cannot be determined from the topic's "
            "name"
        )
    if strategy is not SubjectStrategy.TOPIC_NAME and record is None:
        option = "Message" if "message" in spec.arguments else "Record"
        raise UsageError(f"option '{field}{option}' is missing: {strategy} names the subject after the record")
    return registry.subject(names.pop() if len(names) == 1 else None, field=field, record=record)


def _record(field: Field, given: Mapping[str, Any]) -> str | None:
    """The name of the record by which subjects may be named, if an option says it."""
    record: str | None = given.get(f"{field}Message", given.get(f"{field}Record"))
    return record


def _check_subject(field: Field, given: Mapping[str, Any], registry_properties: Mapping[str, str]) -> None:
    said = f"{field}.subject.name.strategy"
    if f"{field}Subject" in given and said in registry_properties:
        raise UsageError(f"give {field}Subject or {REGISTRY_PREFIX}{said}, not both")
    if f"{field}Record" not in given:
        return
    spec: FormatSpec = given[f"{field}Format"]
    if "message" in spec.arguments:
        raise UsageError(
            f"option '{field}Record' means nothing with {field}Format={spec.name}: {field}Message names the record"
        )
    if not registry_properties.get(said, "").endswith("RecordNameStrategy"):
        raise UsageError(
            f"option '{field}Record' means nothing without {REGISTRY_PREFIX}{said} of RecordNameStrategy or "
            "TopicRecordNameStrategy"
        )
    if f"{field}Schema" in given or f"{field}SchemaFile" in given:
        raise UsageError(f"option '{field}Record' means nothing with {field}Schema, which has its own name")


def session_time_zone() -> str:
    """The zone of the session whose task this is. If it has no setting, Spark's is that of the driver's machine."""
    context = TaskContext.get()
    said = None if context is None else context.getLocalProperty("spark.sql.session.timeZone")
    return said or os.environ.get("TZ") or os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2] or "UTC"


def _without_schema(
    spec: FormatSpec,
    field: Field,
    given: Mapping[str, Any],
    columns: StructType | None,
    *,
    time_zone: str | Callable[[], str] | None = None,
) -> ValueFormat:
    """A format that no schema describes. It takes the type of its values from the frame's column, or needs none."""
    if "arrow_type" not in spec.arguments:
        return create_format(spec.name)
    column = _column(field, columns)
    if column is None and f"{field}Schema" in given:
        column = _from_json(field, given[f"{field}Schema"])
    if column is None and columns is not None:  # the field is not in the frame: whether it is JSON is all that may matter
        column = StructType([])
    if column is None:
        raise UsageError(
            f"{field}Format={spec.name} needs the type of the {field}: with .schema('{field} struct<...>'), or in "
            f"{field}Schema the type's JSON (frame.schema.json())"
        )
    return create_format(spec.name, arrow_type=to_arrow_type(column, timezone="UTC"), time_zone=time_zone)


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
        if f"{field}SchemaReferences" in given and ("schemaRegistryUrl" not in given or _inline(field, given) is None):
            raise UsageError(f"option '{field}SchemaReferences' needs schemaRegistryUrl and {field}Schema or {field}SchemaFile")
    formats: dict[Field, ValueFormat] = {}
    for field in FIELDS:
        spec: FormatSpec | None = given.get(f"{field}Format")
        column = _column(field, schema)
        if spec is None:
            continue
        if column is None:
            raise UsageError(f"option '{field}Format' needs a column {field!r}; the columns are {', '.join(schema.names)}")
        if spec.registry_kind is None and f"{field}Schema" in given:
            raise UsageError(
                f"option '{field}Schema' means nothing to a sink with {field}Format={spec.name}: the frame has the type"
            )
        kind = to_arrow_type(column, timezone="UTC")
        formats[field] = _writer(spec, field, given, schema, registry_properties)
        formats[field].encode(pa.array([], kind))  # what can never fit is refused here, and not by every task
    return formats


def _writer(
    spec: FormatSpec, field: Field, given: Mapping[str, Any], schema: StructType, registry_properties: Mapping[str, str]
) -> ValueFormat:
    if spec.registry_kind is None:
        return _without_schema(spec, field, given, schema)
    text = _inline(field, given)
    if "schemaRegistryUrl" in given:
        _check_subject(field, given, registry_properties)
        asked = _Asked(
            spec=spec,
            field=field,
            url=given["schemaRegistryUrl"],
            properties=tuple(sorted(registry_properties.items())),
            topic=given.get("topic"),
            subject=given.get(f"{field}Subject"),
            record=_record(field, given),
            version=given.get(f"{field}SchemaVersion"),
            text=text,
            references=given.get(f"{field}SchemaReferences", ()),
            registers=given.get("registerSchemas", False),
            message=given.get(f"{field}Message"),
        )
        return _registered(asked, _now_and_then())
    if text is None:
        raise _no_schema(spec, field)
    if f"{field}Subject" in given or f"{field}SchemaVersion" in given:
        raise UsageError(f"options '{field}Subject' and '{field}SchemaVersion' need schemaRegistryUrl")
    return _bare(spec, field, given, text, None)


_ASKED_AGAIN_S = 300.0


def _now_and_then() -> int:
    """Another number every five minutes: Spark makes a writer for every batch, and not every batch need ask the registry."""
    return int(time.monotonic() // _ASKED_AGAIN_S)


@dataclass(frozen=True)
class _Asked:
    """What a sink's options say of a registry's schema: a version of a subject; or a text, that is registered or is to be."""

    spec: FormatSpec
    field: Field
    url: str
    properties: tuple[tuple[str, str], ...]
    topic: str | None
    subject: str | None
    record: str | None
    version: int | None
    text: str | None
    references: tuple[SchemaReference, ...]
    registers: bool
    message: str | None

    def subject_in(self, registry: SchemaRegistry, record: str | None) -> str:
        """The one that is named, or that of the topic and of a record of this name."""
        return self.subject or _subject(registry, self.spec, self.field, [self.topic] if self.topic else None, record)


@functools.lru_cache(maxsize=64)
def _registered(asked: _Asked, _period: int) -> ValueFormat:
    """Encodes by a version of a subject; or by a schema of one's own, as it is registered there, or is to be now."""
    from headrace.connectors.formats.registry.client import SchemaRegistry

    registry = SchemaRegistry(asked.url, dict(asked.properties))
    make = functools.partial(_registered_class(asked.spec), registry)
    if asked.message is not None:
        make = functools.partial(make, message=asked.message)
    if asked.text is None:
        if asked.registers:
            raise UsageError("option 'registerSchemas' needs the schema that is to be registered, in valueSchema or keySchema")
        return make(registry.version(asked.subject_in(registry, asked.record), asked.version))
    if asked.version is not None:
        raise UsageError("give a version of the subject, or a schema, not both")
    own = registry.compose(str(asked.spec.registry_kind), asked.text, asked.references, subject=asked.subject)
    subject = asked.subject_in(registry, make(own).record)  # what is not a schema of the format is not registered
    return make(registry.register(subject, own) if asked.registers else registry.lookup(subject, own))


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
            raise StateError(
                f"this query's checkpoint was written with {field}Format={was.get('format')}, and {problem}. Continue with the "
                f"schema of earlier ({field}SchemaVersion names a version), or start over with another checkpoint"
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
        try:
            fingerprint = typed.inner.pinned(_schema_id(was["id"])).fingerprint
        except UnknownSchemaError:
            return f"the registry has no schema {was['id']}, which was read then"
    return None if was.get("fingerprint") == fingerprint else f"schema {was['id']} of the registry was another one then"


def _schema_id(text: object) -> int:
    if not isinstance(text, str) or not text.isascii() or not text.isdigit():
        raise StateError("this query's checkpoint names a schema by something else than a registry's number; it is damaged")
    return int(text)


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
    return None if was == now else f"the type of '{path}' is another one now: {_named(now)}, and was {_named(was)}"


def _named(kind: Any) -> str:  # noqa: ANN401 - JSON
    return kind if isinstance(kind, str) else "a record" if isinstance(kind, dict) else f"a {kind[0]}"
