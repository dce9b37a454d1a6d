"""How Avro schemas may change, judged by fastavro, value by value, and by Java's `SchemaCompatibility`, as registries do."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Read:
    """All values are read."""


@dataclass(frozen=True)
class Lost:
    """Values at `rows` are bad, and `why` is in the reason. `by_java`: whether Java finds the schemas incompatible."""

    rows: tuple[int, ...]
    why: str
    by_java: bool = True


@dataclass(frozen=True)
class Refused:
    """The schemas never resolve, and `why` is in the message. `by_java`: as above."""

    why: str
    by_java: bool = True


Outcome = Read | Lost | Refused
READ = Read()


@dataclass(frozen=True)
class Change:
    """An old and a new version of a record, each with values of it; what comes of reading one by the other."""

    old: dict[str, Any]
    new: dict[str, Any]
    old_values: Sequence[Any]
    new_values: Sequence[Any]
    backward: Outcome = field(default=READ)
    """The new version reads the old one's values."""
    forward: Outcome = field(default=READ)
    """The old version reads the new one's values."""


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """A record of fields, each a name and a type, with a default where there is a third."""
    made = [{"name": key, "type": kind, **({"default": rest[0]} if rest else {})} for key, kind, *rest in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": [*symbols], **more}


def typed(old: Any, new: Any, old_values: Sequence[Any], new_values: Sequence[Any], **outcomes: Outcome) -> Change:
    """A field `a` whose type changes."""
    values = [[{"a": each} for each in values] for values in (old_values, new_values)]
    return Change(record(("a", old)), record(("a", new)), *values, **outcomes)


def renamed(*fields: Any, aliases: list[str]) -> dict[str, Any]:
    """As `record`; the last field has aliases."""
    made = record(*fields)
    made["fields"][-1]["aliases"] = aliases
    return made


ID = ("id", "int")
ONE = [{"id": 1}]
BOTH = [{"id": 1, "x": 5}]
MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))


