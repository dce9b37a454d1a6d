"""JSON values to columns where one in a hundred is bad, alongside the same values without bad ones.

    python -m benchmarks.bad_values [--rounds 9] [--values 100000]

Both run alternately in one process; each pair gives one ratio of rates, with bad values over without, and the median is the
figure. A bad value is to cost itself, not its batch: the aim is a third of a clean batch's rate. Results go to
benchmarks/results/bad_values.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from benchmarks.environment import environment
from headrace.formats import JsonFormat

RESULT = Path(__file__).parent / "results" / "bad_values.json"
EVERY = 100
COLUMNS = pa.struct(
    {
        "id": pa.int64(), "name": pa.string(), "weight": pa.float64(), "ok": pa.bool_(), "small": pa.int16(),
        "at": pa.timestamp("us", "UTC"), "tags": pa.list_(pa.string()),
        "where": pa.struct({"lat": pa.float64(), "lon": pa.float64()}),
    }
)  # fmt: skip

BAD: Mapping[str, bytes | dict[str, Any]] = {
    "truncated": b'{"id": 1, "name": "x',
    "no JSON at all": b"\x00\x00\x00\x00\x07binary",
    "no UTF-8": b'{"name": "\xff"}',
    "a text for a number": {"id": "seven"},
    "a number for a text": {"name": 7},
    "a number out of range": {"small": 70_000},
    "a field given twice": b'{"id": 1, "id": 2, "name": "x"}',
    "NaN": b'{"weight": NaN}',
    "a bad value in a list": {"tags": ["a", 1]},
    "a bad value in a struct": {"where": {"lat": "north"}},
    "NaN in a text (a good value)": {"name": "NaN, Infinity, Information"},
}


def good(number: int) -> dict[str, Any]:
    """A value; all fields present."""
    return {
        "id": number, "name": f"event {number}", "weight": number / 7, "ok": number % 2 == 0, "small": number % 1000,
        "at": "2026-01-02T03:04:05.000678Z", "tags": ["a", f"b{number}"], "where": {"lat": number / 3, "lon": -number / 9},
    }  # fmt: skip


def column(values: int, bad: bytes | dict[str, Any] | None) -> pa.Array:
    """Values as Kafka has them; each hundredth is bad."""
    texts = []
    for number in range(values):
        if bad is None or number % EVERY:
            texts.append(json.dumps(good(number)).encode())
        else:
            texts.append(bad if isinstance(bad, bytes) else json.dumps(good(number) | bad).encode())
    return pa.array(texts, pa.binary())


def seconds(json_format: JsonFormat, values: pa.Array, expected: int) -> float:
    """Of one decoding. `expected`: how many values are bad."""
    started = time.perf_counter()
    _, bad = json_format.decode(values)
    taken = time.perf_counter() - started
    if len(bad) != expected:
        raise SystemExit(f"{len(bad)} values are bad, not {expected}")
    return taken


def measure(rounds: int, values: int, console: Console) -> dict[str, Any]:
    """All kinds of bad values, each in pairs with none."""
    json_format = JsonFormat(COLUMNS)
    clean = column(values, None)
    found: dict[str, Any] = {}
    for kind, bad in BAD.items():
        mixed = column(values, bad)
        expected = 0 if "good" in kind else -(-values // EVERY)
        pairs = [[seconds(json_format, clean, 0), seconds(json_format, mixed, expected)] for _ in range(rounds + 1)][1:]
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        found[kind] = {"ratio": ratio, "pairs_s": pairs}
        console.print(f"{kind:30} {ratio:.2f} of the clean rate")
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--values", type=int, default=100_000)
    given = parser.parse_args()
    load = round(os.getloadavg()[0], 2)
    found = measure(given.rounds, given.values, Console())
    RESULT.write_text(
        json.dumps({"values": given.values, "load_average": load, "kinds": found, **environment("local")}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
