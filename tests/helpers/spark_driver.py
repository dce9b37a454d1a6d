"""A Spark driver to be killed: reads a topic and writes each batch, idempotently, to its own directory. A warm session.

    python spark_driver.py <json>: {"options", "checkpoint", "out", "stop_in", "until"}

In batch `stop_in` it writes the rows, then a file `reached`, and waits to be killed before Spark can commit the batch.
With `until`, it ends once that many rows are in `out`; otherwise it runs for ever.
"""

import json
import sys
import threading
from pathlib import Path

from tests.helpers.spark_sink_driver import SHORT_LIVED


def main(arguments: dict) -> None:
    from headrace.spark import warm_session_builder

    settings = {"spark.ui.enabled": "false", **SHORT_LIVED}
    spark = warm_session_builder().master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    out = Path(arguments["out"])
    frame = spark.readStream.format("headrace").options(**arguments["options"]).load()
    done = threading.Event()

    def write(batch, number):
        rows = [[row["partition"], row["offset"], row["value"].decode()] for row in batch.collect()]
        partial = out / f".{number}"
        partial.write_text(json.dumps(rows))
        partial.rename(out / f"{number}.json")
        (out / "began").touch()
        if number == arguments.get("stop_in"):
            (out / "reached").touch()
            threading.Event().wait()
        written = sum(len(json.loads(path.read_text())) for path in out.glob("*.json"))
        if written >= arguments.get("until", float("inf")):
            done.set()

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", arguments["checkpoint"])
    query = writer.trigger(processingTime="50 milliseconds").start()
    while not done.wait(0.2) and query.isActive:
        pass
    if query.exception() is not None:
        raise query.exception()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
