"""Plans of a folder's history, and its files: what `test_folders.py` plays.

A row is known by its `id`: the number of the version of a file that has it, and its place there. All else of it follows.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as arrow_fs

from headrace.enumerator.source import Source
from headrace.files import Csv, FileSource
from headrace.sources import Hybrid, SourceEnd

START_MS = 1_700_000_000_000
ROWS = 1000
"""Of a version, at most."""
FORMATS = ("jsonl", "jsonl", "csv", "csv", "csv", "parquet", "avro", "text")
LINES = ("jsonl", "csv", "text")
SETTINGS: dict[str, tuple[Any, ...]] = {
    "watch": (False, True),
    "pattern": (None, None, "a*", "*[02468].*", "{a,b}?[0-4]*"),
    "columns": (None, ("id",), ("text", "id"), ("_metadata", "id", "n"), ("id", "deadLetter", "text"), ("id", "badReason")),
    "is_given": (True, True, False),
    "header": (True, False),
    "newlines": (True, False),
    "after_read": (None, "archive", "delete"),
    "max_age_s": (7 * 86400.0, 100.0),
    "on_changed": ("fail", "ignore", "reread"),
    "fails_on_loss": (True, False),
    "on_bad": ("fail", "keep", "keep", "skip"),
    "split_bytes": (128 << 20, 500, 60),
    "batch_rows": (65_536, 5, 5, 2, 1),
    "readers": (1, 2, 3),
    "order": ("time", "time", "time", "name"),
    "place": ("plain", "url", "slash", "arrow"),
}
STEPS = {"put": 6, "poll": 6, "checkpoint": 4, "restart": 4, "kill": 2, "lose": 1, "replace": 1, "remove": 1, "move": 1}
Step: TypeAlias = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Job:
    """How the files are read. `stages`: the numbers of the folders, one after another."""

    stages: tuple[int, ...] = (0,)
    watch: bool = True
    pattern: str | None = None
    columns: tuple[str, ...] | None = None
    is_given: bool = True
    header: bool = True
    newlines: bool = False
    after_read: str | None = None
    max_age_s: float = 7 * 86400.0
    on_changed: str = "fail"
    fails_on_loss: bool = True
    on_bad: str = "fail"
    split_bytes: int = 128 << 20
    batch_rows: int = 65_536
    readers: int = 1
    order: str = "time"
    place: str = "plain"


@dataclass(frozen=True)
class Plan:
    """Of all files: `packed` if some are, `varies` if they have other columns and types, `newlines` if texts have these.

    `by_function`: functions make the sources behind the first.
    """

    number: int
    format: str
    on_spark: bool
    packed: bool
    varies: bool
    newlines: bool
    header: bool
    in_days: bool
    by_function: bool
    job: Job
    steps: tuple[Step, ...]


@dataclass(eq=False)
class Version:
    """One content of a file. `columns`: those that it has. `bad`: numbers of rows that are. `has_end`: it is whole."""

    number: int
    folder: int
    path: str
    time_ms: int
    rows: int
    bad: frozenset[int]
    columns: tuple[str, ...]
    wide: bool
    has_end: bool
    is_first: bool = False
    """Listed when the job started, by the pattern that it had."""
    is_ahead: bool = True
    """In the order of names, of those that were there."""
    replaces: bool = False
    """A file of its name was there."""
    is_doubtful: bool = False
    """What becomes of its rows is not defined."""
    gone: str = ""
    """Who has removed it: the job, or the plan."""
    data: bytes = field(default=b"", repr=False)

    @property
    def good(self) -> list[int]:
        return [self.number * ROWS + row for row in range(self.rows) if row not in self.bad]


def plan_of(number: int) -> Plan:
    chance = Random(number)
    form = chance.choice(FORMATS)
    is_csv, several = form == "csv", chance.random() < 0.35
    header, newlines = not is_csv or chance.random() < 0.8, is_csv and chance.random() < 0.6
    drawn = {name: chance.choice(values) for name, values in SETTINGS.items()}
    stages = tuple(chance.sample(range(3), chance.choice([2, 2, 3]))) if several else (0,)
    job = replace(Job(stages), **drawn | {"header": header, "newlines": newlines, "watch": chance.random() < 0.7})
    steps = [("put", tuple(chance.random() for _ in range(8))) for _ in range(chance.randint(0, 5))]
    kinds, weights = list(STEPS), list(STEPS.values())
    for _ in range(chance.randint(4, 18)):
        steps.append(step(chance, chance.choices(kinds, weights)[0], form, several))
    varies, packed = chance.random() < 0.3, chance.random() < 0.3
    in_days = chance.random() < 0.3
    on_spark, by_function = chance.random() < 0.4, chance.random() < 0.3
    return Plan(number, form, on_spark, packed, varies, newlines, header, in_days, by_function, job, tuple(steps))


def step(chance: Random, what: str, form: str, several: bool) -> Step:
    match what:
        case "put" | "replace" | "remove":
            return what, tuple(chance.random() for _ in range(8))
        case "poll":
            return what, (chance.choice([1, 2, 3, 5, 20]),)
        case "kill":
            return what, (chance.choice(["planned", "read", "committed"]),)
        case "checkpoint":
            return what, (chance.choice(["completed", "completed", "completed", "aborted", "stored"]),)
        case "restart":
            edits = [edit(chance, form, several) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
            return what, (chance.choice(["", "completed", "stored"]), *edits)
    return what, ()


def edit(chance: Random, form: str, several: bool) -> tuple[str, Any]:
    if several and chance.random() < 0.3:
        return "stages", chance.choice(["add", "drop", "swap"])
    is_of_csv = form == "csv" and chance.random() < 0.4
    name = chance.choice(["newlines", "header"] if is_of_csv else list(SETTINGS))
    if name == "order" and chance.random() < 0.7:
        name = "split_bytes"
    return name, "other" if is_of_csv else chance.choice(SETTINGS[name])


# --- files --------------------------------------------------------------------------------------------------------------


def cells(plan: Plan, version: Version, row: int) -> dict[str, Any]:
    """Of a good row, in the order of the file."""
    known = version.number * ROWS + row
    text = f'a\n"{known}",' if plan.newlines and row % 3 == 0 else f"text {known}"
    all_cells = {"id": known, "text": text, "n": known % 7}
    return {name: all_cells[name] for name in version.columns}


def written(plan: Plan, version: Version) -> bytes:
    """The file; one that is not whole ends within its last line, or somewhere."""
    if plan.format in LINES:
        lines = [line_of(plan, version, row) for row in range(version.rows)]
        if not version.has_end and not version.path.endswith(".gz"):
            lines.append(line_of(plan, version, version.rows)[:1])
        elif plan.format == "jsonl" and version.rows % 2:
            lines[1:1] = ["\n", " \n"]  # blank ones, which are not records
        head = ",".join(version.columns) + "\n" if plan.format == "csv" and plan.header else ""
        data = (head + "".join(lines)).encode()
        data = gzip.compress(data, mtime=0) if version.path.endswith(".gz") else data
        return data if version.has_end or not version.path.endswith(".gz") else data[: len(data) * 2 // 3]
    rows = [cells(plan, version, row) for row in range(version.rows)]
    kind = pa.int64() if version.wide else pa.int32()
    kinds = {"id": pa.int64(), "text": pa.string(), "n": kind}
    target = io.BytesIO()
    if plan.format == "parquet":
        schema = pa.schema([(name, kinds[name]) for name in version.columns])
        pq.write_table(pa.Table.from_pylist(rows, schema), target, row_group_size=3)
    else:
        import fastavro

        names = {"id": "long", "text": "string", "n": "long" if version.wide else "int"}
        fields = [{"name": name, "type": names[name]} for name in version.columns]
        marker = bytes(16)
        fastavro.writer(target, {"type": "record", "name": "r", "fields": fields}, rows, sync_interval=50, sync_marker=marker)
    return target.getvalue() if version.has_end else target.getvalue()[: len(target.getvalue()) * 2 // 3]


def line_of(plan: Plan, version: Version, row: int) -> str:
    found, known = cells(plan, version, row), version.number * ROWS + row
    if plan.format == "text":
        return f"{known}\n"
    if plan.format == "jsonl":
        return f'{{"id": bad{known}\n' if row in version.bad else json.dumps(found) + "\n"
    target = io.StringIO()
    shown = found | ({"id": f"bad{known}"} if row in version.bad else {})
    csv.writer(target, lineterminator="\n").writerow(shown.values())
    return target.getvalue()


def source_of(plan: Plan, job: Job, folders: Sequence[str], archive: str) -> Source[Any]:
    sources = file_sources(plan, job, folders, archive)
    if len(plan.job.stages) == 1:
        return sources[0]
    if not plan.by_function:
        return Hybrid(sources[0], then=sources[1:])
    made = [partial(stage_of, plan, job, folders, archive, place) for place in range(1, len(sources))]
    return Hybrid(sources[0], then=made, boundedness=sources[-1].boundedness)


def stage_of(plan: Plan, job: Job, folders: Sequence[str], archive: str, place: int, _: SourceEnd) -> FileSource:
    return file_sources(plan, job, folders, archive)[place]


def file_sources(plan: Plan, job: Job, folders: Sequence[str], archive: str) -> list[FileSource]:
    """One for each stage. `folders`: all that there are."""
    is_text = plan.format == "text"
    schema = pa.schema([("value", pa.string())] if is_text else [("id", pa.int64()), ("text", pa.string()), ("n", pa.int64())])
    if plan.in_days:
        schema = schema.append(pa.field("day", pa.string()))
    columns = (
        None
        if is_text or job.columns is None
        else [name for name in job.columns if name not in ("deadLetter", "badReason") or job.on_bad == "keep"]
    )
    is_given = job.is_given or (plan.format == "csv" and not (job.header and plan.header))
    return [
        FileSource(
            {"url": "file://", "plain": "", "slash": "", "arrow": ""}[job.place]
            + folders[folder]
            + "/" * (job.place == "slash"),
            format=Csv(header=job.header, newlines_in_values=job.newlines) if plan.format == "csv" else plan.format,
            schema=schema if is_given else None,
            columns=columns,
            watch=job.watch and place == len(job.stages) - 1,
            discovery_interval_s=1e-6,
            pattern=job.pattern,
            order=job.order,
            max_file_age_s=job.max_age_s,
            on_changed_file=changed_files(job, place),
            fail_on_data_loss=job.fails_on_loss,
            on_bad_record=job.on_bad,
            after_read=f"archive:{archive}/{folder}" if job.after_read == "archive" else job.after_read,
            split_bytes=job.split_bytes,
            batch_rows=job.batch_rows,
            filesystem=arrow_fs.LocalFileSystem() if job.place == "arrow" else None,
        )
        for place, folder in enumerate(job.stages)
    ]


def changed_files(job: Job, place: int) -> str:
    """Only a source that watches, by times, reads files again."""
    can_reread = job.watch and job.order == "time" and place == len(job.stages) - 1
    return "fail" if job.on_changed == "reread" and not can_reread else job.on_changed