def decimal(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def array_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def map_of(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


LACKS_X = Refused("has a field 'x' that the writer's has not; give it a default")


def wants(reader: str, writer: str, **more: bool) -> Refused:
    return Refused(f"wants {reader} at field 'a'; the writer's has {writer}", **more)


def apart(old: str, new: str, **more: bool) -> dict[str, Outcome]:
    """Neither reads the other's."""
    return {"backward": wants(new, old, **more), "forward": wants(old, new, **more)}


NO_BRANCH = "the writer's branch of a union does not match"
NO_SYMBOL = "the reader's enum has neither this symbol nor a default"
Y = [{"id": 1, "y": 5}]
LACKS_Y = Refused("has a field 'y' that the writer's has not")
WITH_X, WITH_Y, NAMED_A = record(ID, ("x", "int")), record(ID, ("y", "int")), record(ID, name="A")

CHANGES: dict[str, Change] = {
    # fields
    "a field is added with a default": Change(record(ID), record(ID, ("x", "int", 7)), ONE, BOTH),
    "a field is added without a default": Change(record(ID), record(ID, ("x", "int")), ONE, BOTH, backward=LACKS_X),
    "a field with a default is removed": Change(record(ID, ("x", "int", 7)), record(ID), BOTH, ONE),
    "a field without a default is removed": Change(record(ID, ("x", "int")), record(ID), BOTH, ONE, forward=LACKS_X),
    "fields change places": Change(record(ID, ("x", "int")), record(("x", "int"), ID), BOTH, BOTH),
    "a field gets a default": Change(record(ID, ("x", "int")), record(ID, ("x", "int", 7)), BOTH, BOTH),
    "a field is renamed": Change(WITH_Y, WITH_X, Y, BOTH, backward=LACKS_X, forward=LACKS_Y),
    "a field is renamed, with an alias": Change(WITH_Y, renamed(ID, ("x", "int"), aliases=["y"]), Y, BOTH, forward=LACKS_Y),
    "a field with a default is renamed, with an alias": Change(
        record(ID, ("y", "int", 7)), renamed(ID, ("x", "int", 7), aliases=["y"]), Y, BOTH
    ),
    "only a text for people changes": Change(record(ID), record(ID, doc="more is known"), ONE, ONE),
    # numbers and texts
    "int becomes long": typed("int", "long", [1, -1], [1, 2**40], forward=wants("int", "long")),
    "int becomes float": typed("int", "float", [1, -1], [1.5], forward=wants("int", "float")),
    "int becomes double": typed("int", "double", [1, -1], [1.5], forward=wants("int", "double")),
    "long becomes float": typed("long", "float", [1, -1], [1.5], forward=wants("long", "float")),
    "long becomes double": typed("long", "double", [1, -1], [1.5], forward=wants("long", "double")),
    "float becomes double": typed("float", "double", [1.5], [1e300], forward=wants("float", "double")),
    "string becomes bytes": typed("string", "bytes", ["é"], ["é".encode()]),
    "bytes, which are not text, become string": typed(
        "bytes", "string", [b"\xff", b"a"], ["a"], backward=Lost((0,), "text is not UTF-8", by_java=False)
    ),
    "int becomes string": typed("int", "string", [1], ["a"], **apart("int", "string")),
    "int becomes boolean": typed("int", "boolean", [1], [True], **apart("int", "boolean")),
    # unions
    "a type may be null": typed("int", ["null", "int"], [1], [1, None], forward=Lost((1,), NO_BRANCH)),
    "a type becomes one of several": typed("int", ["string", "int"], [1], [1, "a"], forward=Lost((1,), NO_BRANCH)),
    "a union gets a branch": typed(
        ["null", "int"], ["null", "int", "string"], [1, None], [1, None, "a"], forward=Lost((2,), NO_BRANCH)
    ),
    "a union's branches change places": typed(["null", "int"], ["int", "null"], [1, None], [1, None]),
    "a union's branch is promoted": typed(
        ["null", "int"], ["null", "long"], [1, None], [None, 2], forward=Lost((1,), NO_BRANCH)
    ),
    "unions without a branch in common": typed(
        ["int", "boolean"], ["string", "bytes"], [1], ["a"], **apart("a union of int, boolean", "a union of string, bytes")
    ),
    # enums
    "an enum gets a symbol": typed(enum("A"), enum("A", "B"), ["A"], ["A", "B"], forward=Lost((1,), NO_SYMBOL)),
    "an enum with a default gets a symbol": typed(enum("A", default="A"), enum("A", "B", default="A"), ["A"], ["A", "B"]),
    "an enum loses a symbol": typed(enum("A", "B"), enum("A"), ["A", "B"], ["A"], backward=Lost((1,), NO_SYMBOL)),
    "an enum's symbols change places": typed(enum("A", "B"), enum("B", "A"), ["A", "B"], ["A", "B"]),
    "an enum is renamed": typed(enum("A"), {**enum("A"), "name": "G"}, ["A"], ["A"], **apart("E", "G")),
    "an enum is renamed, with an alias": typed(
        enum("A"), {**enum("A"), "name": "G", "aliases": ["E"]}, ["A"], ["A"], forward=wants("E", "G")
    ),
    "an enum becomes a string": typed(enum("A"), "string", ["A"], ["A"], **apart("E", "string")),
    # fixed, arrays, maps
    "a fixed gets another size": typed(fixed(2), fixed(3), [b"ab"], [b"abc"], **apart("F of 2 bytes", "F of 3 bytes")),
    "an array's items are promoted": typed(array_of("int"), array_of("long"), [[1, 2]], [[3]], forward=wants("array", "array")),
    "a map's values are promoted": typed(map_of("int"), map_of("long"), [{"k": 1}], [{"k": 1}], forward=wants("map", "map")),
    "an array becomes a map": typed(array_of("int"), map_of("int"), [[1]], [{"k": 1}], **apart("array", "map")),
    # records
    "a record is renamed": Change(
        NAMED_A, record(ID, name="B"), ONE, ONE, Refused("wants B; the writer's has A"), Refused("wants A; the writer's has B")
    ),
    "a record is renamed, with an alias": Change(
        NAMED_A, record(ID, name="B", aliases=["A"]), ONE, ONE, forward=Refused("wants A; the writer's has B")
    ),
    "a record moves to another namespace": Change(record(ID, name="old.R"), record(ID, name="new.R"), ONE, ONE),
    "a record within a record gets a field": typed(record(ID, name="I"), record(ID, ("x", "int", 7), name="I"), ONE, BOTH),
    "a record within a record gets a field without a default": typed(
        record(ID, name="I"), record(ID, ("x", "int"), name="I"), ONE, BOTH, backward=Refused(LACKS_X.why.replace("x", "a.x"))
    ),
    # logical types, which Java's judge and a registry do not look at
    "a number becomes a time": typed("long", MILLIS, [1], [1]),
    "a time gets another unit": typed(MILLIS, MICROS, [1], [1], **apart("timestamp-millis", "timestamp-micros", by_java=False)),
    "a decimal gets another scale": typed(
        decimal(1), decimal(2), [b"\x01"], [b"\x01"], **apart("decimal of scale 1", "decimal of scale 2", by_java=False)
    ),
}


@dataclass(frozen=True)
class History:
    """The versions of a subject, with a value of each, and the kinds of compatibility that they have."""

    versions: tuple[Any, ...]
    values: tuple[Any, ...]
    kinds: frozenset[str]


def of_types(values: dict[str, Any], kinds: frozenset[str]) -> History:
    """A field `a` whose type changes: of each type a value."""
    return History(tuple(record(("a", kind)) for kind in values), tuple({"a": value} for value in values.values()), kinds)


BACKWARD, FORWARD = frozenset({"BACKWARD"}), frozenset({"FORWARD"})
FULL = BACKWARD | FORWARD | {"FULL"}


def transitive(kinds: frozenset[str]) -> frozenset[str]:
    """The same kinds, and those that look at all versions."""
    return kinds | {f"{kind}_TRANSITIVE" for kind in kinds}


KINDS = sorted(transitive(FULL))


def holds(kind: str, reads: list[list[bool]]) -> bool:
    """Whether versions have this kind of compatibility. `reads[n][m]`: whether version n reads what version m wrote."""
    direction, _, scope = kind.partition("_")
    pairs = [(new, old) for new in range(len(reads)) for old in range(new) if scope or old == new - 1]
    backward = all(reads[new][old] for new, old in pairs)
    forward = all(reads[old][new] for new, old in pairs)
    return {"BACKWARD": backward, "FORWARD": forward, "FULL": backward and forward}[direction]


def told_apart(schedules: Collection[History]) -> bool:
    """Whether each kind of compatibility is available by some schedule and lacked by some, and any two differ in one."""
    pairs = [(one, other) for one in KINDS for other in KINDS if one != other]
    differ = all(any((one in each.kinds) != (other in each.kinds) for each in schedules) for one, other in pairs)
    return differ and all(0 < sum(kind in each.kinds for each in schedules) < len(schedules) for kind in KINDS)


SCHEDULES: dict[str, History] = {
    "fields come with defaults, and go": History(
        (record(ID), record(ID, ("x", "int", 7)), record(ID, ("y", "string", "?"))),
        ({"id": 1}, {"id": 2, "x": 5}, {"id": 3, "y": "a"}), transitive(FULL),
    ),
    "a default is taken away again": History(
        (record(ID), record(ID, ("x", "int", 7)), record(ID, ("x", "int"))), ({"id": 1}, {"id": 2, "x": 5}, {"id": 3, "x": 6}),
        FULL | {"FORWARD_TRANSITIVE"},
    ),
    "a field gets a default, and goes": History(
        (record(ID, ("x", "int")), record(ID, ("x", "int", 7)), record(ID)), ({"id": 1, "x": 4}, {"id": 2, "x": 5}, {"id": 3}),
        FULL | {"BACKWARD_TRANSITIVE"},
    ),
    "a name comes back with another type": History(
        (record(ID, ("x", "string", "?")), record(ID), record(ID, ("x", "int", 7))),
        ({"id": 1, "x": "a"}, {"id": 2}, {"id": 3, "x": 5}), FULL,
    ),
    "numbers become wider": of_types({"int": 1, "long": 2**40, "double": 1.5}, transitive(BACKWARD)),
    "numbers become narrower": of_types({"double": 1.5, "long": 2**40, "int": 1}, transitive(FORWARD)),
    "an alias for one version only": History(
        (record(("a", "int")), renamed(("b", "int"), aliases=["a"]), renamed(("c", "int"), aliases=["b"])),
        ({"a": 1}, {"b": 2}, {"c": 3}), BACKWARD,
    ),
    "symbols go one by one": History(
        (record(("a", enum("A", "B", "C"))), record(("a", enum("A", "B"))), record(("a", enum("A")))),
        ({"a": "C"}, {"a": "B"}, {"a": "A"}), transitive(FORWARD),
    ),
    "another type": of_types({"int": 1, "string": "a", "boolean": True}, frozenset()),
}  # fmt: skip
