"""How JSON Schemas may change. The judge is `json`: what is under the reader's names is what is read."""

from collections.abc import Sequence
from typing import Any

from tests.helpers.avro_evolution import BACKWARD, FORWARD, FULL, Change, History, Lost, Outcome, Refused, transitive


def schema(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    kinds = {name: {"type": kind} if isinstance(kind, str | list) else kind for name, kind in properties.items()}
    return {"type": "object", "title": "R", "properties": kinds, "required": [*required]}


def typed(old: Any, new: Any, old_values: Sequence[Any], new_values: Sequence[Any], **outcomes: Outcome) -> Change:
    """A property `a` whose type changes."""
    values = [[{"a": each} for each in values] for values in (old_values, new_values)]
    return Change(schema(a=old), schema(a=new), *values, **outcomes)


def array(items: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": items}}


def of_types(kinds: Sequence[Any], values: Sequence[Any], compatible: frozenset[str]) -> History:
    """A property `a` whose type changes: of each type a value."""
    return History(tuple(schema(a=kind) for kind in kinds), tuple({"a": value} for value in values), compatible)


def unfit(*rows: int) -> Lost:
    return Lost(rows, "does not fit")


ONE = [{"id": 1}]
BOTH = [{"id": 1, "x": 5}]

CHANGES: dict[str, Change] = {
    # properties
    "a property is added": Change(schema(id="integer"), schema(id="integer", x="integer"), ONE, BOTH),
    "a required property is added": Change(schema(id="integer"), schema(["x"], id="integer", x="integer"), ONE, BOTH),
    "a property is removed": Change(schema(id="integer", x="integer"), schema(id="integer"), BOTH, ONE),
    "a property is renamed": Change(schema(id="integer", x="integer"), schema(id="integer", y="integer"), BOTH, [{"y": 1}]),
    "properties change places": Change(schema(id="integer", x="integer"), schema(x="integer", id="integer"), BOTH, BOTH),
    "no other properties are allowed any more": Change(
        schema(id="integer"), {**schema(id="integer"), "additionalProperties": False}, [{"id": 1, "more": 2}], ONE
    ),
    "an object within the object gets a property": typed(schema(id="integer"), schema(id="integer", x="integer"), ONE, BOTH),
    "the title changes": Change(schema(id="integer"), {**schema(id="integer"), "title": "S"}, ONE, ONE),
    # types
    "integer becomes number": typed("integer", "number", [1], [1, 1.5], forward=unfit(1)),
    "integer becomes string": typed("integer", "string", [1], ["a"], backward=unfit(0), forward=unfit(0)),
    "boolean becomes string": typed("boolean", "string", [True], ["a"], backward=unfit(0), forward=unfit(0)),
    "a type may be null": typed("integer", ["null", "integer"], [1], [1, None]),
    "a type becomes one of several": typed(
        "integer", ["integer", "string"], [1], [1, "a"], backward=Refused("may be integer or string"), forward=unfit(1)
    ),
    "an array's items become wider": typed(array("integer"), array("number"), [[1]], [[1], [1.5]], forward=unfit(1)),
    "an array becomes an object": typed(
        array("integer"), schema(id="integer"), [[1]], ONE, backward=unfit(0), forward=unfit(0)
    ),
    # what restricts values, and has no part in their types
    "a constant is added": typed({"enum": ["A"]}, {"enum": ["A", "B"]}, ["A"], ["A", "B"]),
    "a limit is added": typed("integer", {"type": "integer", "maximum": 5}, [9], [1]),
    "a format is added": typed("string", {"type": "string", "format": "date-time"}, ["never"], ["2026-01-02T00:00:00Z"]),
}

SCHEDULES: dict[str, History] = {
    "properties come and go": History(
        (schema(id="integer"), schema(id="integer", x="integer"), schema(id="integer", y="string")),
        ({"id": 1}, {"id": 2, "x": 5}, {"id": 3, "y": "a"}), transitive(FULL),
    ),
    "a name comes back with another type": History(
        (schema(id="integer", x="string"), schema(id="integer"), schema(id="integer", x="integer")),
        ({"id": 1, "x": "a"}, {"id": 2}, {"id": 3, "x": 5}), FULL,
    ),
    "numbers become wider": of_types(["integer", "number", ["null", "number"]], [1, 1.5, 2.5], transitive(BACKWARD)),
    "numbers become narrower": of_types([["null", "number"], "number", "integer"], [2.5, 1.5, 1], transitive(FORWARD)),
    "another type": of_types(["integer", "string", "boolean"], [1, "a", True], frozenset()),
}  # fmt: skip
