"""This checkout and another one: reads, writes, triggers and copies, alternately, on one broker.

    python -m benchmarks.versions ../headrace-before [--rounds 7] [--records 500000] [--only compressed]

Each checkout has one process, which imports `headrace` from there by PYTHONPATH (its compiled modules must have been built:
`python setup.py build_ext --inplace`) and uses public names only. They alternate, A B A B, the first two rounds being
warm-ups. A round gives one ratio of seconds, ours over the other's; the result has the median and the range of these.
Results go to benchmarks/results/versions.json, kind by kind. Compressed reads are of small and large batches of each codec.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).parent / "results" / "versions.json"
WARM_UPS = 2
TRIGGERS = 40
VALUE_BYTES = 100

# --- the work, in a process of each checkout ---------------------------------------------------------------------------


class Work:
    """What is timed. One instance in each process."""

    def __init__(self, bootstrap: str, topic: str, records: int) -> None:
        from headrace.spark import session_builder

        settings: dict[str, bool | float | int | str | None] = {
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
        }
        self._spark = session_builder().config(map=settings).getOrCreate()
        self._options = {"kafka.bootstrap.servers": bootstrap}
        self._bootstrap, self._topic, self._records = bootstrap, topic, records

    def read_in_python(self) -> int:
        """The whole topic, without an engine."""
        return self._read(self._topic)

    def read_compressed(self, topic: str) -> int:
        """The same of another topic."""
        return self._read(topic)

    def _read(self, topic: str) -> int:
        from headrace.kafka import KafkaSource, Latest

        return sum(batch.num_rows for batch in KafkaSource(self._bootstrap, topics=[topic], stop=Latest()).batches())

    def read_on_spark(self) -> int:
        """The whole topic in a batch, all columns."""
        frame = self._spark.read.format("headrace").options(**self._options, subscribe=self._topic).load()
        return int(frame.selectExpr("count(value)", "count(key)").collect()[0][0])

    def write_on_spark(self) -> int:
        """As many records, of a batch."""
        rows = self._spark.range(self._records).selectExpr(
            "string(id) AS key", f"lpad(string(id), {VALUE_BYTES}, 'x') AS value"
        )
        rows.write.format("headrace").options(**self._options, topic=f"{self._topic}-out").mode("append").save()
        return self._records

    def trigger_on_spark(self) -> int:
        """Forty micro-batches of a hundred records."""
        return self._stream("noop", {}, {"maxOffsetsPerTrigger": "100", "startingOffsets": self._late()})

    def copy_on_spark(self) -> int:
        """The whole topic to another one, exactly once, in some ten micro-batches."""
        out = {**self._options, "topic": f"{self._topic}-out"}
        return self._stream("headrace", out, {"maxOffsetsPerTrigger": str(self._records // 10), "startingOffsets": "earliest"})

    def _late(self) -> str:
        start = self._records - TRIGGERS * 100
        return json.dumps({self._topic: {"0": start}})

    def _stream(self, to: str, out: dict[str, str], reading: dict[str, str]) -> int:
        frame = self._spark.readStream.format("headrace").options(**self._options, **reading, subscribe=self._topic).load()
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = frame.select("key", "value").writeStream.format(to).options(**out)
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            return sum(progress.numInputRows for progress in query.recentProgress)


KINDS = ("read_in_python", "read_on_spark", "write_on_spark", "trigger_on_spark", "copy_on_spark")
CODECS = ("gzip", "snappy", "lz4", "zstd")
BATCHES_KIB = (16, 1024, 4096)


def serve(bootstrap: str, topic: str, records: int) -> None:
    """Do what the lines of standard input name, and answer each with seconds and records."""
    import headrace

    work = Work(bootstrap, topic, records)
    print(json.dumps(str(Path(headrace.__file__).resolve().parent.parent)), flush=True)  # noqa: T201 - the protocol
    for line in sys.stdin:
        started = time.perf_counter()
        kind, *topics = line.split()
        done: Callable[..., int] = getattr(work, kind)
        count = done(*topics)
        print(json.dumps([time.perf_counter() - started, count]), flush=True)  # noqa: T201 - the protocol


# --- the measurement ---------------------------------------------------------------------------------------------------


class Checkout:
    """The process of one checkout."""

    def __init__(self, root: Path, arguments: list[str], log: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(root), "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-P", str(Path(__file__).resolve()), "--serve", *arguments]
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True, env=environment, cwd="/"
        )
        if (used := Path(self._answer())) != root:
            raise SystemExit(f"headrace was imported from {used}, not from {root}: uninstall it there, or use another Python")

    def seconds(self, kind: str, expected: int) -> float:
        """How long one piece of work took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind}\n")
        self._process.stdin.flush()
        seconds, records = self._answer()
        if records != expected:
            raise SystemExit(f"{kind}: {records} records in place of {expected}")
        return float(seconds)

    def _answer(self) -> Any:  # noqa: ANN401 - JSON
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"a process ended with status {self._process.wait()}: see its log")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def measure(other: Path, rounds: int, records: int, only: str, console: Console) -> dict[str, Any]:
    """All kinds of work whose names have `only` in them, each in pairs."""
    from benchmarks.topics import Shape, fill
    from headrace.testing.servers.kafka import create_topic, start_broker

    shape = Shape(records, VALUE_BYTES, "lz4", partitions=1)
    packed = [Shape(records, VALUE_BYTES, codec, 1, size) for codec in CODECS for size in BATCHES_KIB]
    kinds = {kind: kind for kind in KINDS} | {
        f"compressed_{each.codec}_{each.batch_kib}_kib": f"read_compressed {each.topic}" for each in packed
    }
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        config = {"message.max.bytes": str(8 << 20)}
        bootstrap = stack.enter_context(start_broker(jvm_options=("-Xmx1g",), config=config)).bootstrap
        for each in (shape, *packed):
            fill(bootstrap, each)
        create_topic(bootstrap, f"{shape.topic}-out", 1)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        both = []
        for root in (ROOT, other):
            both.append(Checkout(root, [bootstrap, shape.topic, str(records)], folder / f"{uuid.uuid4()}.log"))
            stack.callback(both[-1].close)
        for kind in (each for each in kinds if only in each):
            expected = TRIGGERS * 100 if kind.startswith("trigger") else records
            pairs = [[each.seconds(kinds[kind], expected) for each in both] for _ in range(WARM_UPS + rounds)][WARM_UPS:]
            ratios = [ours / theirs for ours, theirs in pairs]
            found[kind] = {"ratio": statistics.median(ratios), "range": [min(ratios), max(ratios)], "pairs_s": pairs}
            console.print(f"{kind:24} {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return found


def main() -> None:
    """Measure, print, write; or serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout, built in place")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--only", default="", help="kinds with this in their names")
    given = parser.parse_args()
    other = given.other.resolve()

    from benchmarks.environment import environment

    load = round(os.getloadavg()[0], 2)
    found = measure(other, given.rounds, given.records, given.only, Console())
    commit = subprocess.check_output(["git", "-C", str(other), "rev-parse", "--short", "HEAD"], text=True).strip()  # noqa: S603, S607
    earlier = json.loads(RESULT.read_text())["kinds"] if RESULT.exists() else {}
    kinds = {**earlier, **found}
    result = {"other": commit, "records": given.records, "load_average": load, "kinds": kinds, **environment("local")}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
