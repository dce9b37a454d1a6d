"""A pipeline: a source, a function of batches, a sink. And how it is run on one machine, in processes, exactly once."""

from __future__ import annotations

import ast
import importlib
import math
import multiprocessing
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa

from headrace.connectors.base.outputs import SOLE, Outputs, Sinks, WrongOutputError, is_tagged, known_outputs, parts
from headrace.enumerator.errors import DeadlineExceededError, UsageError, is_retriable
from headrace.enumerator.source import Source
from headrace.runners.local.core import RunSchedule
from headrace.runners.local.listening import UNIX, TcpAddress, tcp_address
from headrace.runners.local.storage.folder import local_folder
from headrace.runners.local.storage.places import machine_folder, whole_name
from headrace.runners.python_file import load_file, named_in_file
from headrace.runners.restarts import ExponentialDelay, RestartStrategy, duration_s, restart_strategy

if TYPE_CHECKING:
    from apache_beam.pipeline import Pipeline as BeamPipeline
    from apache_beam.pvalue import PDone
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Pipeline", "PipelineFile", "Retention", "RunSettings", "Transform", "flink_settings"]

Tagged: TypeAlias = tuple[str, pa.RecordBatch]
"""The name of an output, and a batch for it."""

Made: TypeAlias = pa.RecordBatch | Tagged | Mapping[str, pa.RecordBatch] | Iterable[pa.RecordBatch | Tagged] | None

Transform = Callable[[pa.RecordBatch], Made]
"""Arrow batch in; a batch, several, or none out. To several sinks: pairs of an output's name and a batch, or a dict of them."""

DEFAULT_INTERVAL_S = 10.0
MOST_PORTS = 65536


class Retention(Enum):
    """What becomes of the checkpoints of a run that is stopped. Those of a run that has failed or finished are always kept."""

    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"


