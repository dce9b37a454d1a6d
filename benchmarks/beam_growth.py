"""How fast Flink's checkpoints grow while a Beam pipeline reads 100 idle partitions.

Run as `python -m benchmarks.beam_growth [SECONDS]`; prints JSON. Beam's Flink runner of before July 2026 keeps what every call
of a splittable DoFn leaves, for ever (Beam #27648).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from confluent_kafka import Producer

from headrace.beam import ReadFromKafka
from headrace.harness.flink import FlinkCluster, start_flink
from headrace.harness.kafka import create_topic, start_broker

PARTITIONS = 100
SECONDS = 60.0
LOOK_S = 2.0
CHECKPOINT_MS = 2000
ROOT = Path(__file__).resolve().parent.parent


def submit(flink: FlinkCluster, bootstrap: str) -> str:
    """A job that reads, and drops what it reads; every task of it runs, and it has completed a checkpoint."""
    create_topic(bootstrap, "idle", partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(PARTITIONS):
        producer.produce("idle", b"x" * 100, partition=partition)
    producer.flush(60)
    pipeline = beam.Pipeline(options=PipelineOptions(flink.options(checkpoint_ms=CHECKPOINT_MS)))
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
    _ = pipeline | ReadFromKafka(config, ["idle"], output="arrow", columns=["offset"]) | beam.Map(lambda _: None)
    job_id = flink.submit(pipeline)
    flink.wait_running(job_id)
    flink.wait_checkpoint(job_id)
    return job_id


def checkpoints(flink: FlinkCluster, job_id: str, seconds: float) -> list[dict[str, Any]]:
    """Those that completed within so long, in order."""
    found: dict[int, dict[str, Any]] = {}
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        history = flink.rest._ask("GET", f"/jobs/{job_id}/checkpoints").get("history", [])
        found.update((entry["id"], entry) for entry in history if entry["status"] == "COMPLETED")
        time.sleep(LOOK_S)
    return [found[number] for number in sorted(found)]


def main() -> None:
    """Start a broker and Flink, measure, print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with start_broker(1) as broker, start_flink(environment={"PYTHONPATH": str(ROOT)}) as flink:
        job_id = submit(flink, broker.bootstrap)
        seen = checkpoints(flink, job_id, seconds)
        flink.cancel(job_id)
    first, last = seen[0], seen[-1]
    took_s = (last["trigger_timestamp"] - first["trigger_timestamp"]) / 1000
    growth = (last["state_size"] - first["state_size"]) / took_s
    result = {
        "partitions": PARTITIONS,
        "slots": 2,
        "checkpoints": len(seen),
        "seconds": round(took_s, 1),
        "bytes_per_second": round(growth),
        "megabytes_per_day": round(growth * 86_400 / 1e6),
        "mean_checkpoint_ms": round(mean(entry["end_to_end_duration"] for entry in seen)),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
