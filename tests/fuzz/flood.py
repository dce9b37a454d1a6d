"""Mutated record batches, and Avro values, by the million through the compiled decoders: no crash, no hang, bounded memory.

    python -m tests.fuzz.flood --buffers 100000000 --state build/flood.json
    python -m tests.fuzz.flood --of avro --buffers 10000000 --state build/flood_avro.json

A child process decodes, chunk by chunk; what chunk it is in is all that is needed to make its buffers again. The state is
written after each million, and a run that finds one continues from there. A child that dies is repeated, chunk by chunk and
with each buffer in a file before it is decoded; the last one is the finding, and the run continues behind that chunk.
"""

import argparse
import faulthandler
import json
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.connectors.kafka.format import decode as kernel
from headrace.enumerator.errors import CorruptDataError
from tests.fuzz import avro_values
from tests.fuzz.batches import UNPACKED_LIMIT, Mutant, mutants
from tests.fuzz.target import Finding

CHUNK = 10_000
REPORTED_EVERY = 100
"""Chunks: a million buffers."""

HANG_S = 120
"""Of processor time: the clock continues while the run is paused. A chunk takes a second at most."""

SLOW_S = 1.0
"""Processor time that one buffer, of at most some hundred bytes, may take."""

ARROW_LIMIT = 16 * (1 << 20)
"""Bytes that Arrow may hold at once: the largest unpacked batch, 1 MiB, and some columns as large."""

ADDRESS_SPACE = 2 << 30
"""Bytes; more is refused by the kernel, and what asked for it fails."""

RESIDENT_LIMIT = 512 << 20
_FULLY_CHECKED = 64  # each such buffer's batches are validated in full
Decode = Callable[..., Iterator[Any]]


@dataclass
class Figures:
    """Of all chunks before `chunk`. `of`: what is decoded."""

    seed: str
    of: str = "batches"
    chunk: int = 0
    buffers: int = 0
    rows: int = 0
    cpu_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    arrow_bytes: int = 0
    resident_bytes: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, settings: dict[str, Any]) -> None:
        self.chunk = settings["chunk"]
        self.outcomes.update(settings["outcomes"])
        for name in ("buffers", "rows", "cpu_s"):
            setattr(self, name, getattr(self, name) + settings[name])
        for name in ("slowest_ms", "arrow_bytes", "resident_bytes"):
            setattr(self, name, max(getattr(self, name), settings[name]))


def check(mutant: Mutant, decode: Decode, *, in_full: bool) -> tuple[str, int]:
    """Decode it: how that ended, and how many rows there were. Raises Finding, or whatever the decoder should not raise."""
    position, rows = mutant.options["start"], 0
    try:
        for decoded in decode(mutant.data, **mutant.options):
            if decoded.next_offset <= position:
                raise Finding(f"the position goes from {position} to {decoded.next_offset}")
            position = decoded.next_offset
            rows += decoded.records.num_rows
            if in_full:
                decoded.records.validate(full=True)
    except CorruptDataError as error:
        if not str(error).startswith("topic 't', partition 3, record batch at") and "a read from offset" not in str(error):
            raise Finding(f"an error that names no place: {error}") from error
        return "refused after rows" if rows else "refused", rows
    return "decoded" if rows else "no rows", rows


def run_chunk(
    seed: str, chunk: int, settings: dict[str, Any], decode: Decode = kernel.decode, keep: Path | None = None
) -> None:
    """Adds to what is reported. `keep`: a file that each buffer is written to before it is decoded."""
    clock, outcomes = time.perf_counter, settings["outcomes"]
    for number, mutant in enumerate(islice(mutants(f"{seed}-{chunk}"), CHUNK)):
        if keep is not None:
            keep.write_bytes(mutant.data)
            keep.with_suffix(".json").write_text(json.dumps(mutant.options))
        started_at = clock()
        try:
            outcome, rows = check(mutant, decode, in_full=number % _FULLY_CHECKED == 0)
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}; chunk {chunk}, {mutant.data.hex()}, {mutant.options}") from error
        took = clock() - started_at
        if took > SLOW_S:
            took = _processor_time(mutant, decode)
        settings["slowest_ms"] = max(settings["slowest_ms"], took * 1000)
        outcomes[outcome] += 1
        settings["rows"] += rows
    settings["buffers"] += CHUNK


