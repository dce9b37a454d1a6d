"""The restore section of RESULTS.md, its plots, and the table on the screen, all from the kept runs and capacities."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.restore.plots import plot_bars, plot_time
from benchmarks.restore.runs import capacities_in, runs_in
from benchmarks.restore.stages import STAGES
from benchmarks.spread import Spread
from benchmarks.stored import Document

EXPLAINED = """\
Every run is one system under a steady load, one SIGKILL, and its restore. **Outage**: from the kill to the first new record
that a reader under `read_committed` sees. **Recovery**: until the lag is back at its lower quartile from before the kill, and
stays below its highest. **DFRT** (duplicate-free restore throughput): distinct records that became visible from the kill to the
recovery, per second; 0 in a run whose output has one record twice, one missing or one partially committed, by an oracle that
reads the whole output. **First 30 s**: the same over a fixed time, whatever the output has. **Read again**: bytes the broker
handed out of the input for each byte in it; headrace asks for a quarter and 64 KiB of each partition more than a batch should
need, so as not to ask twice, which shows where batches are small.

With a steady load the DFRT of a system that recovers cannot differ from the load by more than a batch: what has come in by then
has come out. So it shows who recovers without a flaw, and at which load; outage, recovery and the first 30 s tell how fast."""


def section(results: Path, target: Path) -> list[str]:
    """The lines of the report; the plots go alongside the runs. Empty without runs or breakdown."""
    return [*_restores(results, target), *_breakdown(results / "restore-breakdown.json")]


def _restores(results: Path, target: Path) -> list[str]:
    documents = runs_in(results).all()
    if not documents:
        return []
    lines = ["", "## Duplicate-free restore throughput", "", EXPLAINED]
    runs = [document for document in documents if not document["ablation"]]
    for key in dict.fromkeys((document["load"], document["value_bytes"]) for document in runs):
        chosen = [document for document in runs if (document["load"], document["value_bytes"]) == key]
        lines += ["", f"### {_title(*key)}", "", *_table(chosen), "", *_plots(chosen, results / "restore", target)]
    lines += _capacities(capacities_in(results).all())
    lines += _ablations([document for document in documents if document["ablation"] and document["valid"]])
    lines += ["", *_facts(documents)]
    return lines


def summary(documents: Sequence[Document]) -> Table:
    """Runs for the screen."""
    table = Table("system", "kill", "load", "DFRT", "outage", "recovery", "duplicates", "lost", "torn", "valid")
    for document in documents:
        result, outcome = document["restore"], document["verdict"]
        scenario = document["scenario"]
        table.add_row(
            f"{document['system']}, {document['value_bytes']} B",
            scenario["name"] + ("" if scenario["phase"] is None else f" ({scenario['phase']})"),
            f"{document['rate']:,}",
            f"{document['dfrt']:,.0f}",
            _seconds(result["outage_s"]),
            _seconds(result["recovery_s"]),
            *(str(outcome[name]) for name in ("duplicates", "lost", "torn")),
            "yes" if document["valid"] else "; ".join(document["wrong"]),
        )
    return table


def _title(load: str, value_bytes: int) -> str:
    common = (
        "70 % of the lowest sustained throughput among Spark's connector, Flink and ours, or of a system's own, if that is less"
    )
    loads = {"own-load": "each system at 70 % of its capacity", "common-load": common}
    rate = load.split("-")[0]
    return f"Records of {_size(value_bytes)}, {loads.get(load, f'all at {rate} records/s')}"


def _size(value_bytes: int) -> str:
    return f"{value_bytes // 1024} KiB" if value_bytes >= 1024 else f"{value_bytes} B"


def by_system(documents: Sequence[Document]) -> dict[str, list[Document]]:
    """The valid runs by title of the system."""
    found: dict[str, list[Document]] = {}
    for document in documents:
        if document["valid"]:
            found.setdefault(document["title"], []).append(document)
    return found


def values(documents: Iterable[Document], *path: str) -> list[float]:
    """A figure of each run that has it."""
    found = []
    for document in documents:
        value: Any = document
        for name in path:
            value = value[name]
        if value is not None:
            found.append(float(value))
    return found


def _table(documents: Sequence[Document]) -> Iterator[str]:
    heads = ("system", "kills", "load, k/s", "DFRT, k/s", "worst", "DFRT / steady", "first 30 s, k/s", "outage, s", "worst",
             "recovery, s", "not recovered", "duplicates", "lost", "torn", "out of order", "read again")  # fmt: skip
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for title, runs in by_system(documents).items():
        dfrt, outage = values(runs, "dfrt"), values(runs, "restore", "outage_s")
        shares = [run["dfrt"] / run["restore"]["steady"] for run in runs]
        cells = [
            f"{title} ({runs[0]['guarantee']})",
            str(len(runs)),
            f"{median(run['rate'] for run in runs) / 1000:.1f}",
            _thousands(dfrt),
            f"{min(dfrt) / 1000:.1f}",
            f"{median(shares):.2f}",
            _thousands(values(runs, "restore", "first_30_s")),
            _spread(outage),
            _seconds(max(outage, default=None)),
            _spread(values(runs, "restore", "recovery_s")),
            str(sum(run["restore"]["recovery_s"] is None for run in runs)),
            *(f"{sum(run['verdict'][name] for run in runs):,}" for name in ("duplicates", "lost", "torn", "out_of_order")),
            _spread(values(runs, "read_amplification"), digits=2),
        ]
        yield "| " + " | ".join(cells) + " |"
    invalid = sum(not document["valid"] for document in documents)
    yield ""
    yield (
        "Medians with quartiles; anomalies are sums over all kills. "
        f"{invalid} of {len(documents)} runs were invalid and are left out."
    )


def _plots(documents: Sequence[Document], directory: Path, target: Path) -> Iterator[str]:
    runs = by_system(documents)
    if not runs:
        return
    stem = f"restore-{documents[0]['value_bytes']}-b-{documents[0]['load']}"
    time_file, bars_file = (directory / f"{stem}-{kind}.svg" for kind in ("time", "bars"))
    plot_time({title: _typical(found) for title, found in runs.items()}, time_file)
    plot_bars(runs, bars_file)
    yield f"![What became visible, by time since the kill]({time_file.relative_to(target)})"
    yield ""
    yield f"![Outage and DFRT]({bars_file.relative_to(target)})"


def _typical(runs: Sequence[Document]) -> Document:
    """The run with the median recovery."""
    by_recovery = sorted(runs, key=lambda run: run["restore"]["recovery_s"] or math.inf)
    return by_recovery[len(by_recovery) // 2]


def _capacities(found: Sequence[Document]) -> Iterator[str]:
    """The sustained throughput of each system, and the cost of a record in each process, which bounds the load."""
    if not found:
        return
    parties = list(dict.fromkeys(name for document in found for name in document["processors_us"]))
    yield ""
    yield "### Sustained throughput"
    yield ""
    yield (
        "Records per second delivered when the load continues only as fast as records come out, and microseconds of processor "
        "time per record, by whose processes they are. Load and probe are the benchmark's own."
    )
    yield ""
    yield "| | records/s | " + " | ".join(f"{name}, µs" for name in parties) + " |"
    yield "|---" * (2 + len(parties)) + "|"
    for document in found:
        budget = " | ".join(f"{document['processors_us'].get(name, 0.0):.2f}" for name in parties)
        yield f"| {document['title']}, {_size(document['value_bytes'])} | {document['records_per_s']:,.0f} | {budget} |"


def _ablations(documents: Sequence[Document]) -> Iterator[str]:
    if not documents:
        return
    yield ""
    yield "### Ablations: bugs put back"
    yield ""
    yield "The same harness and oracle on our own source with a bug injected; what it does must be seen in every run."
    yield ""
    yield "| | run | killed | records | duplicates | lost | DFRT |"
    yield "|---|---|---|---|---|---|---|"
    for run in documents:
        outcome = run["verdict"]
        yield (
            f"| {run['title']} | {run['number']} | {run['scenario']['name']} | {outcome['records_in']:,} | "
            f"{outcome['duplicates']:,} | {outcome['lost']:,} | {run['dfrt'] / 1000:.1f} |"
        )


def _breakdown(file: Path) -> Iterator[str]:
    """Where the time of a driver's restore goes, of `restore_breakdown.py`."""
    if not file.is_file():
        return
    document = json.loads(file.read_text())
    systems: Mapping[str, Sequence[Document]] = document["systems"]
    yield ""
    yield "## Where the seconds of a restore go"
    yield ""
    yield (
        "From the SIGKILL of a Spark driver to the first new record under `read_committed`; seconds, medians with quartiles. "
        f"Load: {document['rate']:,.0f} records/s of {document['value_bytes']} B. `headrace-cold` starts Python as Spark does "
        "by itself, `headrace` by `warm_session_builder()`. All marks are in `results/restore-breakdown.json`."
    )
    yield ""
    yield "| | " + " | ".join(f"{name}, {len(runs)} kills" for name, runs in systems.items()) + " |"
    yield "|---" * (1 + len(systems)) + "|"
    for stage in STAGES:
        yield f"| {stage} | " + " | ".join(_spread(values(runs, "stages_s", stage), 2) for runs in systems.values()) + " |"
    yield "| **outage** | " + " | ".join(_spread(values(runs, "outage_s"), 2) for runs in systems.values()) + " |"


def _facts(documents: Sequence[Document]) -> Iterator[str]:
    loads = Spread.of([document["load_average"][0] for document in documents])
    stolen = max((document["stolen"] for document in documents if document["valid"]), default=0.0)
    machines = {tuple(document["environment"]["machine"].items()) for document in documents}
    commits = sorted({document["environment"]["commit"] for document in documents})
    yield (
        f"{len(documents)} runs, load average before them: median {loads.median:.1f}, quartiles {loads.low:.1f} "
        f"and {loads.high:.1f}; of the processors' time others took at most {stolen:.0%}. "
        + "; ".join(", ".join(f"{name} {value}" for name, value in machine) for machine in sorted(machines))
        + f". Commits: {', '.join(commits)}. Other versions are in the JSON."
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _thousands(found: Sequence[float]) -> str:
    return _spread([value / 1000 for value in found])


def _spread(found: Sequence[float], digits: int = 1) -> str:
    if not found:
        return "-"
    spread = Spread.of(found)
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"
