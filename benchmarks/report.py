"""RESULTS.md, the plots and the table on the screen, all from the JSON of the cells."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.costs.report import section as cost_section
from benchmarks.delay.report import section as delay_section
from benchmarks.plot import plot
from benchmarks.restore.report import section as restore_section
from benchmarks.spread import Spread

Document = Mapping[str, Any]

GROUPS = {
    "batch": (
        "Spark batch read, all seven columns",
        "Records per second from `spark.read` to the end of the query; more is better.",
    ),
    "value only": (
        "Spark batch read, only the column asked for",
        'headrace and the ceiling with `.schema("value binary")`, the JVM connector with `.select("value")`. More is better.',
    ),
    "trigger": (
        "Micro-batch overhead",
        "Median `triggerExecution` of batches with next to no data, from Spark's own progress reports. Less is better.",
    ),
    "stream": (
        "Spark streaming, AvailableNow over a backlog",
        "Records per second from `start` to the query's end; more is better.",
    ),
    "start": (
        "Cold start",
        "Every run in a new process; the start of the session itself is not counted. Less is better. "
        "Here `ceiling` is the least a Python source can cost: it yields one ready batch.",
    ),
    "settings read": (
        "Settings of Spark's that are not the default: a batch read",
        "headrace, records per second from `spark.read` to the end of the query, all columns, to noop; more is better. "
        "Unix sockets: `spark.python.unix.domain.socket.enabled=true`, between the JVM and its Python processes.",
    ),
    "settings trigger": (
        "Settings of Spark's that are not the default: a micro-batch with next to no data",
        "headrace, median `triggerExecution`; less is better. "
        "No checksum files: `spark.sql.streaming.checkpoint.fileChecksum.enabled=false`.",
    ),
    "write": (
        "A topic copied to another",
        "Records per second. On Spark from `start` to the query's end, AvailableNow: headrace **exactly once**, the JVM "
        "connector **at least once**. In Flink SQL from the statement to the job's end, **exactly once**. More is better.",
    ),
    "table": (
        "A topic written to a table",
        "Records per second from `start` to the query's or run's end, exactly once; key, value, partition, offset and time. "
        "Spark with Delta's jars reads by the JVM connector; without an engine two workers commit every second.",
    ),
    "beam": (
        "Read in a Beam pipeline",
        "Records per second from the first element that a stage behind the source counts to the last one; more is better. "
        "headrace gives Arrow batches, the others an element for every record; the time from submission is in the JSON.",
    ),
    "typed avro": (
        "Avro values to typed columns on Spark",
        "Records per second from `spark.read` to the end of the query, to noop: headrace with `valueFormat=avro` and a schema "
        "registry, the JVM connector with `from_avro` behind 5 bytes isolated. More is better.",
    ),
    "typed avro two": (
        "Two of fifty Avro fields on Spark",
        "headrace with `.schema(...)` of the two, the JVM connector with a reader's schema of the two in `from_avro`. "
        "More is better.",
    ),
    "typed avro undecoded": (
        "The same topic without decoding",
        "`value` as bytes, by both: of two fields of fifty no more than this is available. More is better.",
    ),
    "typed json": (
        "JSON values to typed columns on Spark",
        "headrace with `valueFormat=json`, the JVM connector with `from_json`. More is better.",
    ),
    "typed local": (
        "Avro values to typed columns in one process",
        "headrace and fastavro (with Arrow's conversion) give a typed column, confluent-kafka's `AvroDeserializer` dicts. "
        "More is better.",
    ),
    "files local": (
        "Files in one process",
        "Records per second; more is better. `FileSource` in an `EmbeddedRun`; `pyarrow.dataset` for Parquet, "
        "`pyarrow.json` and `pyarrow.csv` for a file at a time.",
    ),
    "files stream": (
        "Files as a stream of Spark, AvailableNow",
        "With the schema given, to the noop sink. Records per second from `start` to the query's end; more is better. The "
        "ceiling reads no files: it is what rows of a Python source cost Spark.",
    ),
    "files beam parquet": (
        "Parquet files in a Beam pipeline",
        "Records per second from the first element that a stage behind the source counts to the last one; more is better. "
        "headrace gives Arrow batches, `ReadFromParquetBatched` Arrow tables; the others a dict for every record.",
    ),
    "files beam text": ("Lines of text in a Beam pipeline", "The same; `ReadFromText` gives a string for every line."),
    "files discovery": (
        "A search for new files",
        "A folder in which ten files are new. The listings have name, size and time of every file, and compare nothing: "
        "`os.scandir` in a loop, and pyarrow's `FileSelector`. Less is better.",
    ),
    "files state": (
        "A checkpoint behind many files",
        "Its size in MB, and that of a list of names and times, such as the log of Spark's file source. Less is better.",
    ),
    "changes rate": (
        "PostgreSQL's rows and changes",
        "Per second, from the first that comes to the last; of headrace from the start of the run. headrace gives Arrow "
        "batches, Debezium's engine JSON, Flink CDC rows, all in one process, and counted there; `headrace run` commits to a "
        "Delta table each second. More is better.",
    ),
    "changes delay": (
        "PostgreSQL's changes: delay",
        "From the clock in a statement, which commits by itself, to the process that counts the change, or to the commit of "
        "the Delta table. Less is better.",
    ),
    "changes restart": (
        "PostgreSQL's changes: start",
        "From the start of the process to the first change of a slot's backlog. Less is better.",
    ),
    "changes memory": ("PostgreSQL's changes: memory", "The most that all processes of a system had. Less is better."),
    "changes processor": (
        "PostgreSQL's changes: processor seconds",
        "Of the process, without its start, for 1,000,000 of them. Less is better.",
    ),
    "local": (
        "Read in one process, no engine",
        "All values' bytes added up; headrace gives Arrow, the others Python objects. More is better.",
    ),
}

NAMES = {
    "headrace": "headrace",
    "headrace-unix-sockets": "headrace, Unix sockets",
    "headrace-no-checksums": "headrace, no checksum files",
    "jvm": "Spark's JVM connector",
    "ceiling": "Spark's Python ceiling",
    "confluent": "confluent-kafka",
    "headrace-records": "headrace, records",
    "kafkaio": "Beam's KafkaIO",
    "flink": "Flink",
    "delta-spark": "Spark with Delta's jars",
    "headrace-run": "headrace run",
    "spark": "Spark's file source",
    "pyarrow": "pyarrow",
    "beam": "Beam's source",
    "beam-batched": "Beam's, batched",
    "scandir": "os.scandir",
    "names": "names and times",
    "debezium": "Debezium's engine",
    "flink-cdc": "Flink CDC",
}


@dataclass(frozen=True)
class Judged:
    """A target, what was reached (paired, round by round), and whether that is enough; no spread: nothing to compare."""

    target: Mapping[str, Any]
    unit: str
    reached: Spread | None
    valid: bool

    @property
    def wanted(self) -> str:
        """The target, short."""
        sign, bound = ("≥" if self.target["kind"] == "at least" else "≤"), f"{self.target['bound']:g}"
        if self.target["kind"] == "at most by itself":
            return f"{sign} {bound} {self.unit} itself"
        return f"{sign} +{bound} {self.unit}" if self.target["kind"] == "at most more" else f"{sign} {bound} x"

    @property
    def outcome(self) -> str:
        """One word."""
        if self.reached is None or not self.valid:
            return "invalid"
        enough = self.reached.median >= self.target["bound"]
        if self.target["kind"] != "at least":
            enough = self.reached.median <= self.target["bound"]
        return "met" if enough else "missed"

    def brief(self) -> str:
        """What was reached, as written alongside a plot."""
        against = {"jvm": "JVM"}.get(self.target["against"], self.target["against"])
        if self.reached is None:
            return "-"
        if self.target["kind"] == "at most more":
            return f"{against} {self.reached.median:+.1f} {self.unit}"
        if self.target["kind"] == "at most by itself":
            return f"{self.reached.median:.2f} {self.unit}"
        return f"{self.reached.median:.2f} x {against}"

    def text(self) -> str:
        """What was reached, as written in a table."""
        if self.reached is None:
            return "-"
        unit = self.unit if self.target["kind"] in ("at most more", "at most by itself") else "x"
        return f"{self.reached.text(unit)} {unit}"


def load(directory: Path) -> dict[str, Document]:
    """All cells' documents by key."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))}
    return {name: document for name, document in found.items() if "group" in document}  # decode.py's and others' lie here too


