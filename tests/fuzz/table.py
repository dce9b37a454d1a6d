"""Draws the table of figures in README.md from `results`: `python -m tests.fuzz.table`."""

import json
import re
from pathlib import Path

from tests.fuzz.run import RESULTS

README = Path(__file__).parent / "README.md"


def table(results: Path = RESULTS) -> str:
    """A row for each file: what was run, how much of it, for how long, and what is not fixed of what it found."""
    rows = ["| target | executions | seconds | findings |", "|---|---|---|---|"]
    for file in sorted(results.glob("*.json")):
        figures = json.loads(file.read_text())
        executions = figures.get("executions", figures.get("buffers", 0))
        seconds = figures.get("seconds", figures.get("cpu_s", 0))
        unit = " of processor time" if "cpu_s" in figures else ""
        rows.append(f"| {file.stem} | {executions:,} | {seconds:,.0f}{unit} | {len(figures['findings']) or 'none'} |")
    return "\n".join(rows)


def drawn(text: str, results: Path = RESULTS) -> str:
    """README with the table between its marks."""
    between = r"(?s)(<!-- figures -->\n).*?(<!-- /figures -->)"
    return re.sub(between, lambda marks: f"{marks[1]}{table(results)}\n{marks[2]}", text)


if __name__ == "__main__":
    README.write_text(drawn(README.read_text()))
