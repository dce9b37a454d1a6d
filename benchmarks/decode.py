"""Decoding fetched bytes to Arrow, set against the least it could cost: copying the same bytes once and taking their CRC32C.

    python -m benchmarks.decode [pairs]

Limit and decoder run alternately, A B A B, in one process on one thread; each pair gives one ratio of throughput, the decoder's
over the limit's, and the median of them is the figure. The limit copies and checks as much at a time as the decoder puts
into one Arrow batch, into memory that is already there; "the same bytes" are those received, so for compressed batches the
ratio contains the decompression, which the limit does not. Results go to benchmarks/results/decode.json.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from rich.console import Console
from rich.table import Table

from headrace.connectors.kafka.format.decode import ALL_COLUMNS, MAX_BATCH_BYTES, decode
from headrace.connectors.kafka.format.encode import Codec, RecordEncoder

RESULT = Path(__file__).parent / "results" / "decode.json"
PAIRS = 9
RECORD_BYTES = (100, 1024)
CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
COLUMNS: dict[str, tuple[str, ...]] = {"all": ALL_COLUMNS, "value": ("value",)}
BATCH_BYTES = 16384  # a Kafka producer's default batch.size
UNCOMPRESSED_BYTES = 64 << 20  # of records, in all
TARGET = 0.5  # of the limit, for uncompressed batches
VERSIONS = ("headrace", "pyarrow", "crc32c", "cramjam")


def response(record_bytes: int, codec: Codec) -> tuple[bytes, int]:
    """A Fetch response's records without keys, batched as a producer does, and how many they are.

    The values are lines of a log with varying numbers in them: zstd makes them about five times smaller.
    """
    per_batch = BATCH_BYTES // record_bytes
    out = bytearray()
    total = UNCOMPRESSED_BYTES // (per_batch * record_bytes) * per_batch
    bodies = [_batch(_rows(record_bytes, per_batch, seed), codec) for seed in range(16)]
    for number, base in enumerate(range(0, total, per_batch)):
        body = bodies[number % len(bodies)]
        out += base.to_bytes(8, "big") + body[8:]  # the CRC does not cover the base offset
    return bytes(out), total


def _batch(rows: pa.RecordBatch, codec: Codec) -> bytes:
    encoder = RecordEncoder(1, producer_id=-1, producer_epoch=-1, transactional=False, codec=codec)
    full = encoder.append(rows, 0)
    (only,) = [*full, *encoder.flush()]
    return bytes(only.data)


def _rows(record_bytes: int, count: int, seed: int) -> pa.RecordBatch:
    line = "host-{:02} GET /item/{:06} 200 {}us; ".format
    numbers = range(seed * 999, seed * 999 + count * record_bytes // 20)
    text = "".join(line(n % 40, n * 7919 % 999_983, n * 31 % 9973) for n in numbers).encode()
    start = 1_700_000_000_000
    values = [text[n * record_bytes :][:record_bytes] for n in range(count)]
    times = pa.array(range(start, start + count), pa.timestamp("ms"))
    return pa.record_batch({"value": pa.array(values, pa.binary()), "timestamp": times})


def limit(data: bytes) -> Callable[[], None]:
    """Copy and check `data`, piece by piece."""
    target = pa.allocate_buffer(min(len(data), MAX_BATCH_BYTES))
    address = pa.py_buffer(data).address
    view = memoryview(data)

    def run() -> None:
        for at in range(0, len(data), MAX_BATCH_BYTES):
            size = min(MAX_BATCH_BYTES, len(data) - at)
            ctypes.memmove(target.address, address + at, size)
            crc32c(view[at : at + size])

    return run


def decoding(data: bytes, columns: tuple[str, ...], expected: int) -> Callable[[], None]:
    """Decode `data` into `columns`, all of it."""

    def run() -> None:
        rows = sum(each.records.num_rows for each in decode(data, topic="events", partition=0, start=0, columns=columns))
        if rows != expected:
            raise AssertionError(f"{rows} rows of {expected}")

    return run


def seconds(run: Callable[[], None]) -> float:
    """The time of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(data: bytes, records: int, columns: tuple[str, ...], pairs: int) -> dict[str, Any]:
    """Median throughputs, and the spread of the ratio over the pairs."""
    first, second = limit(data), decoding(data, columns, records)
    seconds(first), seconds(second)  # warm up
    times = [(seconds(first), seconds(second)) for _ in range(pairs)]
    ratios = [least / ours for least, ours in times]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "records_per_s": records / statistics.median(ours for _, ours in times),
        "bytes_per_s": len(data) / statistics.median(ours for _, ours in times),
        "limit_bytes_per_s": len(data) / statistics.median(least for least, _ in times),
        "of_limit": {"low": low, "median": median, "high": high},
        "seconds": [{"limit": least, "decode": ours} for least, ours in times],
    }


def main() -> None:
    """Measure every cell, print a table, write the JSON."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    load = os.getloadavg()
    table = Table("record", "codec", "columns", "M rec/s", "GB/s", "limit", "of limit", "quartiles")
    cells = []
    for record_bytes in RECORD_BYTES:
        for codec in CODECS:
            data, records = response(record_bytes, codec)
            for name, columns in COLUMNS.items():
                cell = {"record_bytes": record_bytes, "codec": codec, "columns": name, "records": records, "bytes": len(data)}
                cell |= measure(data, records, columns, pairs)
                cells.append(cell)
                table.add_row(*_row(cell))
    Console().print(table)
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in VERSIONS}}
    machine = {"cpus": os.cpu_count(), "system": platform.system(), "machine": platform.machine()}
    loads = {"before": load, "after": os.getloadavg()}
    document = {"pairs": pairs, "target": TARGET, "versions": versions, "machine": machine, "load": loads, "cells": cells}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(document, indent=1) + "\n")


def _row(cell: dict[str, Any]) -> list[str]:
    figures = (cell["records_per_s"] / 1e6, cell["bytes_per_s"] / 1e9, cell["limit_bytes_per_s"] / 1e9)
    spread = cell["of_limit"]
    return [
        f"{cell['record_bytes']} B",
        cell["codec"],
        cell["columns"],
        *(f"{figure:.2f}" for figure in figures),
        f"{spread['median']:.2f}",
        f"{spread['low']:.2f}-{spread['high']:.2f}",
    ]


if __name__ == "__main__":
    main()