def values(document: Document, system: str) -> dict[int, float]:
    """The system's figures by round, of valid runs."""
    return {run["round"]: run["value"] for run in document["runs"] if run["system"] == system and run["valid"]}


def judge(document: Document) -> list[Judged]:
    """Every target of a cell, and what was reached."""
    ours = values(document, "headrace")
    valid = all(run["valid"] for run in document["runs"])
    judged = []
    for target in document["targets"]:
        theirs = values(document, target["against"])
        both = sorted(ours.keys() & theirs.keys())
        if target["kind"] == "at most more":
            compared = [ours[number] - theirs[number] for number in both]
        elif target["kind"] == "at most by itself":
            compared = [ours[number] for number in both]
        else:
            compared = [ours[number] / theirs[number] for number in both]
        judged.append(Judged(target, document["unit"], Spread.of(compared) if compared else None, valid))
    return judged


def summary(directory: Path, keys: Collection[str] = ()) -> Table:
    """The cells as a table for the screen; all, or these."""
    table = Table("cell", "system", "median (quartiles)", "ours against it", "target", "result")
    for key, document in load(directory).items():
        if keys and key not in keys:
            continue
        targets = {judged.target["against"]: judged for judged in judge(document)}
        for system in document["systems"]:
            found = values(document, system)
            figure = f"{Spread.of(found.values()).text(document['unit'])} {_unit(document['unit'])}" if found else "-"
            judged = targets.get(system)
            row = (judged.text(), judged.wanted, judged.outcome) if judged else ("", "", "")
            table.add_row(key if system == document["systems"][0] else "", system, figure, *row)
    return table