def _processor_time(mutant: Mutant, decode: Decode) -> float:
    """Of this buffer again: the clock has run while others had the processor. Raises Finding if that is too long, too."""
    started_at = time.thread_time()
    check(mutant, decode, in_full=False)
    took = time.thread_time() - started_at
    if took > SLOW_S:
        raise Finding(f"{took} s for {mutant.data.hex()}, {mutant.options}")
    return took


def check_memory(settings: dict[str, Any]) -> None:
    """Raises Finding for a peak, since the process started, beyond a limit."""
    settings["arrow_bytes"] = pa.default_memory_pool().max_memory()
    settings["resident_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for name, limit in (("arrow_bytes", ARROW_LIMIT), ("resident_bytes", RESIDENT_LIMIT)):
        if settings[name] > limit:
            raise Finding(f"{name} is {settings[name]}, more than {limit} (buffers unpack to {UNPACKED_LIMIT} bytes or 1 MiB)")


def new_counts(chunk: int) -> dict[str, Any]:
    zeros: dict[str, Any] = dict.fromkeys(("buffers", "rows", "cpu_s", "slowest_ms", "arrow_bytes", "resident_bytes"), 0)
    return {"chunk": chunk, "outcomes": Counter(), **zeros}


CHUNKS: dict[str, Callable[..., None]] = {"batches": run_chunk, "avro": avro_values.run_chunk}
"""What runs a chunk, by what is decoded."""


def work(of: str, seed: str, first: int, last: int, keep: Path | None) -> None:
    """In the child: tell of each `REPORTED_EVERY` chunks on standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # where it hangs; then the signal ends the process
    settings, started_at = new_counts(first), time.process_time()
    for chunk in range(first, last):
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        CHUNKS[of](seed, chunk, settings, keep=keep)
        check_memory(settings)
        if (chunk + 1) % REPORTED_EVERY == 0 or chunk + 1 == last:
            now = time.process_time()
            print(json.dumps({**settings, "chunk": chunk + 1, "cpu_s": now - started_at}), flush=True)  # noqa: T201
            settings, started_at = new_counts(chunk + 1), now
    signal.setitimer(signal.ITIMER_PROF, 0)


def child(figures: Figures, first: int, last: int, keep: Path | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fuzz.flood", "--of", figures.of, "--seed", figures.seed]
    command += ["--child", str(first), str(last)]
    command += ["--keep", str(keep)] if keep is not None else []
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run(figures: Figures, last: int, state: Path) -> None:
    """Chunks up to `last`, by children; a child that dies is a finding, and the next starts behind its chunk."""
    while figures.chunk < last:
        with child(figures, figures.chunk, last) as process:
            assert process.stdout is not None
            for line in process.stdout:
                figures.add(json.loads(line))
                save(figures, state)
        if process.returncode:
            figures.chunk = find(figures, last, state.parent) + 1
            save(figures, state)


def find(figures: Figures, last: int, folder: Path) -> int:
    """The first chunk after those that are done which fails by itself. What it was decoding stays in the folder."""
    for chunk in range(figures.chunk, min(last, figures.chunk + REPORTED_EVERY)):
        keep = folder / f"finding-{figures.seed}-{chunk}.bin"
        with child(figures, chunk, chunk + 1, keep) as process:
            process.communicate()
        if process.returncode:
            figures.findings.append(f"chunk {chunk}: the process ended with {process.returncode}; see {keep.name}")
            return chunk
        keep.unlink()
        keep.with_suffix(".json").unlink(missing_ok=True)
    figures.findings.append(f"chunks from {figures.chunk}: a process died, and could not be made to do so again")
    return min(last, figures.chunk + REPORTED_EVERY) - 1


def save(figures: Figures, state: Path) -> None:
    part = state.with_suffix(".part")
    part.write_text(json.dumps(vars(figures), indent=1) + "\n")
    part.replace(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=[*CHUNKS], default="batches")
    parser.add_argument("--buffers", type=int, default=100_000_000)
    parser.add_argument("--seed", default="headrace")
    parser.add_argument("--state", type=Path, default=Path("flood.json"))
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        work(given.of, given.seed, *given.child, given.keep)
        return
    figures = Figures(given.seed, given.of)
    if given.state.exists():
        stored = json.loads(given.state.read_text())
        figures = Figures(**{**stored, "outcomes": Counter(stored["outcomes"])})
    run(figures, given.buffers // CHUNK, given.state)
    print(given.state.read_text())  # noqa: T201
    sys.exit(1 if figures.findings else 0)


if __name__ == "__main__":
    main()
