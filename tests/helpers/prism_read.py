"""A process that reads a topic on Prism until it is killed: python -m tests.helpers.prism_read PRISM BOOTSTRAP TOPIC GROUP OUT.

A pipeline that streams ends when its runner pleases, some time after it was cancelled; a process ends when it is killed. Each
record's value is one line of the file OUT.
"""

from __future__ import annotations

import sys
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from headrace.beam import ReadFromKafka


def append(pair: tuple[bytes | None, bytes], out: str) -> None:
    """One more line; each worker thread opens the file again, and a line is one write."""
    with Path(out).open("ab", buffering=0) as file:
        file.write(pair[1] + b"\n")


def main(prism: str, bootstrap: str, topic: str, group: str, out: str) -> None:
    config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "group.id": group}
    read = ReadFromKafka(config, [topic], commit_offset_in_finalize=True, dynamic_read_poll_interval_seconds=0.5, read_s=0.2)
    pipeline = beam.Pipeline("PrismRunner", PipelineOptions(["--streaming", f"--prism_location={prism}"]))
    _ = pipeline | read | beam.Map(append, out)
    pipeline.run().wait_until_finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