@dataclass(frozen=True)
class RunSettings:
    """How a pipeline is run. Seconds; names and defaults are Flink's, but for the interval, which has none there.

    - `workers`: processes that read and write, default 1.
    - `checkpoints`: where the checkpoints are: a folder, as a path or `file:///...`, or a URL that fsspec knows, such as
      `s3://bucket/run` (extra `files`, and fsspec's package for that store). One run works with them at a time. A second one in
      the same folder is refused; in a store, from another machine, the one that is started last continues, and the other ends.
    - `interval_s` (`execution.checkpointing.interval`): from one checkpoint to the next, default 10. Rows become visible by it.
    - `min_pause_s` (`execution.checkpointing.min-pause`): from the end of one to the next, default 0.
    - `timeout_s` (`execution.checkpointing.timeout`): one that takes longer has failed, default 600. What a sink does before
      the checkpoint can be stored, such as a merge of changes into a table, is part of it.
    - `tolerable_failed_checkpoints` (`execution.checkpointing.tolerable-failed-checkpoints`): in a row, default 0.
    - `retained` (`execution.checkpointing.num-retained`): so many newest checkpoints are kept, default 1,
      alongside one that is not committed yet.
    - `savepoints` (`execution.checkpointing.savepoint-dir`): a run that is stopped, or whose source ends, writes its last
      checkpoint into this folder as a savepoint; default None, none.
    - `from_savepoint` (`execution.state-recovery.path`): the file of a savepoint that the run starts with, in a new folder of
      checkpoints; default None. Started again, it continues from its own checkpoints.
    - `retention` (`execution.checkpointing.externalized-checkpoint-retention`): whether the checkpoints of a run that is
      stopped are kept; default `Retention.RETAIN_ON_CANCELLATION`, so that the same command continues.
    - `heartbeat_interval_s`, `heartbeat_timeout_s` (`heartbeat.*`): default 10 and 50. A worker that is not heard is killed.
    - `restart` (`restart-strategy.*`): default exponential delay.
    - `metrics_port`: serve Prometheus' metrics and `/healthz` there as long as the run is running, default None, not at all;
      needs the extra `metrics`. `metrics_address`: default 127.0.0.1; with `0.0.0.0` other machines read them, without a login.
    - `listen`: where workers reach their coordinator. Default `unix`, a socket in a private folder; `tcp`, a free port of
      127.0.0.1; or `tcp://ADDRESS:PORT`. On TCP each call has to bring a token that the run's own processes have alone.

    Paths are of the folder that the process works in when this is made. Checked then: raises UsageError.
    """

    checkpoints: str
    workers: int = field(default=1, kw_only=True)
    interval_s: float = field(default=DEFAULT_INTERVAL_S, kw_only=True)
    min_pause_s: float = field(default=0.0, kw_only=True)
    timeout_s: float = field(default=600.0, kw_only=True)
    tolerable_failed_checkpoints: int = field(default=0, kw_only=True)
    retained: int = field(default=1, kw_only=True)
    savepoints: str | None = field(default=None, kw_only=True)
    from_savepoint: str | None = field(default=None, kw_only=True)
    retention: Retention = field(default=Retention.RETAIN_ON_CANCELLATION, kw_only=True)
    heartbeat_interval_s: float = field(default=10.0, kw_only=True)
    heartbeat_timeout_s: float = field(default=50.0, kw_only=True)
    restart: RestartStrategy = field(default_factory=ExponentialDelay, kw_only=True)
    metrics_port: int | None = field(default=None, kw_only=True)
    metrics_address: str = field(default="127.0.0.1", kw_only=True)
    listen: str = field(default=UNIX, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what makes no sense, and make paths absolute."""
        self._check_kinds()
        object.__setattr__(self, "checkpoints", whole_name(self.checkpoints))
        for name in ("savepoints", "from_savepoint"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, str(local_folder(getattr(self, name))))
        _ = self.folder, self.tcp_address
        if not isinstance(self.retention, Retention):
            raise UsageError(f"retention must be a Retention, not {self.retention!r}")
        if self.metrics_port is not None and not 0 < self.metrics_port < MOST_PORTS:
            raise UsageError(f"metrics_port must be between 1 and {MOST_PORTS - 1}, not {self.metrics_port}")
        for name in ("workers", "retained"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("interval_s", "timeout_s", "heartbeat_interval_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be more than 0 seconds, not {getattr(self, name)}")
        for name in ("min_pause_s", "tolerable_failed_checkpoints"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        if not self.heartbeat_timeout_s > self.heartbeat_interval_s:
            raise UsageError(
                f"heartbeat_timeout_s ({self.heartbeat_timeout_s}) must be more than heartbeat_interval_s "
                f"({self.heartbeat_interval_s})"
            )

    def _check_kinds(self) -> None:
        """A bool, a text and a number with a fraction would fail later, in a process that is then started again and again."""
        for name in _WHOLE:
            value = getattr(self, name)
            if type(value) is not int and not (name == "metrics_port" and value is None):
                raise UsageError(f"{name} must be a whole number, not {value!r}")
        for name in _DURATIONS.values():
            value = getattr(self, name)
            if type(value) not in (int, float) or value in (math.inf, -math.inf):
                raise UsageError(f"{name} must be a number of seconds, not {value!r}")
        if not isinstance(self.restart, RestartStrategy):
            raise UsageError(f"restart must be a restart strategy, such as FixedDelay(3, 1.0), not {self.restart!r}")
        if not isinstance(self.metrics_address, str):
            raise UsageError(f"metrics_address must be an address, not {self.metrics_address!r}")

    @property
    def folder(self) -> Path:
        """Of this machine: lock, status and requests to rescale; and the checkpoints, if they are in a folder."""
        return machine_folder(self.checkpoints)

    @property
    def savepoint_folder(self) -> Path | None:
        """Where the last checkpoint goes as a savepoint."""
        return None if self.savepoints is None else local_folder(self.savepoints)

    @property
    def savepoint_file(self) -> Path | None:
        """The savepoint that the run starts with."""
        return None if self.from_savepoint is None else local_folder(self.from_savepoint)

    @property
    def tcp_address(self) -> TcpAddress | None:
        """Where the coordinator listens; None for its Unix socket."""
        return tcp_address(self.listen)

    @property
    def schedule(self) -> RunSchedule:
        """When checkpoints are taken."""
        return RunSchedule(self.interval_s, self.min_pause_s, self.timeout_s, self.tolerable_failed_checkpoints)


_CHECKPOINTING = "execution.checkpointing."
_RESTART = "restart-strategy."
_DURATIONS: Mapping[str, str] = {
    f"{_CHECKPOINTING}interval": "interval_s",
    f"{_CHECKPOINTING}min-pause": "min_pause_s",
    f"{_CHECKPOINTING}timeout": "timeout_s",
    "heartbeat.interval": "heartbeat_interval_s",
    "heartbeat.timeout": "heartbeat_timeout_s",
}
_COUNTS: Mapping[str, str] = {
    f"{_CHECKPOINTING}tolerable-failed-checkpoints": "tolerable_failed_checkpoints",
    f"{_CHECKPOINTING}num-retained": "retained",
}

_WHOLE = ("workers", "metrics_port", *_COUNTS.values())

_TEXTS: Mapping[str, str] = {
    f"{_CHECKPOINTING}savepoint-dir": "savepoints",
    "execution.state-recovery.path": "from_savepoint",
}
_RETENTION = f"{_CHECKPOINTING}externalized-checkpoint-retention"


def flink_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `RunSettings` by settings of Flink's names. Raises UsageError, naming it, for one that there is not."""
    found: dict[str, Any] = {}
    for name, text in settings.items():
        if name in _DURATIONS:
            found[_DURATIONS[name]] = duration_s(name, text)
        elif name in _COUNTS:
            if not text.isdecimal():
                raise UsageError(f"{name} must be a whole number, not {text!r}")
            found[_COUNTS[name]] = int(text)
        elif name in _TEXTS:
            found[_TEXTS[name]] = text
        elif name == _RETENTION:
            if text not in Retention.__members__:
                raise UsageError(f"{name} must be one of {', '.join(Retention.__members__)}, not {text!r}")
            found["retention"] = Retention[text]
        elif not name.startswith(_RESTART):
            known = ", ".join((*_DURATIONS, *_COUNTS, *_TEXTS, _RETENTION))
            raise UsageError(f"{name!r} is not a setting of a run: {known}, {_RESTART}*")
    restart = {name: text for name, text in settings.items() if name.startswith(_RESTART)}
    return {**found, "restart": restart_strategy(restart)} if restart else found


@dataclass(frozen=True)
class Pipeline:
    """Reads from `source`, changes batches by `transform` (None: as they are), writes to `sink`.

    `sink` may be several sinks, as a dict by the names of the outputs; then `transform` gives for each batch pairs of an
    output's name and a batch, or a dict of them. What it gives of one batch is committed to all outputs, or to none.

    Rows of one split reach the sink in their order. `transform` is called in worker processes, so it has to be importable
    there (a function at the top of a module, not a lambda), and it may be called again for rows that a lost worker had: it
    should have no effects of its own. With a two-phase-commit sink the output is exactly-once, with an `ImmediateSink`, such
    as a function (`FunctionSink`), at-least-once. To a table (`DeltaSink`, `IcebergSink`) each checkpoint is one commit.
    """

    source: Source[Any]
    sink: Sinks
    transform: Transform | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be a part."""
        source: object = self.source
        if not isinstance(source, Source):
            raise UsageError(f"a pipeline's source must be a headrace Source, not {type(source).__name__}")
        outputs = self.outputs
        if self.transform is not None and not callable(self.transform):
            raise UsageError(f"a pipeline's transform must be a function of a batch, not {self.transform!r}")
        if self.transform is None and not outputs.is_sole:
            raise UsageError(
                "a pipeline with several sinks needs a transform, which says what goes where: it gives pairs of an output's "
                f"name and a batch, or a dict of them; {known_outputs(outputs.names)}"
            )

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
            if getattr(multiprocessing.current_process(), "_inheriting", False):
                os._exit(CALLED_AGAIN)  # nobody catches what is raised while multiprocessing imports the script
            raise UsageError(CALLED_AGAIN_ERROR)
        if "checkpoints" not in settings:
            raise UsageError('run needs a folder for its checkpoints: run(checkpoints="file:///...")')
        try:
            chosen = RunSettings(**settings)
        except TypeError as error:
            raise UsageError(f"run: {error}; see RunSettings for its arguments") from error
        try:
            pickle.dumps(self)
        except Exception as error:
            raise UsageError(
                f"the pipeline cannot be sent to its processes ({error}): its transform must be a function at the top of a "
                "module, its source and sink must be picklable"
            ) from error
        return supervise(self, chosen, forked_apart)

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
        soon as the previous one is done. `options` are those of `format("headrace")` that are of a query and not of a source:
        `startFromSavepoint` (a savepoint of `run` that a query without a checkpoint starts with), `maxOffsetsPerTrigger`,
        `minOffsetsPerTrigger`, `maxTriggerDelay`, `maxRecordsPerPartition`, `minPartitions`, `kafkaConsumer.pollTimeoutMs`.

        The transform is called in the tasks that write, with batches of the source's schema; what is in the caller's `__main__`
        travels to them by value. Called in the driver. Raises UsageError, which names it, for what Spark cannot carry over: a
        source that is not Kafka, a `stop`, `discovery_interval_s=None`, a type of a column that Spark does not have.
        """
        from headrace._extras import needs_extra

        with needs_extra("spark", "pyspark"):
            queries = importlib.import_module("headrace.spark.pipeline_query")  # which Spark finds by its name, too
        query = queries.pipeline_query(self, checkpointLocation, queryName, trigger, options)
        return cast("StreamingQuery", query.start(spark))

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
        from headrace._extras import needs_extra

        with needs_extra("beam", "apache_beam"):
            from headrace.runners.beam.pipeline import ExpandPipeline
        expanded = ExpandPipeline(
            self, start_from_savepoint=start_from_savepoint, num_readers=num_readers, num_shards=num_shards
        )
        return cast("PDone", p | label >> expanded)

    def load(self) -> Pipeline:
        """Itself: called in the processes of a run."""
        return self

    def modules(self) -> list[str]:
        """What its processes may have loaded before they are forked."""
        parts = (self.source, *self.outputs.sinks.values())
        return sorted({type(part).__module__ for part in parts} - {"__main__"})

    @property
    def outputs(self) -> Outputs:
        """The sinks by name. Raises UsageError for what is not a sink."""
        return Outputs(self.sink)

    def transformed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What a pipeline with one sink writes of a batch. Raises as `routed`."""
        return (rows for _, rows in self.routed(batch))

    def only(self, output: str) -> Pipeline:
        """The pipeline of one of several outputs: it reads the whole source, and writes what the transform gives for this one.

        For engines whose jobs have one sink. Raises UsageError for an output that there is not.
        """
        outputs = self.outputs
        if output not in outputs.names:
            raise UsageError(f"there is no output {output!r}; {_known(outputs)}")
        return Pipeline(self.source, outputs.sinks[output], _Only(self, output))

    def routed(self, batch: pa.RecordBatch) -> Iterator[Tagged]:
        """What the transform makes of a batch, by output; `SOLE` where the pipeline has one sink.

        Raises WrongOutputError for what is not a batch or has no output, and what the transform raises.
        """
        outputs = self.outputs
        for each in parts(batch if self.transform is None else self.transform(batch)):
            name, rows = each if is_tagged(each) else (SOLE, each)
            if not isinstance(rows, pa.RecordBatch):
                raise WrongOutputError(f"the transform must give Arrow record batches, not {type(rows).__name__}")
            if outputs.is_sole and name != SOLE:
                raise WrongOutputError(f"the transform gave a batch for the output {name!r}, and the pipeline has one sink")
            if name not in outputs.sinks:
                what = f"a batch for the output {name!r}, which there is not" if name else "a batch without an output"
                raise WrongOutputError(f"the transform gave {what}; {_known(outputs)}")
            yield name, rows


def _known(outputs: Outputs) -> str:
    return "it has one sink, which has no name" if outputs.is_sole else known_outputs(outputs.names)


@dataclass(frozen=True)
class _Only:
    """The transform of one output."""

    pipeline: Pipeline
    output: str

    def __call__(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return (rows for name, rows in self.pipeline.routed(batch) if name == self.output)


@dataclass(frozen=True)
class PipelineFile:
    """A pipeline that a Python file has under a name. Each process of a run loads the file again."""

    path: Path
    name: str

    @classmethod
    def parse(cls, text: str) -> PipelineFile:
        """`job.py:pipeline`. Raises UsageError for something else, or a file that is not there."""
        found = named_in_file(text)
        if found is None:
            raise UsageError(f"a pipeline is named by its file and its variable, such as job.py:pipeline, not {text!r}")
        path, name = found
        file = Path(path).absolute()
        if not file.is_file():
            raise UsageError(f"{path}: there is no such file")
        return cls(file, name)

    def load(self) -> Pipeline:
        """The pipeline. Raises UsageError where the file has none of this name, and for what the file raises; but an error that
        can pass as it is."""
        value = getattr(self._module(), self.name, None)
        if not isinstance(value, Pipeline):
            raise UsageError(f"{self.path}: {self.name} is not a Pipeline, but {type(value).__name__}")
        return value

    def modules(self) -> list[str]:
        """What its processes may have loaded before they are forked: headrace's own modules that the file names.

        Raises UsageError for a file that is not a Python.
        """
        try:
            tree = ast.parse(self.path.read_bytes(), str(self.path))
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"{self.path} cannot be read as Python: {error}") from error
        found = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        found += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
        return sorted({name for name in found if name.startswith("headrace.")})

    def _module(self) -> ModuleType:
        stem = self.path.stem
        taken = stem in sys.modules and getattr(sys.modules[stem], "__file__", None) != str(self.path)
        try:
            return load_file(self.path, f"__headrace_{stem}__" if taken else stem)
        except (Exception, SystemExit) as error:
            if is_retriable(error) or isinstance(error, DeadlineExceededError):
                raise  # an outage (of a schema registry): another try may do better, which no mistake of the file would
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{frame.filename}:{frame.lineno}"
            raise UsageError(f"{self.path} cannot be loaded: {type(error).__name__}: {error} ({place})") from error
