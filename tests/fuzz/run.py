"""Search for inputs that meet anything but a documented error, led by the branches that they take (Atheris).

    python -m tests.fuzz.run [TARGET ...] --seconds 60

Each target has its own process. What reached new branches is kept in `tests/fuzz/corpus`, up to `KEPT_BYTES` for each
target; figures go into `tests/fuzz/results`. A finding's input is kept in the corpus as well, so that its test fails until it
is fixed.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

from tests.fuzz.target import CORPUS, TARGETS, Target, load, read_corpus, write_corpus

RESULTS = Path(__file__).parent / "results"
KEPT_BYTES = 4_000
_LONGEST_INPUT = 600
_HANG_S = 20
_MEMORY_MB = 1500
_FINDING = "finding-"


def functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(module).values():
        inner = list(vars(value).values()) if isinstance(value, type) else [value]
        for each in inner:
            found = getattr(each, "fget", None) or getattr(each, "__func__", each)
            if isinstance(found, FunctionType) and found.__module__ == module.__name__:
                yield found


def place(error: BaseException) -> str:
    """Which finding this is: its kind, and the last line of code of headrace."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    last = (ours or frames)[-1]
    return f"{type(error).__name__} in {last.name} of {Path(last.filename).name}:{last.lineno}"


def keeping(check: Callable[[bytes], None], folder: Path) -> Callable[[bytes], None]:
    """The check, with the first input of each finding kept as a file, and the search continuing."""
    seen: set[str] = set()

    def run(data: bytes) -> None:
        try:
            check(data)
        except Exception as error:  # noqa: BLE001 - whatever comes is what is searched for
            where = place(error)
            if where not in seen:
                seen.add(where)
                name = re.sub(r"\W+", "-", where)
                (folder / f"{_FINDING}{name}.bin").write_bytes(data)
                (folder / f"{_FINDING}{name}.txt").write_text(f"{where}: {str(error)[:300]}\n")

    return run


def search(target: Target, folder: Path, libfuzzer: list[str]) -> None:
    """In the child: until libFuzzer has had its time, which ends the process."""
    import atheris

    for name in target.instrumented:
        for function in functions(sys.modules[name]):
            atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], *libfuzzer], keeping(target.check, folder))
    atheris.Fuzz()


def quoted(word: bytes) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"'


def child(name: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    limits = [f"-timeout={_HANG_S}", f"-rss_limit_mb={_MEMORY_MB}", f"-artifact_prefix={folder}/{_FINDING}"]
    command = [sys.executable, "-m", "tests.fuzz.run", "--child", name, str(folder), *limits, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def statistic(said: str, name: str) -> int:
    """A number that libFuzzer prints at its end."""
    found = re.search(rf"stat::{name}:\s+(\d+)", said)
    return int(found[1]) if found else 0


def fuzz(name: str, seconds: int, folder: Path) -> dict[str, object]:
    """Search, then keep what is worth it. The figures."""
    target = load(name)
    known, found = folder / "known", folder / "found"
    for each in (known, found):
        each.mkdir(parents=True)
    for number, data in enumerate([*target.seeds().values(), *read_corpus(name)]):
        (known / f"{number:05}").write_bytes(data)
    words = folder / "words"
    words.write_text("\n".join(map(quoted, target.words)) + "\n")
    started_at = time.monotonic()
    options = [f"-max_total_time={seconds}", f"-max_len={_LONGEST_INPUT}", "-print_final_stats=1", f"-dict={words}"]
    done = child(name, folder, *options, str(found), str(known))
    took = time.monotonic() - started_at
    findings = [file for file in sorted(folder.glob(f"{_FINDING}*")) if file.suffix != ".txt"]
    keep(
        name, [file.read_bytes() for file in found.iterdir()] + read_corpus(name), [file.read_bytes() for file in findings],
        target,
    )  # fmt: skip
    return {
        "target": name, "executions": statistic(done.stderr, "number_of_executed_units"), "seconds": round(took),
        "peak_rss_mb": statistic(done.stderr, "peak_rss_mb"), "slowest_s": statistic(done.stderr, "slowest_unit_time_sec"),
        "corpus": len(read_corpus(name)),
        "findings": [texts.read_text().strip() if texts.exists() else file.name for file, texts in _with_texts(findings)],
    }  # fmt: skip


def _with_texts(findings: list[Path]) -> Iterator[tuple[Path, Path]]:
    return ((file, file.with_suffix(".txt")) for file in findings)


def keep(name: str, picked: list[bytes], findings: list[bytes], target: Target) -> None:
    """Small ones first, as far as there is space; inputs of findings all. Seeds are recreated each time."""
    kept, size = list(findings), sum(map(len, findings))
    seeds = set(target.seeds().values())
    for data in sorted(picked, key=len):
        if data not in seeds and size + len(data) <= KEPT_BYTES:
            kept.append(data)
            size += len(data)
    write_corpus(name, kept)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        name, folder, *libfuzzer = sys.argv[2:]
        search(load(name), Path(folder), libfuzzer)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], default=[])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    given = parser.parse_args()
    CORPUS.mkdir(exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    found = 0
    for name in given.targets or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            figures = fuzz(name, given.seconds, Path(folder))
        (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
        print(json.dumps(figures), flush=True)  # noqa: T201
        found += len(figures["findings"]) if isinstance(figures["findings"], list) else 0
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
