"""Logins by bearer tokens that live for seconds, for minutes: a script writes and reads, and Spark copies, with no gap.

    python -m tests.soak.token_soak [--seconds 600] [--lifetime 20] [--result FILE]

The broker checks the tokens by its own validator. A script writes a record in a transaction every half second, another reads
them, and a query of Spark copies them, all by tokens of one authority, whose secret they know by an environment variable. At
the end a reader without tokens counts, and the secret and every token that was issued are searched for in what the jobs have
printed (logs at INFO, the query's plan, errors) and in the checkpoint. Exit status 0: all was read and copied once, no read
waited longer than LONGEST_GAP_S, nothing failed, nothing was found.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from headrace.testing.servers.kafka import create_topic, start_broker
from headrace.testing.servers.kafka.jars import KAFKA_VERSION
from tests.helpers.python_path import python_path
from tests.helpers.sink_rig import read_all
from tests.soak.token_authority import ENV_PROVIDER, TokenAuthority

SECRET = "hunter2-of-the-soak"
LONGEST_GAP_S = 10.0
"""Between two records as the script reads them. A record is written every half second, on a machine that Spark shares."""
_LISTS = "soak-commits"


# --- the jobs, in a process whose output is searched --------------------------------------------------------------------
class Script:
    """Writes in a thread, and reads in another. `problems`: what either has raised."""

    def __init__(self, bootstrap: str, properties: dict[str, str]) -> None:
        self._bootstrap, self._properties = bootstrap, properties
        self.written, self.read = 0, 0
        self.longest_gap_s = 0.0
        self.problems: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._guarded, args=(each,)) for each in (self._write, self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, job: Any) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - it is reported
            self.problems.append(f"{type(error).__name__}: {error}")

    def _write(self) -> None:
        import pyarrow as pa

        from headrace.connectors.base.commit import JobCommitter
        from headrace.connectors.base.sink import Attempt
        from headrace.kafka import KafkaSink

        sink = KafkaSink(self._bootstrap, topic="in", properties=self._properties, commit_topic=_LISTS)
        driver = JobCommitter("script", sink.committer("script"))
        while not self._ended.wait(0.5):
            transaction = sink.begin(Attempt("script", self.written, 0, 0))
            transaction.write(pa.record_batch([pa.array([b"%d" % self.written])], ["value"]))
            handle = transaction.prepare()
            assert handle is not None
            driver.commit(self.written, (handle,))
            self.written += 1

    def _read(self) -> None:
        from headrace.kafka import KafkaSource

        source = KafkaSource(self._bootstrap, topics=["in"], properties=self._properties)
        with source.create_reader() as reader:
            reader.add_splits(source.create_discovery().initial().added)
            last = time.monotonic()
            while not self._ended.is_set() or self.read < self.written:
                batch = reader.poll(0.5)
                if batch is not None and batch.records.num_rows:
                    now = time.monotonic()
                    if self.read:  # from the first record on
                        self.longest_gap_s = max(self.longest_gap_s, now - last)
                    last = now
                    self.read += batch.records.num_rows


def jobs(settings: dict[str, Any]) -> None:
    """The child: runs for so long, prints the query's plan, and writes what it found into a file."""
    from headrace.spark import session_builder
    from tests.helpers.spark_sink_driver import show_info

    logging.basicConfig(level=logging.INFO)
    script = Script(settings["bootstrap"], settings["properties"])
    spark = session_builder().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    show_info(spark)
    kafka = {f"kafka.{name}": value for name, value in settings["properties"].items()} | {
        "kafka.bootstrap.servers": settings["bootstrap"]
    }
    read = spark.readStream.format("headrace").options(**kafka, subscribe="in", startingOffsets="earliest")
    write = read.load().select("value").writeStream.format("headrace").options(**kafka, topic="out", commitTopic=_LISTS)
    script.start()
    query = write.option("checkpointLocation", settings["checkpoint"]).trigger(processingTime="1 second").start()
    query.awaitTermination(settings["seconds"])
    query.explain(extended=True)
    failure = query.exception()
    script.stop()
    if failure is None:
        query.processAllAvailable()
    found = {
        "written": script.written, "read": script.read, "longest_gap_s": round(script.longest_gap_s, 2),
        "batches": None if query.lastProgress is None else query.lastProgress["batchId"] + 1,
        "problems": [*script.problems, *([] if failure is None else [str(failure)])],
    }  # fmt: skip
    query.stop()
    Path(settings["found"]).write_text(json.dumps(found))
    spark.stop()


# --- the rest ---------------------------------------------------------------------------------------------------------
def leaks(authority: TokenAuthority, folder: Path) -> list[str]:
    """The files below the folder that hold the secret, or any token that was issued."""
    wanted = [SECRET.encode(), *(token.encode() for token in authority.tokens)]
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [path for path in files if any(each in data for data in [path.read_bytes()] for each in wanted)]
    return [str(path.relative_to(folder)) for path in found]


def soak(seconds: float, lifetime_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary, TokenAuthority("job", SECRET, lifetime_s) as authority:
        folder = Path(temporary)
        config, options = authority.broker_config(), authority.jvm_options()
        given = {"security": ("SASL_PLAINTEXT",), "users": {"nobody": "x"}}
        with start_broker(config=config, jvm_options=options, **given) as cluster:
            for topic in ("in", "out"):
                create_topic(cluster.bootstrap, topic)
            settings = {
                "bootstrap": cluster.listeners["SASL_PLAINTEXT"],
                "properties": authority.properties('clientId="job" clientSecret="${env:TOKEN_SECRET}"') | ENV_PROVIDER,
                "seconds": seconds, "checkpoint": str(folder / "checkpoint"), "found": str(folder / "found"),
            }  # fmt: skip
            with (folder / "log").open("wb") as log:
                command = [sys.executable, "-m", "tests.soak.token_soak", "--jobs", json.dumps(settings)]
                environment = os.environ | {"PYTHONPATH": python_path(), "TOKEN_SECRET": SECRET}
                started_at = time.monotonic()
                subprocess.run(command, stdout=log, stderr=log, env=environment, check=True, timeout=seconds + 300)
                took_s = time.monotonic() - started_at
            found = json.loads((folder / "found").read_text())
            copied = Counter(read_all(cluster.bootstrap, "out"))
            expected = Counter(str(number) for number in range(found["written"]))
            return {
                **found, "seconds": round(took_s), "life_s": lifetime_s, "tokens": len(authority.tokens),
                "lost": sum((expected - copied).values()), "duplicates": sum((copied - expected).values()),
                "leaks": leaks(authority, folder), "searched": sorted({path.name.split(".")[0] for path in folder.iterdir()}),
                "kafka": KAFKA_VERSION,
            }  # fmt: skip


def is_good(result: dict[str, Any]) -> bool:
    """Whether it is as promised, and something has happened."""
    return (
        result["written"] > 0
        and result["read"] == result["written"]
        and result["tokens"] >= result["seconds"] / result["life_s"]
        and result["longest_gap_s"] <= LONGEST_GAP_S
        and not (result["problems"] or result["lost"] or result["duplicates"] or result["leaks"])
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--lifetime", type=float, default=20.0)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--jobs", type=json.loads, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.jobs is not None:
        jobs(chosen.jobs)
        return
    result = soak(chosen.seconds, chosen.lifetime)
    text = json.dumps(result, indent=2)
    print(text)  # noqa: T201 - the command's output
    if chosen.result is not None:
        chosen.result.write_text(text + "\n")
    sys.exit(0 if is_good(result) else 1)


if __name__ == "__main__":
    main()
