"""The Spark job of an experiment: writes each batch of a topic to another topic and to the tables of two databases.

    python three_sinks_job.py '{"read": OPTIONS, "writes": [OPTIONS, ...], "checkpoint": PATH}'

Ends when it has written what was in the topic at its start.
"""

import json
import os
import sys

from pyspark.sql import DataFrame

from headrace.spark import warm_session_builder

APPLICATION = "three-sinks"


def main(job: dict) -> None:
    """Run the job."""
    os.environ["HEADRACE_KILL_GROUP"] = str(os.getpgid(0))  # what an injected kill ends
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    spark = warm_session_builder().master("local[2]").config(map=settings).getOrCreate()

    def write(batch: DataFrame, number: int) -> None:
        """A number that was written once is not written again: what is repeated after a kill goes to no sink twice."""
        for options in job["writes"]:
            writer = batch.write.format("headrace").options(**options)
            writer.option("txnAppId", APPLICATION).option("txnVersion", number).mode("append").save()

    records = spark.readStream.format("headrace").options(**job["read"]).load().selectExpr("CAST(value AS STRING) AS value")
    writer = records.writeStream.foreachBatch(write).option("checkpointLocation", job["checkpoint"])
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
