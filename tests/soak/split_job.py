"""The job of `split_soak`: two streams, of growing text files and of whole files that come, each to a folder of Parquet.

    python split_job.py <folder>

A cluster of two executors, on this machine, which starts slow tasks a second time.
"""

import sys
from pathlib import Path

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.task.maxFailures": "10",
    "spark.executor.maxNumFailures": "1000000",
    "spark.deploy.maxExecutorRetries": "-1",
}


def main(folder: Path) -> None:
    import pyarrow as pa
    from lines import LinesSource

    from headrace.files import FileSource
    from headrace.spark import read_stream, session_builder

    spark = session_builder().master("local-cluster[2,2,1024]").config(map=SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    whole = FileSource(
        str(folder / "files"), format="text", schema=pa.schema([("value", pa.string())]), watch=True, discovery_interval_s=0.2
    )
    sources = {"lines": LinesSource(folder / "lines"), "files": whole}
    for name, source in sources.items():
        checkpoint = str(folder / f"{name}-checkpoint")
        frame = read_stream(spark, source, checkpointLocation=checkpoint)
        writer = frame.writeStream.format("headrace").option("connector", "files").option("path", str(folder / f"{name}-out"))
        writer.option("checkpointLocation", checkpoint).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
