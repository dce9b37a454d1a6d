"""A script without an engine: appends the values of a topic to a file, for ever.

    python script_read.py <json>, a Job (systems.py); the file is `values` in its `state`

It has no checkpoints: it is for outages, in which it continues, and not for kills.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from marks import mark


def main(settings: dict[str, Any]) -> None:
    """Until killed."""
    mark(settings, "python")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from headrace.kafka import Earliest, KafkaSource

    source = KafkaSource(settings["bootstrap"], topics=[settings["source"]], start=Earliest(), columns=("value",))
    with Path(settings["state"], "values").open("ab", buffering=0) as values:
        for batch in source.batches():
            values.write(b"".join(batch.column("value").to_pylist()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
