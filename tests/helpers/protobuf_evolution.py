"""How Protobuf schemas may change. Fields are found by numbers; the judge is Protobuf's own runtime."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.avro_evolution import BACKWARD, FORWARD, FULL, History, Lost, Outcome, Read, transitive

READ = Read()


@dataclass(frozen=True)
class Other:
    """All values are read, but those at `rows` are not what was written: so Protobuf's runtime reads them, too."""

    rows: tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """An old and a new version of a schema, each with values of it; what comes of reading one by the other."""

    old: str
    new: str
    old_values: Sequence[Any]
    new_values: Sequence[Any]
    backward: Outcome | Other = field(default=READ)
    """The new version reads the old one's values."""
    forward: Outcome | Other = field(default=READ)
    """The old version reads the new one's values."""


def message(fields: str, name: str = "R") -> str:
    return f'syntax = "proto3"; package air; message {name} {{ {fields} }}'


def typed(old: str, new: str, old_values: Sequence[Any], new_values: Sequence[Any], **outcomes: Outcome | Other) -> Change:
    """A field `a` with the number 1, whose type changes."""
    values = [[{"a": each} for each in values] for values in (old_values, new_values)]
    return Change(message(f"{old} a = 1;"), message(f"{new} a = 1;"), *values, **outcomes)


def of_types(values: dict[str, Any], kinds: frozenset[str]) -> History:
    """A field `a` whose type changes: of each type a value."""
    return History(tuple(message(f"{kind} a = 1;") for kind in values), tuple({"a": each} for each in values.values()), kinds)


def enums(old: str, new: str) -> list[str]:
    return [f"enum E {{ {each} }} E" for each in (old, new)]


ID = "int32 id = 1;"
ONE = [{"id": 1}]
BOTH = [{"id": 1, "x": 5}]
ALL_OTHER = {"backward": Other((0,)), "forward": Other((0,))}

CHANGES: dict[str, Change] = {
    # fields
    "a field is added": Change(message(ID), message(f"{ID} int32 x = 2;"), ONE, BOTH),
    "a field is removed": Change(message(f"{ID} int32 x = 2;"), message(ID), BOTH, ONE),
    "fields change places in the text": Change(message(f"{ID} int32 x = 2;"), message(f"int32 x = 2; {ID}"), BOTH, BOTH),
    "a field is renamed": Change(message(f"{ID} int32 x = 2;"), message(f"{ID} int32 y = 2;"), BOTH, [{"id": 1, "y": 5}]),
    "a field gets another number": Change(
        message(f"{ID} int32 x = 2;"), message(f"{ID} int32 x = 3;"), BOTH, BOTH, **ALL_OTHER
    ),
    "a field goes into a oneof": Change(
        message("int32 a = 1;"), message("oneof o { int32 a = 1; string b = 2; }"), [{"a": 5}], [{"a": 5}]
    ),
    "the message type is renamed": Change(
        *(message(ID), message(ID, name="S"), ONE, ONE),
        Lost((0,), "it is a message air.R of schema 1, and not air.S"),
        Lost((0,), "it is a message air.S of schema 2, and not air.R"),
    ),
    "a message within the message gets a field": Change(
        message("I a = 1; message I { int32 id = 1; }"),
        message("I a = 1; message I { int32 id = 1; int32 x = 2; }"),
        *([{"a": {"id": 1}}], [{"a": {"id": 1}}]),
    ),
    # presence
    "a field becomes optional": typed(
        "int32", "optional int32", [5, 0], [5, 0, None], backward=Other((1,)), forward=Other((2,))
    ),
    "a field becomes repeated": typed("string", "repeated string", ["a"], [["a"]], **ALL_OTHER),
    # numbers and texts
    "int32 becomes int64": typed("int32", "int64", [1, -1], [1, 2**40], forward=Other((1,))),
    "int32 becomes uint32": typed("int32", "uint32", [1, -1], [1, 2**31], backward=Other((1,)), forward=Other((1,))),
    "int32 becomes sint32": typed("int32", "sint32", [1], [1], **ALL_OTHER),
    "int32 becomes fixed32": typed("int32", "fixed32", [1], [1], **ALL_OTHER),
    "bool becomes int32": typed("bool", "int32", [True], [1, 2], forward=Other((1,))),
    "float becomes double": typed("float", "double", [1.5], [1.5], **ALL_OTHER),
    "int32 becomes string": typed("int32", "string", [1], ["a"], **ALL_OTHER),
    "string becomes bytes": typed(
        "string", "bytes", ["é"], ["é".encode(), b"\xff"], forward=Lost((1,), "its bytes are not of Protobuf's wire format")
    ),
    # enums
    "an enum gets a symbol": typed(*enums("A = 0;", "A = 0; B = 1;"), ["A"], ["A", "B"], forward=Other((1,))),
    "an enum loses a symbol": typed(*enums("A = 0; B = 1;", "A = 0;"), ["A", "B"], ["A"], backward=Other((1,))),
    "a symbol is renamed": typed(
        *enums("A = 0; B = 1;", "A = 0; C = 1;"), ["A", "B"], ["A", "C"], backward=Other((1,)), forward=Other((1,))
    ),
    "an enum becomes int32": typed("enum E { A = 0; B = 1; } E", "int32", ["B"], [1], **ALL_OTHER),
}


SCHEDULES: dict[str, History] = {
    "fields come and go": History(
        (message(ID), message(f"{ID} int32 x = 2;"), message(f"{ID} string y = 3;")),
        ({"id": 1}, {"id": 2, "x": 5}, {"id": 3, "y": "a"}), transitive(FULL),
    ),
    "a number comes back with another type": History(
        (message(f"{ID} string x = 2;"), message(ID), message(f"{ID} int32 x = 2;")),
        ({"id": 1, "x": "a"}, {"id": 2}, {"id": 3, "x": 5}), FULL,
    ),
    "numbers become wider": of_types({"bool": True, "int32": 7, "int64": 2**40}, transitive(BACKWARD)),
    "numbers become narrower": of_types({"int64": 2**40, "int32": 7, "bool": True}, transitive(FORWARD)),
    "another type": of_types({"int32": 1, "string": "a", "double": 1.5}, frozenset()),
}  # fmt: skip
