"""The runs of the restore benchmark and the systems' capacities, kept in files of JSON lines.

Lines are added, and never changed or taken out: an invalid run keeps its line, and the run that replaces it gets another.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.stored import Document, append_line, read_lines


class Runs:
    """A folder with a file for each system, `<system>.jsonl`, and in it a line for each run."""

    def __init__(self, directory: Path) -> None:
        """The folder is made with the first run."""
        self._directory = directory

    def add(self, document: Document) -> None:
        """Keep a run that was made."""
        append_line(self._file(document["system"]), document)

    def has_valid(self, system: str, value_bytes: int, load: str, number: int) -> bool:
        """Whether this run of the system was made and says something; one that does not is made again."""
        wanted = (value_bytes, load, number)
        made = read_lines(self._file(system))
        return any(run["valid"] and (run["value_bytes"], run["load"], run["number"]) == wanted for run in made)

    def all(self) -> list[Document]:
        """Every run, by size of the records, load, system and number; those with the same number as they were made."""
        found = [run for file in self._directory.glob("*.jsonl") for run in read_lines(file)]
        return sorted(found, key=lambda run: (run["value_bytes"], run["load"], run["system"], run["number"]))

    def _file(self, system: str) -> Path:
        return self._directory / f"{system}.jsonl"


class Capacities:
    """A file with a line for each system and size of records: its sustained throughput in records per second."""

    def __init__(self, file: Path) -> None:
        """The file is made with the first capacity."""
        self._file = file

    def add(self, document: Document) -> None:
        """Keep what was measured."""
        append_line(self._file, document)

    def of(self, system: str, value_bytes: int) -> float | None:
        """Records per second; None where it was not measured."""
        found = [each for each in self.all() if (each["system"], each["value_bytes"]) == (system, value_bytes)]
        return float(found[-1]["records_per_s"]) if found else None

    def all(self) -> list[Document]:
        """By size of the records, and system."""
        return sorted(read_lines(self._file), key=lambda each: (each["value_bytes"], each["system"]))


def runs_in(results: Path) -> Runs:
    """Where a folder of results has its restores."""
    return Runs(results / "restore")


def capacities_in(results: Path) -> Capacities:
    """Where a folder of results has the capacities."""
    return Capacities(results / "restore-capacity.jsonl")
