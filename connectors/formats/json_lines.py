"""Arrow batches as JSON lines, every value in the form that Spark's `to_json` gives it and its JSON reader takes.

| Arrow | JSON |
|---|---|
| integers, finite floats, decimals | a number, with all its digits |
| NaN, infinities | `"NaN"`, `"Infinity"`, `"-Infinity"` |
| binary | base64 |
| date; time; timestamp without zone | `"2024-02-29"`; `"23:59:59.123456"`; `"2024-02-29T23:59:59.123456"` |
| timestamp with a zone | the same instant in UTC, `"2024-02-29T23:59:59.123456Z"` |
| duration | `"INTERVAL '1 02:03:04.000005' DAY TO SECOND"` |
| list; struct; map | array; object; object with its keys as strings |
| null | `null`, also in structs: every line has every column |
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from json import dumps
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.connectors.base.nested import plain, plain_type
from headrace.enumerator.errors import UsageError

_NO_NUMBERS = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_SECONDS_OF_400_YEARS = 12_622_780_800
_SAFE_CYCLES = 70  # 28,000 years
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def unwritable(data_type: pa.DataType) -> pa.DataType | None:
    """The type, or the one in it, that has no form in JSON; None if all have."""
    data_type = plain_type(data_type)
    if isinstance(data_type, pa.BaseExtensionType):
        return unwritable(data_type.storage_type)
    if _is_nested(data_type):
        found = (unwritable(data_type.field(index).type) for index in range(data_type.num_fields))
        return next((inner for inner in found if inner is not None), None)
    return None if _scalars(data_type) is not None else data_type


def json_number(value: float) -> float | str:
    """As JSON has it: NaN and the infinities as strings."""
    return value if math.isfinite(value) else _NO_NUMBERS[str(value)].strip('"')


def json_lines(batch: pa.RecordBatch) -> bytes:
    """One line of UTF-8 for each row, each ending with a newline. Raises UsageError for what JSON cannot have."""
    if not batch.num_rows:
        return b""
    objects = _objects(batch.schema.names, [_texts(column) for column in batch.columns], batch.num_rows)
    return ("\n".join(objects) + "\n").encode()


def _texts(array: pa.Array) -> list[str]:
    """The JSON of each value."""
    array = plain(array)
    if isinstance(array.type, pa.BaseExtensionType):
        return _texts(array.storage)
    if types.is_null(array.type):
        return ["null"] * len(array)
    scalars = _scalars(array.type)
    if scalars is not None:
        return _with_nulls(array, scalars(array.drop_null()))
    valid = array.drop_null()
    if types.is_struct(array.type):
        names = [array.type.field(index).name for index in range(array.type.num_fields)]
        return _with_nulls(array, _objects(names, [_texts(child) for child in valid.flatten()], len(valid)))
    if types.is_map(array.type):
        return _with_nulls(array, _maps(valid))
    items, lengths = iter(_texts(valid.flatten())), pc.list_value_length(valid).to_pylist()
    return _with_nulls(array, ("[" + ",".join(islice(items, length)) + "]" for length in lengths))


def _with_nulls(array: pa.Array, texts: Iterable[str]) -> list[str]:
    """What belongs to the values that are not null, and `null` for the others."""
    if not array.null_count:
        return list(texts)
    following = iter(texts)
    return [next(following) if valid else "null" for valid in array.is_valid().to_pylist()]


def _objects(names: list[str], columns: list[list[str]], rows: int = 0) -> Iterator[str]:
    """One object for each row; `rows` says how many there are when there is no column."""
    if not names:
        return iter(["{}"] * rows)
    labels = [dumps(name, ensure_ascii=False) + ":" for name in names]
    labelled = [[label + text for text in column] for label, column in zip(labels, columns, strict=True)]
    return ("{" + ",".join(row) + "}" for row in zip(*labelled, strict=True))


def _maps(array: pa.Array) -> Iterator[str]:
    """One object for each map, none of them null. Arrow has no `flatten` for maps, and `keys` are those of a slice's whole."""
    offsets = array.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    keys, items = (_texts(child.slice(first, count)) for child in (array.keys, array.items))
    if any(len({*keys[start - first : end - first]}) < end - start for start, end in pairwise(offsets)):
        raise UsageError("a map has a key twice, which a JSON object cannot have: leave one of them out")
    pairs = iter([f"{_key(key)}:{item}" for key, item in zip(keys, items, strict=True)])
    return ("{" + ",".join(islice(pairs, end - start)) + "}" for start, end in pairwise(offsets))


