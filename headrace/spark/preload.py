"""All that Spark's Python processes import for a headrace query, and make at first use."""

from __future__ import annotations


def preload() -> None:
    """Import it. Called by the process from which Spark's are forked, and by a standby."""
    # ruff: noqa: F401 - these are imported to be there
    import encodings.idna  # of the first look-up of a host

    import pyspark.daemon
    import pyspark.sql.streaming.python_streaming_source_runner
    import pyspark.sql.worker.create_data_source
    import pyspark.sql.worker.lookup_data_sources
    import pyspark.sql.worker.plan_data_source_read
    import pyspark.sql.worker.python_streaming_sink_runner
    import pyspark.sql.worker.write_into_data_source
    import pyspark.worker

    import headrace.connectors.kafka.read.source
    import headrace.connectors.kafka.write.sink
    import headrace.runners.spark.readers
    import headrace.runners.spark.split_readers
    import headrace.runners.spark.version
    import headrace.runners.spark.writers
    import headrace.spark.connectors
    import headrace.spark.data_source
    import headrace.spark.files_read
    import headrace.spark.files_write
    import headrace.spark.kafka_read
    import headrace.spark.kafka_write
    from headrace.connectors.kafka.client.wire.protocol import compile_codecs

    compile_codecs()
