"""The command line in this process, run as installed and read as a script reads it: one line for each item, tabs between."""

import io
import sys
from dataclasses import dataclass

import pytest

from headrace import cli


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]

    def of(self, kind: str) -> list[list[str]]:
        return [line[1:] for line in self.lines if line[0] == kind]


def run_command(monkeypatch, capsys, *arguments: str, typed: str = "") -> Ran:
    monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return Ran(ended.value.code or 0, *capsys.readouterr())
