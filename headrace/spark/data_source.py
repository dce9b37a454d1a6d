"""`format("headrace")`: the data source that PySpark finds in `pyspark_headrace`, and what sessions and drivers need of it.

Every process that Spark starts for a data source imports this, so it imports the rest only when it is called.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType

    from headrace.connectors.kafka.read.split import KafkaSplit
    from headrace.runners.spark.bounded import BoundedReader
    from headrace.runners.spark.readers import BatchReader, StreamReader
    from headrace.runners.spark.split_readers import SplitStreamReader
    from headrace.runners.spark.supervision.dry_run_source import DryRunWriter
    from headrace.runners.spark.writers import BatchWriter, StreamWriter


class DefaultSource(DataSource):
    """`format("headrace")`: Apache Kafka with the options, columns and checkpoints of Spark's own connector; other sinks, too.

    Made in a Python process alongside the driver, pickled, and made again wherever Spark needs it: it holds options only.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises UsageError for a PySpark that is too old, and ImportError with advice where Spark's Python has no headrace."""
        try:
            from headrace.runners.spark.version import require_pyspark
        except ImportError as error:
            raise ImportError(
                f"the Python that Spark started here, {sys.executable}, cannot import headrace ({error}). "
                "Set PYSPARK_PYTHON to the Python that has it before the Spark session starts, "
                "or start the session with headrace.spark.session_builder()"
            ) from error
        require_pyspark()
        super().__init__(options)
        self._inferred: str | None = None  # pickled after `schema`, so each reader knows it

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        """The columns of a user who gave no schema. Raises UsageError for options that fit no kind of query."""
        from headrace.runners.spark.readers import default_schema
        from headrace.spark.connectors import FILES, reading
        from headrace.spark.kafka_read import any_read

        connector, options = reading(self.options)
        if connector == FILES:
            from headrace.spark.files_read import file_schema

            types, self._inferred = file_schema(options)
            return types
        return default_schema(any_read(options))

    def reader(self, schema: StructType) -> BatchReader[KafkaSplit] | BoundedReader:
        from headrace.runners.spark.readers import BatchReader
        from headrace.spark.connectors import FILES, reading
        from headrace.spark.kafka_read import Mode, kafka_read

        connector, options = reading(self.options)
        if connector == FILES:
            from headrace.spark.files_read import file_reader

            return file_reader(options, schema, self._inferred)
        return BatchReader(kafka_read(options, Mode.BATCH, schema), schema)

    def streamReader(self, schema: StructType) -> StreamReader[KafkaSplit] | SplitStreamReader[Any]:  # noqa: N802 - Spark's name
        from headrace.runners.spark.readers import StreamReader
        from headrace.spark.connectors import FILES, reading
        from headrace.spark.kafka_read import Mode, kafka_read

        connector, options = reading(self.options)
        if connector == FILES:
            from headrace.spark.files_read import file_stream_reader

            return file_stream_reader(options, schema, self._inferred)
        return StreamReader(kafka_read(options, Mode.STREAM, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter[Any]:  # noqa: FBT001 - Spark's signature
        """A batch write. Raises UsageError for options or columns that cannot be honoured, and for `.mode("overwrite")`."""
        from headrace.runners.spark.writers import BatchWriter
        from headrace.spark.connectors import offset_log, planned_batch_write

        write, columns = planned_batch_write(self.options, schema, overwrite=overwrite)
        return BatchWriter(write.sink, columns, write.job, write.epoch, offset_log(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter[Any] | DryRunWriter:  # noqa: FBT001, N802 - Spark's
        from headrace.runners.spark.driver_id import driver_id_of
        from headrace.runners.spark.supervision.dry_run_source import DryRunWriter, is_dry_run
        from headrace.runners.spark.writers import StreamWriter
        from headrace.spark.connectors import offset_log, planned_stream_write

        write, columns = planned_stream_write(self.options, schema, complete=overwrite)
        if is_dry_run(self.options):
            return DryRunWriter(write.sink)
        return StreamWriter(write.sink, columns, offset_log(self.options), driver_id_of(self.options))