def _key(text: str) -> str:
    return text if text.startswith('"') else dumps(text, ensure_ascii=False)


def _is_nested(data_type: pa.DataType) -> bool:
    nested = (types.is_struct, types.is_map, types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(is_kind(data_type) for is_kind in nested)


def _scalars(data_type: pa.DataType) -> Callable[[Any], Iterable[str]] | None:
    """How values of this type, none of them null, are written; None for types that are not scalar, or have no form."""
    return next((write for write, kinds in _SCALARS.items() if any(is_kind(data_type) for is_kind in kinds)), None)


def _numbers(array: pa.Array) -> Iterable[str]:
    texts: list[str] = array.cast(pa.string()).to_pylist()
    return texts


def _floats(array: pa.Array) -> Iterable[str]:
    # By Arrow and not by Python: 0.1 as a 32-bit float is 0.1, and not the double that is nearest to it.
    return (_NO_NUMBERS.get(text, text) for text in _numbers(array))


def _half_floats(array: pa.Array) -> Iterable[str]:
    return _floats(array.cast(pa.float32()))


def _strings(array: pa.Array) -> Iterable[str]:
    return (dumps(text, ensure_ascii=False) for text in array.to_pylist())


def _binaries(array: pa.Array) -> Iterable[str]:
    return (f'"{b64encode(value).decode()}"' for value in array.to_pylist())


def _quoted(array: pa.Array) -> Iterable[str]:
    return (f'"{text}"' for text in _numbers(array))


def _timestamps(array: pa.Array) -> Iterable[str]:
    zone = "" if array.type.tz is None else "Z"
    return (f'"{text}{zone}"' for text in _moments(array, "%Y-%m-%dT%H:%M:%S"))


def _dates(array: pa.Array) -> Iterable[str]:
    return (f'"{text}"' for text in _moments(array.cast(pa.date32()).cast(pa.timestamp("s")), "%Y-%m-%d"))


def _moments(array: pa.Array, form: str) -> list[str]:
    """By Arrow and not by Python, whose datetime ends with the year 9999 and knows no nanoseconds.

    Arrow counts years in 16 bits. Where that is not enough it is asked for the same moment of another cycle of 400 years.
    """
    numbers, cycle = array.cast(pa.int64()), _SECONDS_OF_400_YEARS * _PER_SECOND[array.type.unit]
    texts: list[str] = pc.strftime(numbers.cast(pa.timestamp(array.type.unit)), format=form).to_pylist()
    ends = pc.min_max(numbers).as_py()
    if not texts or max(abs(ends["min"]), abs(ends["max"])) < _SAFE_CYCLES * cycle:
        return texts
    cycles, rests = zip(*(divmod(number, cycle) for number in numbers.to_pylist()), strict=True)
    found = pc.strftime(pa.array(rests, pa.timestamp(array.type.unit)), format=form).to_pylist()
    years = (int(text[:4]) + 400 * count for count, text in zip(cycles, found, strict=True))
    return [f"{'-' * (year < 0)}{abs(year):04}{text[4:]}" for year, text in zip(years, found, strict=True)]


def _durations(array: pa.Array) -> Iterable[str]:
    try:
        microseconds = array.cast(pa.duration("us")).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise UsageError(f"a duration is written in microseconds as 64 bits hold them: {error}") from error
    return map(_interval, microseconds.to_pylist())


def _interval(microseconds: int) -> str:
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
    sign = "-" if microseconds < 0 else ""
    return f"\"INTERVAL '{sign}{day} {hour:02d}:{minute:02d}:{second:02d}{decimals}' DAY TO SECOND\""


_SCALARS: dict[Callable[[Any], Iterable[str]], tuple[Callable[[pa.DataType], bool], ...]] = {
    _numbers: (types.is_null, types.is_boolean, types.is_integer, types.is_decimal),
    _half_floats: (types.is_float16,),
    _floats: (types.is_float32, types.is_float64),
    _strings: (types.is_string, types.is_large_string),
    _binaries: (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
    _dates: (types.is_date,),
    _quoted: (types.is_time,),
    _timestamps: (types.is_timestamp,),
    _durations: (types.is_duration,),
}
