"""`format("headrace")`: the data source that PySpark finds in `pyspark_headrace`, and what sessions and drivers need of it.

Every process that Spark starts for a data source imports this, so it imports the rest only when it is called.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType

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
        from headrace.spark.connectors import reading

        reads, options = reading(self.options)
        types, self._inferred = reads.schema(options)
        return types

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.connectors import reading

        reads, options = reading(self.options)
        return reads.reader(options, schema, self._inferred)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from headrace.spark.connectors import reading

        reads, options = reading(self.options)
        return reads.stream_reader(options, schema, self._inferred)

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
