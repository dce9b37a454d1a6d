"""A Spark job with secrets in its options that shows all it can: plans, logs at INFO, the event log, progress, an error.

On stdin, so that no argument shows them, JSON: {"kafka", "wrong", "typed", "folder"}: options of the cluster, those of a wrong
login, those of a format with a registry, and where the checkpoint and the event log go. Copies the topic `in`, bad records to
`letters`, into `out`, and prints plans; then fails in several ways, last by the wrong login, and prints what is raised.
"""

import json
import sys
import traceback

from tests.helpers.spark_sink_driver import SHORT_LIVED, show_info


def main(arguments: dict) -> None:
    from headrace.spark import session_builder, with_dead_letters

    folder = arguments["folder"]
    settings = {
        **SHORT_LIVED, "spark.ui.enabled": "false", "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events", "spark.eventLog.compress": "false",
    }  # fmt: skip
    spark = session_builder().master("local[2]").config(map=settings).getOrCreate()
    show_info(spark)
    kafka, typed = arguments["kafka"], arguments["typed"]
    options = {**kafka, **typed, "onBadRecord": "keep"}
    frame = spark.readStream.format("headrace").options(**options, subscribe="in", startingOffsets="earliest").load()
    frame = with_dead_letters(frame.select("value", "deadLetter"), "letters")
    frame.explain(extended=True)
    writer = frame.writeStream.format("headrace").options(**kafka, **typed, topic="out")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(extended=True)
    sys.stdout.write(f"{query.lastProgress}\n")
    batch = spark.read.format("headrace").options(**options, subscribe="in").load()
    batch.explain(mode="formatted")
    batch.explain(mode="cost")
    sys.stdout.write(f"{batch.select('value').collect()}\n")
    batch.select("value").write.format("headrace").mode("append").options(**kafka, **typed, topic="out").save()
    wrong = arguments["wrong"]
    for failing in (
        {**options, "subscribe": "nowhere"},
        {**kafka, "subscribe": "in", "valueFormat": "json-schema", "valueSchema": "{"},
        {**options, **wrong, "subscribe": "in"},
    ):
        try:
            spark.read.format("headrace").options(**failing).load().collect()
        except Exception:  # noqa: BLE001 - it is shown
            traceback.print_exc()
        else:
            raise AssertionError(f"no error of {sorted(failing)}")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
