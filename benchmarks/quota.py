"""A read of 20 MB under a fetch quota of 1 MB/s: on Spark, in a script and on Beam, alongside Spark's JVM connector.

    python -m benchmarks.quota [--only TEXT]

Each reads the topic twice: freely, and with `consumer_byte_rate` set for every client. All of it has to come, and the broker's
waits have to be reported. The result is `benchmarks/results/quota.json`.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from kafka.net.compat import KafkaNetClient
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest
from rich.console import Console
from rich.progress import track

from benchmarks.environment import environment
from benchmarks.spark_systems import session
from benchmarks.topics import Shape, fill
from headrace.testing.servers.kafka import start_broker

RESULT = Path(__file__).parent / "results" / "quota.json"
SHAPE = Shape(records=20_000, value_bytes=1024)
BYTES_PER_S = 1_000_000
ANSWER_MS = 5000
TOLD = "throttles this client"
console = Console()


def set_quota(bootstrap: str, bytes_per_s: int) -> None:
    """Of every client without one of its own: KIP-546."""
    entry_of = AlterClientQuotasRequest.EntryData
    rate = entry_of.OpData(key="consumer_byte_rate", value=float(bytes_per_s), remove=False)
    everyone = entry_of.EntityData(entity_type="client-id", entity_name=None)
    request = AlterClientQuotasRequest(entries=[entry_of(entity=[everyone], ops=[rate])], validate_only=False)
    client = KafkaNetClient(bootstrap_servers=[bootstrap])
    try:
        client.check_version(timeout_ms=ANSWER_MS)
        node = next(iter(client.cluster.brokers())).node_id
        (entry,) = client.send_and_receive(node, request, timeout_ms=ANSWER_MS).entries
    finally:
        client.close()
    if entry.error_code:
        raise RuntimeError(f"the quota was refused: error {entry.error_code}, {entry.error_message}")


def _script(bootstrap: str, _scratch: str) -> int:
    import pyarrow.compute as pc

    from headrace.kafka import KafkaSource, Latest

    batches = KafkaSource(bootstrap, topics=[SHAPE.topic], stop=Latest()).batches()
    return sum(pc.sum(pc.binary_length(batch.column("value"))).as_py() for batch in batches)


def _spark(connector: str, bootstrap: str) -> int:
    reading = {"kafka.bootstrap.servers": bootstrap, "subscribe": SHAPE.topic}
    frame = session("headrace" if connector == "headrace" else "jvm").read.format(connector).options(**reading).load()
    return int(frame.selectExpr("sum(length(value))").first()[0])


def _on_spark(bootstrap: str, _scratch: str) -> int:
    return _spark("headrace", bootstrap)


def _on_jvm(bootstrap: str, _scratch: str) -> int:
    return _spark("kafka", bootstrap)


def _on_beam(bootstrap: str, scratch: str) -> int:
    from benchmarks.beam_systems import direct_read

    return direct_read(bootstrap, SHAPE, Path(scratch))


READERS: Mapping[str, Callable[[str, str], int]] = {
    "headrace in a script": _script,
    "headrace on Spark": _on_spark,
    "headrace on Beam": _on_beam,
    "Spark's JVM connector": _on_jvm,
}


def _write_to(scratch: str) -> None:
    """Standard error, which a process that is started inherits, goes to a file."""
    log = os.open(f"{scratch}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def _prepare(name: str) -> None:
    """What is not the read: a session of Spark takes seconds to start."""
    if "Spark" in name:
        session("jvm" if "JVM" in name else "headrace")


def read(name: str, bootstrap: str) -> dict[str, Any]:
    """One read in its own process: seconds, whether all came, and the last lines in which waits were reported."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-quota-") as scratch,
        ProcessPoolExecutor(1, get_context("spawn"), _write_to, (scratch,)) as pool,
    ):
        pool.submit(_prepare, name).result()
        started = time.perf_counter()
        found = pool.submit(READERS[name], bootstrap, scratch).result()
        seconds = time.perf_counter() - started
        settings = [line[:200] for line in Path(scratch, "log").read_text(errors="replace").splitlines() if TOLD in line]
    return {"seconds": round(seconds, 2), "all": found == SHAPE.records * SHAPE.value_bytes, "told": settings[-2:]}


def main(
    only: Annotated[str, typer.Option(help="Readers whose names contain this.")] = "",
    result: Annotated[Path, typer.Option(help="Where the result goes.")] = RESULT,
) -> None:
    """A read under a fetch quota."""
    names = [name for name in READERS if only in name]
    document: dict[str, Any] = {**environment("local"), "bytes": SHAPE.records * SHAPE.value_bytes, "quota": BYTES_PER_S}
    with start_broker() as cluster:
        fill(cluster.bootstrap, SHAPE)
        freely = {name: read(name, cluster.bootstrap) for name in track(names, "freely", console=console)}
        set_quota(cluster.bootstrap, BYTES_PER_S)
        throttled = {name: read(name, cluster.bootstrap) for name in track(names, "under the quota", console=console)}
    document["readers"] = {name: {"freely": freely[name], "under the quota": throttled[name]} for name in names}
    result.write_text(json.dumps(document, indent=1) + "\n")
    console.print_json(json.dumps(document["readers"]))


if __name__ == "__main__":
    typer.run(main)
