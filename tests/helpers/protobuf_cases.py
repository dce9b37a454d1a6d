"""Protobuf messages filled at random, and what our columns have to give of them: as Protobuf's own runtime has read them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import DecodeError

from headrace.connectors.formats.protobuf.compiler import descriptor_set
from headrace.formats import ProtobufFormat

FIELD = FieldDescriptorProto


def message_class(text: str, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(text)).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class BadTextError(Exception):
    """A text that is not UTF-8, which the runtime gives as bytes: of proto2, where it may be."""


class BeyondError(Exception):
    """A time that 64-bit microseconds do not hold."""


def expected(message: Any, within: tuple[str, ...] = ()) -> Any:
    """A message as the runtime has read it, by the rules of our columns."""
    inside = (*within, message.DESCRIPTOR.full_name)
    return {field.name: of_field(message, field, inside) for field in message.DESCRIPTOR.fields}


def of_field(message: Any, field: Any, within: tuple[str, ...]) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        keyed = field.message_type.fields_by_name["key"]
        return sorted((one(key, keyed, within), one(value[key], of, within)) for key in value)
    if field.is_repeated:
        return [one(each, field, within) for each in value]
    return None if field.has_presence and not message.HasField(field.name) else one(value, field, within)


def one(value: Any, field: Any, within: tuple[str, ...]) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name if value in field.enum_type.values_by_number else str(value)
    if field.type == FIELD.TYPE_STRING and isinstance(value, bytes):
        raise BadTextError
    if field.message_type is None:
        return number(value)
    name = field.message_type.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        microseconds = value.seconds * 10**6 + int(value.nanos / 1000)
        if not -(2**63) < microseconds < 2**63 - 1:
            raise BeyondError
        return microseconds
    if name.startswith("google.protobuf."):
        return number(value.value)
    return value.SerializePartialToString() if name in within else expected(value, within)


def number(value: Any) -> Any:
    """NaN, which is not itself, as a text. Negative zero is written as zero."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value of our columns as the oracle has it. Maps have no order, and times may be beyond Python's."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: plain(value[each.name], each.type) for each in kind}
    if pa.types.is_map(kind):
        return sorted((key, plain(each, kind.item_type)) for key, each in value)
    return [plain(each, kind.value_type) for each in value] if pa.types.is_list(kind) else number(value)


def with_numbers(kind: pa.DataType) -> pa.DataType:
    """Times as their microseconds."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(with_numbers(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(with_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, with_numbers(kind.item_type))
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind


def answers_of(made: ProtobufFormat, values: list[bytes] | pa.Array) -> list[Any]:
    """What our column has for each, or the word bad; held to the runtime's answer by `oracle_of`."""
    decoded, bad = made.decode(values if isinstance(values, pa.Array) else pa.array(values, pa.binary()))
    decoded.validate(full=True)
    numbers = decoded.cast(with_numbers(decoded.type))
    rows = {each.row for each in bad}
    return ["bad" if row in rows else plain(value, numbers.type) for row, value in enumerate(numbers.to_pylist())]


def oracle_of(of: Any, value: bytes) -> Any:
    try:
        message = of.FromString(value)
        message.DiscardUnknownFields()
        found = expected(message)
    except (DecodeError, BadTextError, BeyondError):
        return "bad"
    return found


# --- values


def whole(bits: int, least: int) -> Callable[[random.Random], int]:
    return lambda r: r.choice([0, 1, least, least + 2**bits - 1, least + r.randrange(2**bits)])


def real(r: random.Random) -> float:
    return r.choice([0.0, 1.5, -2.25, math.inf, -math.inf, math.nan, -0.0, 5e-324, 1.7e308, r.getrandbits(24) * 0.5])


NUMBERS: dict[int, Callable[[random.Random], Any]] = {
    **dict.fromkeys([FIELD.TYPE_INT32, FIELD.TYPE_SINT32, FIELD.TYPE_SFIXED32], whole(32, -(2**31))),
    **dict.fromkeys([FIELD.TYPE_INT64, FIELD.TYPE_SINT64, FIELD.TYPE_SFIXED64], whole(64, -(2**63))),
    **dict.fromkeys([FIELD.TYPE_UINT32, FIELD.TYPE_FIXED32], whole(32, 0)),
    **dict.fromkeys([FIELD.TYPE_UINT64, FIELD.TYPE_FIXED64], whole(64, 0)),
    **dict.fromkeys([FIELD.TYPE_FLOAT, FIELD.TYPE_DOUBLE], real),
    FIELD.TYPE_BOOL: lambda r: r.random() < 0.5,
    FIELD.TYPE_STRING: lambda r: r.choice(
        ["".join(r.choices("aé☃😀\0", k=r.randrange(4))), "é" * r.choice([63, 64, 65, 4097])]
    ),
    FIELD.TYPE_BYTES: lambda r: r.randbytes(r.randrange(4)),
}


def message_of(of: Any, r: random.Random, depth: int = 2) -> Any:
    """A message of a class, by its descriptor."""
    message = of()
    for field in message.DESCRIPTOR.fields:
        if field.is_required or r.random() < 0.4:
            fill(message, field, r, depth)
    return message


def fill(message: Any, field: Any, r: random.Random, depth: int) -> None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key, value = inner.fields_by_name["key"], inner.fields_by_name["value"]
        for _ in range(r.randrange(3)):
            at, items = scalar(key, r), getattr(message, field.name)
            if value.message_type is None:
                items[at] = scalar(value, r)
            else:
                items[at].CopyFrom(message_of(message_factory.GetMessageClass(value.message_type), r, 0))
    elif field.is_repeated:
        getattr(message, field.name).extend(item(field, r, depth) for _ in range(r.randrange(4)))
    elif inner is None:
        setattr(message, field.name, scalar(field, r))
    elif depth:
        getattr(message, field.name).CopyFrom(item(field, r, depth))


def item(field: Any, r: random.Random, depth: int) -> Any:
    if field.message_type is None:
        return scalar(field, r)
    return message_of(message_factory.GetMessageClass(field.message_type), r, max(0, depth - 1))


def scalar(field: Any, r: random.Random) -> Any:
    return r.choice(field.enum_type.values).number if field.enum_type is not None else NUMBERS[field.type](r)


def mutated(value: bytes, r: random.Random) -> bytes:
    made = bytearray(value + value[: r.choice([0, 0, 8])])
    for _ in range(r.randint(1, 4)):
        at = r.randint(0, len(made))
        made[at : at + r.randrange(3)] = r.randbytes(r.randrange(4))
    return bytes(made)
