"""`Pipeline`, the public class, and the ways to run it: in processes of one machine (`headrace run`), on Spark, on Beam.

What it holds is `headrace.runners.pipeline.PipelineSpec`, which is all that runners and workers get.

Engines are imported where they are asked for: a pipeline needs the packages of the one that runs it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace._extras import needs_extra
from headrace.connectors.base.script import loads_script
from headrace.enumerator.errors import UsageError
from headrace.runners.local.settings import RunSettings
from headrace.runners.pipeline import PickledPipeline, PipelineSpec

if TYPE_CHECKING:
    from apache_beam.pipeline import Pipeline as BeamPipeline
    from apache_beam.pvalue import PDone
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Pipeline(PipelineSpec):
    """Reads from `source`, changes batches by `transform` (None: as they are), writes to `sink`.

    `sink` may be several sinks, as a dict by the names of the outputs; then `transform` gives for each batch pairs of an
    output's name and a batch, or a dict of them. What it gives of one batch is committed to all outputs, or to none.

    Rows of one split reach the sink in their order. `transform` is called in worker processes, so it has to be importable
    there (a function at the top of a module, not a lambda), and it may be called again for rows that a lost worker had: it
    should have no effects of its own. With a two-phase-commit sink the output is exactly-once, with an `ImmediateSink`, such
    as a function (`FunctionSink`), at-least-once. To a table (`DeltaSink`, `IcebergSink`) each checkpoint is one commit.
    """

    def run(self, **settings: Any) -> Path | None:  # noqa: ANN401 - those of RunSettings, each with its type there
        """Run until the source is read to its end, or SIGTERM or Ctrl-C stops it with a last checkpoint.

        Returns the file of the savepoint, where `savepoints` states that there is to be one.

        Takes the arguments of `RunSettings` by name; `checkpoints` is needed. Continues from the last checkpoint where there is
        one. Called in the main thread of a process, in a script under `if __name__ == "__main__":`, as processes are started.
        Raises UsageError for wrong arguments, RunFailedError when the restart strategy gives up, and at once what no restart
        fixes: FencedError, StateError, DataLossError, AuthenticationError.
        """
        from headrace.runners.local.processes import CALLED_AGAIN, CALLED_AGAIN_ERROR, PROCESS_NAME, forked_apart
        from headrace.runners.local.supervisor import supervise

        if multiprocessing.current_process().name.startswith(PROCESS_NAME):
            if loads_script():
                os._exit(CALLED_AGAIN)  # nothing catches what is raised while multiprocessing imports the script
            raise UsageError(CALLED_AGAIN_ERROR)
        if "checkpoints" not in settings:
            raise UsageError('run needs a folder for its checkpoints: run(checkpoints="file:///...")')
        try:
            chosen = RunSettings(**settings)
        except TypeError as error:
            raise UsageError(f"run: {error}; see RunSettings for its arguments") from error
        return supervise(PickledPipeline.of(self), chosen, forked_apart)

    def start_on_spark(
        self,
        spark: SparkSession,
        *,
        checkpointLocation: str,  # noqa: N803 - as are the next, Spark's name
        queryName: str | None = None,  # noqa: N803
        trigger: Mapping[str, Any] | None = None,
        **options: object,
    ) -> StreamingQuery:
        """Start it as a streaming query of this session, and return the query. With a two-phase-commit sink exactly once.

        `checkpointLocation` is the query's own: with it the query continues. `trigger`: arguments of Spark's
        `DataStreamWriter.trigger`, such as `{"processingTime": "10 seconds"}` or `{"availableNow": True}`; default: a batch as
        soon as the previous one is done. `options` are of the query and not of the source: `startFromSavepoint` (a savepoint of
        `run` that a query without a checkpoint starts with), and of a log `maxOffsetsPerTrigger`, `minOffsetsPerTrigger`,
        `maxTriggerDelay`, `maxRecordsPerPartition`, `minPartitions`, of Kafka `kafkaConsumer.pollTimeoutMs`. Those of other
        sources are in `headrace.spark.read_stream`.

        The transform is called in the tasks that write, with batches of the source's schema; what is in the caller's `__main__`
        travels to them by value. Called in the driver. Raises UsageError, which names it, for what Spark cannot carry over: a
        `stop` of a log, Kafka's `discovery_interval_s=None`, a type of a column that Spark does not have.
        """
        with needs_extra("spark", "pyspark"):
            from headrace.spark.pipeline_query import pipeline_query
        query = pipeline_query(self, checkpointLocation, queryName, trigger, options)
        return query.start(spark)

    def expand_on_beam(
        self,
        p: BeamPipeline,
        *,
        label: str = "Pipeline",
        start_from_savepoint: str | None = None,
        num_readers: int | None = None,
        num_shards: int | None = None,
    ) -> PDone:
        """Add it to a Beam pipeline, as one transform with this label.

        `start_from_savepoint`: path or URI of a savepoint of `run` that a job without state starts with; it is read now.
        `num_readers`: how many readers share the splits; default: the option --parallelism, else 4. `num_shards`: how many
        transactions are written in parallel; default 4. Rows of one key keep their order in a `KafkaSink`. A table has
        none: it is written where its rows are.

        Called where the pipeline is built. Raises UsageError, which names it, for what the runner cannot carry over: sinks that
        write exactly once need Flink with checkpoints, a source without an end a runner that streams, a group checkpoints.
        """
        with needs_extra("beam", "apache_beam"):
            from headrace.runners.beam.pipeline import ExpandPipeline
        expanded = ExpandPipeline(
            self, start_from_savepoint=start_from_savepoint, num_readers=num_readers, num_shards=num_shards
        )
        return cast("PDone", p | label >> expanded)
