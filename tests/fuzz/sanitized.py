"""The compiled modules under AddressSanitizer: corpus, unit tests and a million mutated batches.

    python -m tests.fuzz.sanitized --buffers 1000000

The modules are compiled again, with `-fsanitize=address`, in a copy of the checkout. Python and Arrow take their memory from
malloc, so that each buffer is one for the sanitizer; what is decoded lies in memory of exactly its size. Needs gcc and libasan.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.flood import CHUNK, new_counts, run_chunk
from tests.fuzz.run import RESULTS
from tests.fuzz.target import load, read_corpus

ROOT = Path(__file__).parents[2]
_SEED = "sanitized"
_TESTS = ("tests/unit/kafka/test_decode.py", "tests/unit/kafka/test_encode.py", "tests/unit/postgresql/test_pgoutput.py")
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "site", "*.so", "__pycache__", "results")


def exact(data: bytes) -> Any:
    """The same bytes, in memory of their size and not a byte more."""
    return memoryview((ctypes.c_ubyte * len(data)).from_buffer_copy(data)).cast("B") if data else data


def decode_exactly(data: bytes, **options: Any) -> Iterator[Any]:
    from headrace.connectors.kafka.format.decode import decode

    return decode(exact(data), **options)


def work(chunks: int) -> None:
    """In the process with the sanitizer: any wrong access ends it, with a report."""
    target = load("decoder")
    for data in [*target.seeds().values(), *read_corpus("decoder")]:
        target.check(data)
    settings = new_counts(0)
    for chunk in range(chunks):
        run_chunk(_SEED, chunk, settings, decode=decode_exactly)
    print(json.dumps({"buffers": settings["buffers"], "rows": settings["rows"], "outcomes": settings["outcomes"]}))  # noqa: T201


def overrun() -> None:
    """In the process with the sanitizer: read behind the end of an input, as a wrong decoder would."""
    data = exact(bytes(100))
    ctypes.string_at(ctypes.addressof(ctypes.c_ubyte.from_buffer(data)), 200)


def build(checkout: Path) -> None:
    """A copy of this checkout, with its modules compiled for the sanitizer."""
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=_LEFT_OUT)
    flags = {"CFLAGS": "-fsanitize=address -g -fno-omit-frame-pointer", "LDFLAGS": "-fsanitize=address"}
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext"], cwd=checkout, env={**os.environ, **flags}, check=True)


def environment(checkout: Path) -> dict[str, str]:
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python keeps what it has to its end
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }


def sanitized(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Python with this command, under the sanitizer."""
    return subprocess.run(
        [sys.executable, *command], cwd=checkout, env=environment(checkout), capture_output=True, text=True, check=False
    )


def run(buffers: int) -> dict[str, Any]:
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "checkout")
        build(checkout)
        injected = sanitized(checkout, "-m", "tests.fuzz.sanitized", "--overrun")
        if "AddressSanitizer: heap-buffer-overflow" not in injected.stderr:
            raise SystemExit(f"a read behind the end of an input was not noticed: {injected.stderr[-2000:]}")
        flood = sanitized(checkout, "-m", "tests.fuzz.sanitized", "--child", str(buffers // CHUNK))
        tests = sanitized(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_TESTS)
    findings = [done.stderr[-4000:] + done.stdout[-2000:] for done in (flood, tests) if done.returncode]
    settings = {} if flood.returncode else json.loads(flood.stdout.splitlines()[-1])
    return {
        "target": "sanitized", **settings, "unit_tests": tests.stdout.strip().splitlines()[-1:],
        "seconds": round(time.monotonic() - started_at), "findings": findings,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--buffers", type=int, default=1_000_000)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--overrun", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.overrun:
        overrun()
    elif given.child is not None:
        work(given.child)
    else:
        figures = run(given.buffers)
        (RESULTS / "sanitized.json").write_text(json.dumps(figures, indent=1) + "\n")
        print(json.dumps(figures))  # noqa: T201
        sys.exit(1 if figures["findings"] else 0)


if __name__ == "__main__":
    main()
