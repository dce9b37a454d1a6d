"""The splits of a database's changes: chunks of tables, then the log, which has the seam between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.connectors.postgresql.catalog import PublicationOptions
from headrace.connectors.postgresql.columns import Names, NamesSum, read_columns, read_names, read_sum, stored_columns
from headrace.enumerator.envelope import stored_number, stored_object, stored_text, stored_truth
from headrace.enumerator.source import JsonObject, SplitSerializer

Key = tuple[str, ...]
"""The values of a key's columns, as PostgreSQL's texts."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A cluster, by its system identifier, and its timeline when the LSN was taken."""

    system: str
    timeline: int
    lsn: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Which transactions a chunk has the effects of.

    `snapshot`: pg_current_snapshot() of the transaction that read it. `lsn`: the end of the log after that, so every
    transaction that it has was committed before.
    """

    snapshot: str
    lsn: int


@dataclass(frozen=True, slots=True)
class ChunkSplit:
    """Rows of a table whose key is from `lower` up to, not including, `upper`; None: without a bound. Read as a whole.

    `oid`: of the table, which has another one when it is created again. `key`: the columns it is cut by, empty: not at all.
    `slot`: where the log starts behind the snapshot. `floor`: an LSN before every change in it. `seen`: None until it is read.
    `published_by`: as of `PublishedTable`. `columns`: of the table as it was cut; None where an older headrace cut it.
    `options`: of the publication then; None where an older headrace cut it. `names`: of the columns: the first chunk has those
    of the cut (without a log behind it, each has), and a reader's first chunk those that it was read by, if they are others.
    """

    stage: int
    table: str
    oid: int
    number: int
    key: tuple[str, ...]
    lower: Key | None
    upper: Key | None
    slot: Origin
    floor: int
    seen: Seen | None = None
    published_by: tuple[int, ...] = ()
    columns: NamesSum | None = None
    options: PublicationOptions | None = None
    names: tuple[Names, ...] = ()

    @property
    def split_id(self) -> str:
        """The stage, the table and the number of the chunk."""
        return f"{self.stage}:{self.table}:{self.number}"

    def read_by(self, names: Names) -> ChunkSplit:
        """With these names, where they are others than those of the cut."""
        is_other = self.columns is not None and self.columns != NamesSum.of(names) and names not in self.names
        return replace(self, names=(*self.names, names)) if is_other else self


@dataclass(frozen=True, slots=True)
class TableSeam:
    """A table's chunks: what each of them has. `bounds` are the lower ones of all but the first.

    While they are being read, there is a bound for each, as there is another chunk behind it.
    """

    key: tuple[str, ...]
    bounds: tuple[Key, ...]
    snapshots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seam:
    """What the chunks have of the log's changes, by table. Nothing that is committed after `until` is in any chunk."""

    tables: tuple[tuple[str, TableSeam], ...]
    until: int


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The log of one slot, to be read from the commit that ends at `position.lsn`.

    `skip`: how many changes after it were read already: of a transaction that was too large for one batch. `seam`: None where
    no change can be in a chunk. `tables`: those whose rows are read, with their oids; None where no rows are wanted.
    `published_by`: of tables, by their oids, as of `PublishedTable`: the log has their changes while one of these stays.
    `columns`: names of columns as readers last had them, by the tables' oids; none where an older headrace read them.
    `options`: of the publication as the last start found it; None where an older headrace read it.
    """

    stage: int
    position: Origin
    tables: tuple[tuple[str, int], ...] | None = None
    skip: int = 0
    seam: Seam | None = None
    published_by: tuple[tuple[int, tuple[int, ...]], ...] = ()
    columns: tuple[tuple[int, Names], ...] = ()
    options: PublicationOptions | None = None

    @property
    def split_id(self) -> str:
        """The stage: there is one log."""
        return f"{self.stage}:log"

    def has_rows_of(self, oid: int) -> bool:
        """Whether the rows of the table with this oid are read, or none are wanted."""
        return self.tables is None or any(each == oid for _, each in self.tables)

    def at(self, lsn: int, skip: int = 0) -> LogSplit:
        """Further on. The seam is left out when it is passed."""
        seam = None if self.seam is None or lsn > self.seam.until else self.seam
        return replace(self, position=replace(self.position, lsn=lsn), skip=skip, seam=seam)


ChangesSplit = ChunkSplit | LogSplit


def seam_of(chunks: Sequence[ChunkSplit]) -> Seam:
    """The seam behind these chunks, all of which are read. Raises ValueError for one that is not."""
    tables: dict[str, list[ChunkSplit]] = {}
    for chunk in sorted(chunks, key=lambda chunk: chunk.number):
        if chunk.seen is None:
            raise ValueError(f"chunk {chunk.split_id} is not read")
        tables.setdefault(chunk.table, []).append(chunk)
    seams = []
    for table, own in sorted(tables.items()):
        bounds = tuple(chunk.lower for chunk in own[1:] if chunk.lower is not None)
        if [chunk.number for chunk in own] != list(range(len(own))) or len(bounds) != len(own) - 1:
            raise ValueError(f"chunks of {table} are missing")
        seams.append((table, TableSeam(own[0].key, bounds, tuple(chunk.seen.snapshot for chunk in own if chunk.seen))))
    return Seam(tuple(seams), max(chunk.seen.lsn for chunk in chunks if chunk.seen))


def stored_seam(seam: Seam) -> JsonObject:
    """The seam as a JSON object."""
    tables = {
        name: {"key": list(each.key), "bounds": [*map(list, each.bounds)], "snapshots": list(each.snapshots)}
        for name, each in seam.tables
    }
    return {"until": seam.until, "tables": tables}


def read_seam(data: JsonObject) -> Seam:
    """What `stored_seam` gave. KeyError, TypeError and ValueError mean damaged data."""
    tables = []
    for name, each in stored_object(data["tables"]).items():
        bounds, snapshots = tuple(map(_key, each["bounds"])), tuple(map(stored_text, each["snapshots"]))
        if len(snapshots) not in (len(bounds), len(bounds) + 1):
            raise ValueError(f"{len(bounds)} bounds are between {len(snapshots)} chunks")
        tables.append((name, TableSeam(_key(each["key"]), bounds, snapshots)))
    return Seam(tuple(tables), stored_number(data["until"]))


def _key(data: Any) -> Key:  # noqa: ANN401 - JSON
    if not isinstance(data, list):
        raise TypeError(f"{data!r} is not a list of texts")
    return tuple(map(stored_text, data))


def read_tables(data: JsonObject) -> tuple[tuple[str, int], ...]:
    """Names and oids. ValueError and TypeError mean damaged data."""
    return tuple((name, stored_number(oid)) for name, oid in data.items())


def stored_published(published: Sequence[tuple[int, tuple[int, ...]]]) -> JsonObject:
    """As a JSON object, whose names are texts."""
    return {str(oid): list(entries) for oid, entries in published}


def read_published(data: JsonObject) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """What `stored_published` gave. ValueError and TypeError mean damaged data."""
    return tuple((int(oid), _numbers(entries)) for oid, entries in data.items())


def stored_options(options: PublicationOptions) -> list[str | int | list[str]]:
    """As a JSON list."""
    name, owner, operations, version, via_root, missing = options
    return [name, owner, [*operations], version, via_root, [*missing]]


def read_options(data: Any) -> PublicationOptions | None:  # noqa: ANN401 - JSON
    """What `stored_options` gave, or None. TypeError and ValueError mean damaged data."""
    if data is None:
        return None
    name, owner, operations, version, via_root, missing = data
    number, root = stored_number(version), stored_truth(via_root)
    return PublicationOptions(stored_text(name), stored_text(owner), _key(operations), number, root, _key(missing))


def _numbers(data: Any) -> tuple[int, ...]:  # noqa: ANN401 - JSON
    if not isinstance(data, list):
        raise TypeError(f"{data!r} is not a list of numbers")
    return tuple(map(stored_number, data))


def stored_origin(origin: Origin) -> JsonObject:
    """The place as a JSON object."""
    return {"system": origin.system, "timeline": origin.timeline, "lsn": origin.lsn}


def read_origin(data: Any) -> Origin:  # noqa: ANN401 - JSON
    """What `stored_origin` gave. KeyError, TypeError and ValueError mean damaged data."""
    return Origin(stored_text(data["system"]), stored_number(data["timeline"]), stored_number(data["lsn"]))


class ChangesSplitSerializer(SplitSerializer[ChangesSplit]):
    """Version 1. A chunk: {"stage": 0, "table": "public.t", "oid": 16385, "number": 1, "key": ["id"], "lower": ["10"],
    "upper": null, "slot": {"system": "7", "timeline": 1, "lsn": 9}, "floor": 8, "seen": null, "published_by": [16390]}. The
    log: {"stage": 1,
    "position": {...}, "tables": {"public.t": 16385}, "skip": 0, "seam": null, "published_by": {"16385": [16390]}}.
    Where it is known, a chunk also has "columns": [2, 0, 3421780262], the log {"16385": ["id", "value"]}, and both have
    "options": ["orders", "app", ["delete", "insert"], 742, true, ["update"]]. Some chunks have "names": [["id", "value"]].
    """

    version = 1

    def serialize(self, split: ChangesSplit) -> JsonObject:
        if isinstance(split, LogSplit):
            seam = None if split.seam is None else stored_seam(split.seam)
            tables = None if split.tables is None else dict(split.tables)
            position = stored_origin(split.position)
            return {
                "stage": split.stage,
                "position": position,
                "tables": tables,
                "skip": split.skip,
                "seam": seam,
                "published_by": stored_published(split.published_by),
                **({"columns": stored_columns(split.columns)} if split.columns else {}),
                **({"options": stored_options(split.options)} if split.options else {}),
            }
        seen = None if split.seen is None else {"snapshot": split.seen.snapshot, "lsn": split.seen.lsn}
        return {
            "stage": split.stage,
            "table": split.table,
            "oid": split.oid,
            "number": split.number,
            "key": split.key,
            "lower": split.lower,
            "upper": split.upper,
            "slot": stored_origin(split.slot),
            "floor": split.floor,
            "seen": seen,
            "published_by": list(split.published_by),
            **({"columns": list(split.columns)} if split.columns else {}),
            **({"options": stored_options(split.options)} if split.options else {}),
            **({"names": [*map(list, split.names)]} if split.names else {}),
        }

    def deserialize(self, version: int, data: JsonObject) -> ChangesSplit:
        if version != 1:
            raise ValueError(f"no split of changes was ever written in version {version}")
        stage = stored_number(data["stage"])
        if "position" in data:
            seam = None if data["seam"] is None else read_seam(stored_object(data["seam"]))
            tables = None if data["tables"] is None else read_tables(stored_object(data["tables"]))
            published = read_published(stored_object(data["published_by"]))
            columns = read_columns(stored_object(data.get("columns", {})))
            position, skip = read_origin(data["position"]), stored_number(data["skip"])
            return LogSplit(stage, position, tables, skip, seam, published, columns, read_options(data.get("options")))
        seen = data["seen"]
        return ChunkSplit(
            stage,
            stored_text(data["table"]),
            stored_number(data["oid"]),
            stored_number(data["number"]),
            _key(data["key"]),
            None if data["lower"] is None else _key(data["lower"]),
            None if data["upper"] is None else _key(data["upper"]),
            read_origin(data["slot"]),
            stored_number(data["floor"]),
            None if seen is None else Seen(stored_text(seen["snapshot"]), stored_number(seen["lsn"])),
            _numbers(data["published_by"]),
            read_sum(data.get("columns")),
            read_options(data.get("options")),
            tuple(map(read_names, data.get("names", []))),
        )
