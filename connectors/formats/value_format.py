"""The contract of a format: a binary column to a typed one and back, bad values reported and not costing their neighbours."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.arguments import names
from headrace.connectors.base.nested import plain, record_fields, visible
from headrace.enumerator.errors import HeadraceError, UsageError

_DATA = re.compile(r" (in )?'.*'|(?<=Decimal value) -?[\d.]+|: -?\d+\Z", re.DOTALL)
_PART = re.compile(r"`((?:[^`]|``)+)`(?=\.|$)|([^.]*)")


class ColumnFullError(HeadraceError):
    """Decoded, these values are more than one Arrow column can hold, and each alone is not. Fewer at once can be decoded."""


class BadValue(NamedTuple):
    """A value that could not be decoded: its row, and why. The reason quotes nothing of the value.

    That is so of the value alone, whichever others are decoded with it and however much memory there is.
    """

    row: int
    reason: str


class DecodedValues(NamedTuple):
    """A typed column with as many rows as the binary one. A row is null where the binary one was, and where it was bad.

    `bad` is in the order of the rows.
    """

    values: pa.Array
    bad: list[BadValue]


def unquoted(error: Exception) -> str:
    """What Arrow reports of values, without them: all from the first quotation mark to the last, and numbers without any."""
    return _DATA.sub("", str(error))


class ValueFormat(ABC):
    """Decodes and encodes columns. Any thread may call it, one at a time in each format."""

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The type of what `decode` gives and `encode` takes."""

    @abstractmethod
    def decode(self, values: pa.Array) -> DecodedValues:
        """A binary or string column as one of `arrow_type`.

        Raises UsageError for a column of another type, ColumnFullError, and MemoryError.
        """

    @property
    def reads_headers(self) -> bool:
        """Whether what a value means may stand in its record's headers, which `decode_records` is then to be given."""
        return False

    def decode_records(self, values: pa.Array, headers: pa.Array | None) -> DecodedValues:
        """As `decode`, of records: `headers` has for each row a list of structs of key and value, or is None."""
        del headers
        return self.decode(values)

    def schema_ids(self, values: pa.Array, headers: pa.Array | None) -> list[str | None]:
        """For each record the id of the schema that it names. None, as by default for all, where it names none."""
        del headers
        return [None] * len(values)

    @abstractmethod
    def encode(self, values: pa.Array) -> pa.Array:
        """A column of `arrow_type`, or one that Arrow casts to it, as a binary one. Nulls stay null.

        Raises UsageError, which names the row, for a value that the format cannot hold.
        """


def check_values(values: pa.Array) -> None:
    """Raise UsageError for a value that its type does not have, such as a text that is not UTF-8: Arrow looks when asked."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UsageError(f"a column of {values.type} has a value that its type does not have: {error}") from error


def exactly(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in another type, where none changes. Raises ArrowInvalid or ArrowNotImplementedError.

    Arrow's own casts round reals and decimals, cut times to days, make any number true, and drop fields of structs.
    """
    values = visible(plain(values))
    made = values.cast(kind)
    if _is_changed(values, made):
        raise pa.ArrowInvalid("a value would change, or be left out")
    return made


def _is_changed(values: pa.Array, made: pa.Array) -> bool:
    if pa.types.is_struct(made.type):
        fields = dict(zip(made.type.names, record_fields(made), strict=True))
        given = zip(values.type.names, record_fields(values), strict=True)
        return any(name not in fields or _is_changed(field, fields[name]) for name, field in given)
    if pa.types.is_list(made.type):
        return _is_changed(values.flatten(), made.flatten())
    if values.type == made.type or not (_is_plain(values.type) and _is_plain(made.type)):
        return False
    try:
        back = made.cast(values.type)
    except pa.ArrowNotImplementedError:
        return False
    same = pc.equal(back, values)
    if pa.types.is_floating(values.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(values)))
    return not pc.all(same, min_count=0).as_py()


def _is_plain(kind: pa.DataType) -> bool:
    """A number or a time, whose values can be compared once they are cast back."""
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal)
    return any(test(kind) for test in tests)


def as_binary(values: pa.Array) -> pa.Array:
    """A binary or string column as one of Arrow's `binary`, without a copy where it is one. Raises UsageError for others."""
    kind = values.type
    if kind == pa.binary():
        return values
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if is_text or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    raise UsageError(f"a column to be decoded must be binary or string, and is {kind}")


def is_text(value: bytes) -> bool:
    """Whether it is UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def nullable(kind: pa.DataType) -> pa.DataType:
    """The same type with nullable fields everywhere; keys of maps are not."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, nullable(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, nullable(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(nullable(kind.value_type))
    return pa.list_(nullable(kind.value_type)) if pa.types.is_list(kind) else kind


def without(values: pa.Array, rows: Collection[int]) -> pa.Array:
    """The same column with nulls in these rows."""
    chosen = set(rows)
    return pc.if_else(pa.array([row in chosen for row in range(len(values))]), pa.scalar(None, values.type), values)


def field_path(name: str) -> list[str]:
    """The parts of a dotted name. A part with a dot in it is between backticks: "`service.name`.first"."""
    parts: list[str] = []
    at = 0
    while at <= len(name):
        found = _PART.match(name, at)
        assert found is not None  # it may be empty
        parts.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        at = found.end() + 1
    return parts


def quoted_part(name: str) -> str:
    """A field's own name as a part of a dotted one."""
    return "`" + name.replace("`", "``") + "`" if "." in name or name.startswith("`") else name


def field_tree(fields: Sequence[str]) -> dict[str, Any]:
    """Dotted names as a tree: an empty one is all of a field."""
    tree: dict[str, Any] = {}
    for parts in sorted(map(field_path, names("fields", fields)), key=len):
        inside = tree
        for depth, part in enumerate(parts):
            is_whole = part in inside and not inside[part]
            inside = inside.setdefault(part, {})
            if is_whole and depth < len(parts):
                break
    return tree