def report(results: Path, target: Path) -> Path:
    """Write RESULTS.md into `target`, and the plots alongside the JSON."""
    documents = load(results)
    lines = [
        "# Results",
        "",
        "Made by `python -m benchmarks.read_throughput` and its neighbours from the JSON in `benchmarks/results`; do not edit.",
        "",
    ]
    lines += _facts(documents.values())
    for group, (title, explained) in GROUPS.items():
        chosen = [document for document in documents.values() if document["group"] == group]
        if chosen:
            image = results / f"{group.replace(' ', '-')}.svg"
            _plot(chosen, title, image)
            lines += ["", f"## {title}", "", explained, "", *_table(chosen), "", f"![{title}]({image.relative_to(target)})"]
    lines += cost_section(results)
    lines += delay_section(results, target)
    lines += restore_section(results, target)
    file = target / "RESULTS.md"
    file.write_text("\n".join(lines) + "\n")
    return file


def _plot(documents: list[Document], title: str, file: Path) -> None:
    bars: dict[str, dict[str, Spread]] = {}
    for document in documents:
        found = {system: values(document, system) for system in document["systems"]}
        bars[document["title"]] = {_name(name): Spread.of(runs.values()) for name, runs in found.items() if runs}
    notes = {document["title"]: "\n".join(judged.brief() for judged in judge(document)) for document in documents}
    if any(bars.values()):
        plot(bars, title, documents[0]["unit"], file, notes)


def _table(documents: list[Document]) -> Iterable[str]:
    systems = list(dict.fromkeys(system for document in documents for system in document["systems"]))  # not all are in each
    unit = documents[0]["unit"]
    heads = [f"{_name(system)}, {_unit(unit)}" for system in systems]
    for judged in judge(documents[0]):
        heads += [f"against {_name(judged.target['against'])}: {judged.wanted}", "result"]
    yield f"| | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    for document in documents:
        found = [values(document, system) for system in systems]
        figures = [Spread.of(runs.values()).text(unit) if runs else "-" for runs in found]
        outcomes = [cell for judged in judge(document) for cell in (judged.text(), judged.outcome)]
        yield f"| {' | '.join((document['title'], *figures, *outcomes))} |"


def _facts(documents: Iterable[Document]) -> Iterable[str]:
    documents = list(documents)
    rounds = sorted({document["rounds"] for document in documents})
    loads = [run["load"][0] for document in documents for run in document["runs"]]
    invalid = sum(not run["valid"] for document in documents for run in document["runs"])
    yield (
        f"Systems ran one after another (A B C A B C ...), {' or '.join(map(str, rounds))} rounds a cell. Figures are medians "
        "with their "
        "quartiles; ratios are taken round by round, and their median and quartiles are given. Every run is checked to have "
        f"read every record: {invalid} of {len(loads)} runs were invalid."
    )
    yield ""
    if loads:
        spread = Spread.of(loads)
        yield f"Load average before the runs: median {spread.median:.1f}, quartiles {spread.low:.1f} and {spread.high:.1f}."
        yield ""
    facts: dict[str, set[str]] = {}
    for document in documents:
        environment = document["environment"]
        known = {**environment["machine"], **environment["versions"], "commit": environment["commit"]}
        for name, value in known.items():
            facts.setdefault(name, set()).add(str(value))
    yield "| | |"
    yield "|---|---|"
    for name, found in facts.items():
        yield f"| {name} | {', '.join(sorted(found))} |"


def _name(system: str) -> str:
    return NAMES.get(system, system)


def _unit(unit: str) -> str:
    return "M records/s" if unit == "records/s" else unit
