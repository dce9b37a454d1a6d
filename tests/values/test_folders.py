"""A search for rows of files that a job loses, doubles or changes when it starts again, edited, while the folder changes.

In the history of a folder files appear, late or in place of others, and vanish, and a job reads them, is killed, and is
started from its last checkpoint with other settings. The plan knows each row by its id: it comes once, over all starts, unless
something in the plan explains that the job is refused, or a rule that is documented leaves the row out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("fastavro", reason="needs headrace[avro]")
pytest.importorskip("pyspark")

from headrace.connectors.base.counters import COUNTERS, Counted
from headrace.enumerator import EmbeddedRun
from headrace.enumerator.errors import CorruptDataError, DataLossError, HeadraceError, StateError, UsageError
from headrace.runners.spark.reports import REPORTS_VARIABLE
from tests.helpers.spark_in_turn import OnSpark, in_turn
from tests.values.budget import by_number, explore, find, noted
from tests.values.bugs import folders as bugs
from tests.values.folders import ROWS, START_MS, Job, Plan, Version, cells, changed_files, plan_of, source_of, written

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::ResourceWarning")]

COUNTS: Counter[str] = Counter()
FOLDERS = 800
"""Examples of the default budget."""
TRIES = 20


@dataclass
class Delivered:
    """What came, up to a checkpoint: ids of rows, dead letters, and how many bad records were counted."""

    rows: Counter[int] = field(default_factory=Counter)
    dead: Counter[Any] = field(default_factory=Counter)
    bad: int = 0


class History:
    """Folders, what the plan makes of them, and what a job has delivered. `kept` is of the last checkpoint that is stored."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self.plan, self.root, self.job = plan, root, plan.job
        self.kept: tuple[Delivered, Any, Job] = (Delivered(), None, plan.job)
        self.delivered = Delivered()
        self.folders = [str(root / f"s{number}") for number in range(3)]
        for folder in self.folders:
            os.makedirs(folder)
        self.versions: list[Version] = []
        self.run: Any = None
        self.now, self.newest_ms, self.quiet = 0.0, START_MS, 0
        self.jobs: list[Job] = []
        self.refusals: list[str] = []
        self.is_harmed = self.is_refused = False
        self.end_ms: int | None = None
        self.of_bounded: set[int] | None = None

    # --- the folder -----------------------------------------------------------------------------------------------------

    def put(self, draws: tuple[float, ...], over: Version | None = None) -> None:
        """A file, renamed into place. Its time may be that of the newest one, or older; `over`: in place of this one."""
        plan, (what, when, where, size, bad, cut, kind, name) = self.plan, draws
        number = len(self.versions)
        self.newest_ms += 0 if when < 0.2 else 10_000
        time_ms = self.newest_ms - (0 if when < 0.7 else int(when * 30_000) if when < 0.9 else int(when * 400_000))
        day = f"day={int(kind * 3)}/" if plan.in_days and (what < 0.6 or not plan.header) else "sub/" if what > 0.9 else ""
        ending = ".gz" if plan.packed and kind < 0.6 and plan.format in ("jsonl", "csv", "text") else ""
        path = f"{day}{'ab'[name < 0.5]}{int(name * 100):02}x{number}.{plan.format}{ending}"
        rows = int(size * 25)
        varied = [("id", "text", "n"), ("n", "id", "text"), ("id", "n"), ("text", "id")]
        columns = varied[int(kind * 4)] if plan.varies and plan.header else varied[0]
        is_bad = bad < 0.15 and plan.format in ("jsonl", "csv")
        version = Version(
            number,
            over.folder if over else int(where * 3) if len(plan.job.stages) > 1 else 0,
            over.path if over else path,
            time_ms,
            rows,
            frozenset(row for row in range(rows) if is_bad and row % 5 == 2),
            columns,
            wide=kind < 0.5 or not plan.varies,
            has_end=cut > 0.06 or plan.format == "text",
        )
        version.data = b"" if rows == 0 and cut > 0.5 else written(plan, version)
        names = [each.path for each in self.versions if each.folder == version.folder]
        version.is_ahead = all(name < version.path for name in names)
        if over is not None:
            over.gone, over.is_doubtful, version.replaces, self.is_harmed = over.gone or "plan", True, True, True
        self.versions.append(version)
        hidden = self.root / "hidden"
        hidden.write_bytes(version.data)
        os.utime(hidden, ns=(time_ms * 10**6,) * 2)
        target = self.path_of(version)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(hidden, target)

    @property
    def rereads(self) -> bool:
        """Whether a changed file is read again by every job so far, and the next."""
        return all(changed_files(job, len(job.stages) - 1) == "reread" for job in [*self.jobs, self.job])

    def is_unsure(self, version: Version) -> bool:
        """Also one that is read twice, or not, where another one of its name was found, and changes were not looked at."""
        return version.is_doubtful or (version.replaces and not self.rereads)

    def path_of(self, version: Version) -> Path:
        return Path(self.folders[version.folder], version.path)

    def some(self, draw: float) -> Version | None:
        there = [version for version in self.versions if not version.gone]
        return there[int(draw * len(there))] if there else None

    def remove(self, version: Version) -> None:
        self.path_of(version).unlink()
        version.gone, self.is_harmed = "plan", True

    def move(self) -> None:
        """The folders get other names, and the job is stopped."""
        self.stop()
        for number, folder in enumerate(self.folders):
            self.folders[number] = folder + "m"
            os.rename(folder, self.folders[number])

    # --- the job --------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """As by a kill: what came behind the last checkpoint is not kept."""
        if self.run is not None:
            self.run.close()
            self.run = None
        self.delivered = deepcopy(self.kept[0])

    def start(self) -> None:
        self.stop()
        state = self.kept[1]
        self.note_start(is_fresh=state is None)
        source = source_of(self.plan, self.job, self.folders, str(self.root / "done"))
        if self.plan.on_spark:
            self.run = OnSpark(source, str(self.root / "checkpoint"), 3, state)
        else:
            self.run = EmbeddedRun(source, clock=lambda: self.now, checkpoint=state, parallelism=self.job.readers)

    def note_start(self, *, is_fresh: bool) -> None:
        there = [version for version in self.versions if not version.gone and version.data]
        if is_fresh:
            self.jobs.clear()
            for version in self.versions:
                version.is_first = version in there and self.selects(version)
            firsts = [version for version in there if version.is_first and version.folder == self.job.stages[0]]
            self.end_ms = None if self.job.watch else max((version.time_ms for version in firsts), default=0)
        if self.job.watch:
            self.of_bounded = None
        elif self.of_bounded is None or is_fresh:
            self.of_bounded = {version.number for version in there}
        self.jobs.append(self.job)

    def is_misfit(self, job: Job) -> bool:
        """Whether files, as they are, may be bad by this job's settings."""
        plan = self.plan
        others = plan.format == "csv" and (job.header != plan.header or (plan.newlines and not job.newlines))
        is_bad = plan.format == "csv" and any(version.bad or not version.has_end for version in self.versions)
        return others or ((plan.varies or is_bad) and not job.is_given)

    def selects(self, version: Version, job: Job | None = None) -> bool:
        pattern = (job or self.job).pattern
        if pattern is None:
            return True
        expression = pattern.replace(".", r"\.").replace("*", ".*").replace("?", ".").replace("{a,b}", "[ab]")
        return re.fullmatch(expression, version.path.rsplit("/", 1)[-1]) is not None

    def poll(self, killed: str = "") -> None:
        """A batch. `killed`: when, in one of Spark."""
        if self.run is None:
            self.start()
        self.now += 1000.0
        for version in self.versions if self.is_misfit(self.job) else ():
            version.is_doubtful = True
        COUNTERS.take()
        self.quiet += 1
        if self.plan.on_spark:
            self.poll_spark(killed)
            return
        batch = self.run.poll(0.0)
        if batch is not None:
            self.quiet = 0
            self.take([batch.records])
        if killed:
            self.stop()

    def poll_spark(self, killed: str) -> None:
        if self.run.start is None and self.run.planned is None:
            self.note_start(is_fresh=True)
        if not self.run.plan():
            return
        self.quiet = 0
        self.kept = (self.kept[0], (self.run.start, self.run.planned), self.job)
        if killed == "planned":
            self.stop()
            return
        self.take(self.run.read())
        if killed == "read":
            self.stop()
            return
        self.run.start, self.run.planned = self.run.planned, None
        self.kept = (deepcopy(self.delivered), (self.run.start, None), self.job)
        if killed:
            self.stop()
        else:
            self.run.commit()

    def take(self, batches: list[pa.RecordBatch]) -> None:
        counted = COUNTERS.take()
        self.delivered.bad += int(
            sum(counted.get(each.value, 0) for each in (Counted.RECORDS_SKIPPED, Counted.RECORDS_KEPT_BAD))
        )
        for row in (row for batch in batches for row in batch.to_pylist()):
            if letter := row.get("deadLetter"):
                self.delivered.dead[str(letter)] += 1  # with its file and place
                continue
            known = str(row["value"] if "value" in row else row["id"])
            if known.isdecimal():  # and no bad record that is kept
                self.check_row(int(known), row)

    def check_row(self, known: int, row: dict[str, Any]) -> None:
        COUNTS["rows"] += 1
        self.delivered.rows[known] += 1
        version = self.versions[known // ROWS]
        assert known in version.good, f"no row {known}"
        wanted = {"text": None, "n": None} | cells(self.plan, version, known % ROWS)
        day = re.search("day=([^/]*)", version.path)
        wanted |= {"day": day[1] if day else None}
        for name, value in row.items():
            if name in wanted:
                got = None if value is None else str(value)
                assert got == (None if wanted[name] is None else str(wanted[name])), f"{name} of {known} is {value!r}"
        if "_metadata" in row and not self.is_unsure(version):
            assert row["_metadata"]["path"] == version.path

    def checkpoint(self, how: str) -> None:
        """`how` it ends. "stored": the job is killed before it hears of it. Spark's are its batches."""
        if self.run is None or self.plan.on_spark:
            return
        state = self.run.checkpoint()
        if how == "aborted":
            self.run.checkpoint_aborted()
            return
        self.kept = (deepcopy(self.delivered), state, self.job)
        if how == "stored":
            self.stop()
        else:
            self.run.checkpoint_completed()

    def lose(self) -> None:
        """All readers of a run: others start behind its last checkpoint."""
        if self.run is None or self.plan.on_spark:
            return
        self.delivered = deepcopy(self.kept[0])
        for number in range(self.jobs[-1].readers):
            self.run.lose_reader(number)
        for number in range(self.jobs[-1].readers):
            self.run.start_reader(number)

    def edit(self, name: str, value: Any) -> None:
        if name == "header" and self.plan.varies:
            return  # cells would be taken for others
        if name != "stages":
            self.job = replace(self.job, **{name: not getattr(self.job, name) if value == "other" else value})
            return
        stages = self.job.stages
        free = [number for number in range(3) if number not in stages]
        if value == "add" and free:
            self.job = replace(self.job, stages=(*stages, free[0]))
        elif value == "drop" and len(stages) > 2:
            self.job = replace(self.job, stages=stages[:-1])
        elif value == "swap" and self.stage < len(stages) - 2:
            self.job = replace(self.job, stages=(*stages[:-2], stages[-1], stages[-2]))

    @property
    def stage(self) -> int:
        """The last that the job is known to have come to."""
        state = self.kept[1]
        stored = state.decode() if isinstance(state, bytes) else json.dumps(state)
        found = [int(each) for each in re.findall(r'\\*"stage\\*": ?(?:{\\*"number\\*": ?)?(\d)', stored)]
        return max(found, default=0)

    # --- what is refused ------------------------------------------------------------------------------------------------

    def attempt(self, act: Callable[[], object]) -> bool:
        """Whether it was done. What is refused is explained, and the job gets settings by which it should continue."""
        refused: HeadraceError | None = None
        try:
            act()
        except HeadraceError as error:
            refused = error
        self.check_removed()
        if refused is not None:
            self.refuse(refused)
        return refused is None

    def refuse(self, error: HeadraceError) -> None:
        COUNTS["refusals"] += 1
        self.stop()
        self.refusals.append(f"{type(error).__name__}: {error}")
        assert self.explains(error), self.refusals
        self.is_refused = len(self.refusals) > TRIES
        # some files were read up to lines, and others up to rows of CSV
        assert not self.is_refused or " counts " in str(error), f"refused for ever: {self.refusals}"
        self.job = self.remedy(error)
        self.kept = (*self.kept[:2], self.job)

    def edited(self, *names: str) -> bool:
        return any(len({getattr(job, name) for job in [*self.jobs, self.job]}) > 1 for name in names)

    def explains(self, error: HeadraceError) -> bool:
        text, given = str(error), all(job.is_given for job in [*self.jobs, self.job])
        match error:
            case CorruptDataError():
                # no schema is inferred of a packed file without lines
                is_bad = any(version.bad or not (version.has_end and version.rows) for version in self.versions)
                return is_bad or any(map(self.is_misfit, [*self.jobs, self.job]))
            case DataLossError():
                return self.is_harmed or self.edited("pattern")
            case UsageError():
                return not given and any(each in text for each in ("to infer a schema", "there is no column", "column "))
            case StateError():
                return self.edited(*names) if (names := settings_of(error)) != ("is_given",) else not given
        return False

    def remedy(self, error: HeadraceError) -> Job:
        """An edit is undone; where nothing was edited since the checkpoint, what cannot be read is left out."""
        kept = self.kept[2]
        if self.job != kept:
            return kept
        match error:
            case CorruptDataError():
                return replace(self.job, on_bad="keep", is_given=True)
            case DataLossError():
                return replace(self.job, fails_on_loss=False, on_changed="ignore")
            case StateError() if (names := settings_of(error)) != ("is_given",):  # of an edit that was not looked at before
                now = [getattr(self.job, name) for name in names]
                earlier = ([getattr(job, name) for name in names] for job in reversed(self.jobs))
                return replace(self.job, **dict(zip(names, next(each for each in earlier if each != now), strict=True)))
        return replace(self.job, is_given=True)

    def check_removed(self) -> None:
        """The job removes nothing whose rows are not durable."""
        for version in self.versions:
            if version.gone or self.path_of(version).exists():
                continue
            version.gone = "job"
            COUNTS["removed"] += 1
            removing = {job.after_read for job in self.jobs} - {None}
            assert removing, f"who has removed {version}?"
            if version.has_end and not self.is_unsure(version):
                assert all(self.kept[0].rows[known] == 1 for known in version.good), f"removed, and not kept: {version}"
            if removing == {"archive"}:
                archived = [each.read_bytes() for each in (self.root / "done").rglob("*") if each.is_file()]
                assert version.data in archived, f"not in the archive: {version}"

    # --- the history ----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        for what, arguments in self.plan.steps:
            match what:
                case "put":
                    self.put(arguments)
                case "replace" | "remove":
                    if (version := self.some(arguments[0])) is not None:
                        self.put(arguments, version) if what == "replace" else self.remove(version)
                case "move":
                    self.move()
                case "poll":
                    for _ in range(arguments[0]):
                        self.attempt(self.poll)
                case "kill":
                    self.attempt(lambda when=arguments[0]: self.poll(when))
                case "lose":
                    self.attempt(self.lose)
                case "checkpoint":
                    self.attempt(lambda how=arguments[0]: self.checkpoint(how))
                case "restart":
                    how, *edits = arguments
                    self.attempt(lambda how=how: self.checkpoint(how) if how else None)
                    for each in edits:
                        self.edit(*each)
                    self.attempt(self.start)
            self.check_removed()
        self.finish()
        self.compare()
        COUNTS.update({"folders": 1, "folders with refusals": bool(self.refusals), "files": len(self.versions)})

    def finish(self) -> None:
        self.job = replace(self.job, header=self.plan.header, newlines=self.plan.newlines)
        self.attempt(self.start)
        self.quiet = 0
        while self.quiet < 6 and not self.is_refused:
            if self.attempt(self.poll):
                self.attempt(lambda: self.checkpoint("completed"))
        self.stop()

    def is_due(self, version: Version) -> bool:
        """Whether all its rows have to be there, by what is documented. The job is over."""
        job = self.job
        if self.is_refused:
            return False
        is_unknown = (
            self.is_unsure(version) or version.gone == "plan" or not version.has_end or version.folder not in job.stages
        )
        if is_unknown or not self.selects(version):
            return False
        if job.order == "name" and not (version.is_first or (version.is_ahead and self.has_new_pattern)):
            return False
        others = [each.time_ms for each in self.versions if each.folder == version.folder]
        age_ms = min(each.max_age_s for each in self.jobs) * 1000
        is_late = version.time_ms <= max(others) - age_ms
        is_last, is_hybrid = version.folder == job.stages[-1], len(self.plan.job.stages) > 1
        if is_hybrid:
            in_all = version.is_first and all(self.selects(version, each) for each in self.jobs)
            return in_all if not is_last or not all(each.watch for each in self.jobs) else not is_late
        if version.is_first:
            return True
        if not job.watch:
            return self.end_ms is None and not is_late and version.number in (self.of_bounded or ())
        return not is_late and (self.end_ms is None or version.time_ms > self.end_ms)

    @property
    def has_new_pattern(self) -> bool:
        """Or always the same. What has come meanwhile is unknown to one that is given again."""
        patterns = [job.pattern for job in self.jobs]
        given = [patterns[0], *(new for old, new in pairwise(patterns) if new != old)]
        return given.count(self.job.pattern) <= 1

    def compare(self) -> None:
        came, least, most = self.delivered, 0, 0
        for version in self.versions:
            counts = {known: came.rows[known] for known in version.good}
            may_be_twice = version.replaces and not self.rereads
            assert may_be_twice or max(counts.values(), default=0) <= 1, f"twice: {version} {counts}"
            due = version.data and self.is_due(version)
            COUNTS["rows that are due"] += len(counts) if due else 0
            assert not due or all(counts.values()), f"lost: {version} {counts}"
            least += len(version.bad) if due else 0
            # of a file that is damaged each piece may be one; one that was packed may be empty when it is read
            most += len(version.bad) + version.replaces + (0 if version.has_end else 2 + len(version.data) // 60)
        assert max(came.dead.values(), default=0) <= 1, came.dead
        if not any(map(self.is_misfit, self.jobs)):
            assert least <= came.bad <= most, f"{came.bad} bad records, and not {least} to {most}"


def settings_of(error: StateError) -> tuple[str, ...]:
    """Those that have to be as they were."""
    causes = {
        "order=": ("order",),
        "with pattern=": ("pattern",),
        " counts ": ("header", "newlines"),
        "was cut into pieces": ("newlines",),
        "schema": ("is_given",),
        "of a hybrid source": ("stages",),
        "had an end": ("watch",),
        "had no end": ("watch",),
    }
    return next((names for text, names in causes.items() if text in str(error)), ())


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of Spark's in the same process have the variable set, and a report takes the counts away."""
    monkeypatch.delenv(REPORTS_VARIABLE, raising=False)


def check(plan: Plan) -> None:
    root = Path(tempfile.mkdtemp(prefix="headrace-folders-"))
    history = History(plan, root)
    try:
        with noted(lambda: f"plan_of({plan.number}): {plan}\n{history.jobs}\n{history.refusals}"), in_turn():
            history.play()
    finally:
        history.stop()
        shutil.rmtree(root)


def folders() -> Callable[[], None]:
    return by_number(lambda number: check(plan_of(number)))


def test_a_short_run_of_folders():
    find(folders(), 60)


def test_each_row_of_a_folder_comes_once():
    explore(folders, FOLDERS, "folders", COUNTS)


@pytest.mark.parametrize("bug", bugs.OF_FOLDERS)
def test_a_bug_of_folders_is_found(bug):
    with bug(), pytest.raises(AssertionError):
        find(folders(), FOLDERS)
