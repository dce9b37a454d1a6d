"""Partitions of Iceberg tables: a column as it is, or a transform of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import transforms, types
from pyiceberg.transforms import IdentityTransform, Transform, TruncateTransform, VoidTransform

from headrace.connectors.tables.rows import can_partition, check_is_column
from headrace.enumerator.errors import UsageError

_EITHER_WAY = (types.StringType, types.IntegerType, types.LongType, types.DateType)
_AS_THEY_ARE = (*_EITHER_WAY, types.BooleanType)
_TRANSFORMED = (*_EITHER_WAY, types.DecimalType, types.TimestampType, types.TimestamptzType)
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_OF_TIME: dict[str, Transform[Any, Any]] = {
    "year": transforms.YearTransform(),
    "month": transforms.MonthTransform(),
    "day": transforms.DayTransform(),
    "hour": transforms.HourTransform(),
}
_CALL = re.compile(r"(\w+)\s*\(\s*(?:(\d{1,9})\s*,\s*)?(.+?)\s*\)")


@dataclass(frozen=True)
class TablePartition:
    """A transform of a column of this type; with the transform identity, the column as it is. `kind`: None if not known yet."""

    column: str
    transform: Transform[Any, Any]
    kind: types.IcebergType | None = None

    def __str__(self) -> str:
        return self.column if isinstance(self.transform, IdentityTransform) else f"{self.transform}({self.column})"

    @classmethod
    def parse(cls, text: str, schema: pa.Schema, where: str) -> TablePartition:
        """`column`, or `bucket(16, column)`, `truncate(4, column)`, `year(column)`, `months(column)`, ...

        Raises UsageError for what cannot be a partition of a table with these columns.
        """
        call = _CALL.fullmatch(text.strip())
        if call is None:
            found = cls(text.strip(), IdentityTransform())
        else:
            name, number, column = call[1].lower(), call[2], call[3]
            transform = _transform(name, None if number is None else int(number))
            if transform is None:
                raise UsageError(
                    f"{where}: {text!r} is not a partition: column, bucket(n, column), truncate(n, column), year(column), "
                    "month(column), day(column), hour(column) or void(column)"
                )
            found = cls(column, transform)
        found._check(schema, where)
        return found

    def _check(self, schema: pa.Schema, where: str) -> None:
        check_is_column(schema, self.column, where)
        kind = schema.field(self.column).type
        if isinstance(self.transform, VoidTransform) and not schema.field(self.column).nullable:
            raise UsageError(
                f"{where}: {self.column!r} must not be null, and PyIceberg writes no void partition of such a column"
            )
        if isinstance(self.transform, IdentityTransform) and not can_partition(kind):
            raise UsageError(f"{where}: {self.column!r} is {kind}: partitions are by text, integers, booleans or dates")

    @property
    def name(self) -> str:
        """Of the field in the table's partitions, as Iceberg's own writers name it."""
        match self.transform:
            case IdentityTransform():
                return self.column
            case transforms.BucketTransform():
                return f"{self.column}_bucket"
            case TruncateTransform():
                return f"{self.column}_trunc"
            case VoidTransform():
                return f"{self.column}_null"
            case other:
                return f"{self.column}_{other}"

    @property
    def can_be_written(self) -> bool:
        if isinstance(self.transform, VoidTransform):
            return True
        if isinstance(self.transform, transforms.UnknownTransform) or self.kind is None:
            return False
        kinds = _AS_THEY_ARE if isinstance(self.transform, IdentityTransform) else _TRANSFORMED
        return isinstance(self.kind, kinds) and self.transform.can_transform(self.kind)

    def values_of(self, column: pa.Array) -> pa.Array:
        """Each row's value, by the library's own function, which is asked once for each value that there is."""
        if isinstance(self.transform, IdentityTransform):
            return column
        if isinstance(self.transform, VoidTransform):
            return pa.nulls(len(column), pa.int32())
        assert self.kind is not None
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us"))  # in UTC, as the table has it
            if isinstance(self.transform, transforms.TimeTransform):
                column = pc.floor_temporal(column, unit="hour")  # so that there are few
        found = column.dictionary_encode()
        function = self.transform.transform(self.kind)
        kind = column.type if isinstance(self.transform, TruncateTransform) else pa.int32()
        try:
            made = pa.array([function(_internal(value)) for value in found.dictionary.to_pylist()], kind)
        except (OverflowError, pa.ArrowInvalid) as error:
            why = f"a value whose {self.transform} is beyond its type, such as the least one, or a time after the year 9999"
            raise UsageError(f"column {self.column!r} of the table's partitions has {why}: {error}") from error
        return pc.take(made, found.indices)

    def stored(self, text: str | None) -> object:
        """What is in the table's manifests for the text in a handle."""
        if text is None or isinstance(self.transform, VoidTransform):
            return None
        is_value = isinstance(self.transform, IdentityTransform | TruncateTransform)
        if not is_value:
            return int(text)
        match self.kind:
            case types.StringType():
                return text
            case types.DateType():
                return (date.fromisoformat(text) - _EPOCH_DAY).days
            case types.BooleanType():
                return text == "True"
            case types.DecimalType():
                return Decimal(text)
        return int(text)


def _transform(name: str, number: int | None) -> Transform[Any, Any] | None:
    if number is None:
        return VoidTransform() if name == "void" else _OF_TIME.get(name.removesuffix("s"))
    if not number:
        return None
    return transforms.BucketTransform(number) if name == "bucket" else TruncateTransform(number) if name == "truncate" else None


def _internal(value: Any) -> Any:  # noqa: ANN401 - a value of any column
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    return (value - _EPOCH_DAY).days if isinstance(value, date) else value
