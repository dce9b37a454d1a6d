"""Spark's side of a streaming query in this process: it calls registered formats as Spark does, and keeps a checkpoint.

What it does as Spark: formats, readers, writers and messages travel by pickle; times come to a writer in the session's zone;
the offset log is written before a batch runs, the commit log after the sink's commit; a batch that was not committed runs
again. The checkpoint has Spark's form.
"""

import json
import uuid
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.pandas.types import to_arrow_schema

ZONE = "Europe/Berlin"
_attempts = count()


class InProcessSpark:
    """What of a session `Pipeline.start_on_spark` uses."""

    def __init__(self) -> None:
        self.formats: dict[str, bytes] = {}
        self.dataSource = self  # as Spark's names have it
        self.readStream = self
        self._reads = ""

    def register(self, made: type) -> None:
        """By pickle: nothing else of the class reaches Spark's processes."""
        assert made.name() not in self.formats
        self.formats[made.name()] = cloudpickle.dumps(made)

    def format(self, name: str) -> "InProcessSpark":
        self._reads = name
        return self

    def load(self) -> "_Frame":
        return _Frame(self, self._reads)


class _Frame:
    def __init__(self, spark: InProcessSpark, reads: str) -> None:
        self.writeStream = self
        self.options: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self._spark, self._reads, self._writes = spark, reads, ""

    def format(self, name: str) -> "_Frame":
        self._writes = name
        return self

    def option(self, name: str, value: str) -> "_Frame":
        self.options[name] = value
        return self

    def outputMode(self, mode: str) -> "_Frame":  # noqa: N802 - Spark's name
        assert mode == "append"
        return self

    def queryName(self, name: str) -> "_Frame":  # noqa: N802 - Spark's name
        self.settings["queryName"] = name
        return self

    def trigger(self, **given: Any) -> "_Frame":
        self.settings |= given
        return self

    def start(self) -> "InProcessQuery":
        made = [cloudpickle.loads(self._spark.formats[name]) for name in (self._reads, self._writes)]
        return InProcessQuery(made[0], made[1], self.options, self.settings)


class _Task:
    def __init__(self, query: str, batch: int, partition: int) -> None:
        self._properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
        self._partition, self._attempt = partition, next(_attempts)

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - as are the next, Spark's names
        return self._properties.get(name)

    def partitionId(self) -> int:  # noqa: N802
        return self._partition

    def taskAttemptId(self) -> int:  # noqa: N802
        return self._attempt

    def attemptNumber(self) -> int:  # noqa: N802
        return 0


class InProcessQuery:
    """One run of a query. Its checkpoint is in the folder `checkpointLocation`."""

    def __init__(self, source: type, sink: type, options: dict[str, str], settings: dict[str, Any]) -> None:
        self.settings = settings
        self._folder = Path(options["checkpointLocation"])
        self._options, self._sink = options, sink
        for name in ("offsets", "commits"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        metadata = self._folder / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.id: str = json.loads(metadata.read_text())["id"]
        made = source({})
        self._schema = made.schema()
        self._reader = made.streamReader(self._schema)
        if (planned := self._last("offsets")) is not None and planned != self._last("commits"):
            self._run(planned)

    def processAllAvailable(self) -> "InProcessQuery":  # noqa: N802 - Spark's name
        """Batches until there is nothing more."""
        while self.plan() is not None:
            last = self._last("offsets")
            assert last is not None
            self._run(last)
        return self

    def plan(self) -> int | None:
        """A batch up to its entry in the offset log: Spark may be killed after this. None where there is nothing to do."""
        last = self._last("offsets")
        start = self._start(0 if last is None else last + 1)
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if end == start:
            return None
        batch = 0 if last is None else last + 1
        text = json.dumps(end, separators=(",", ":"))
        (self._folder / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":{batch}}}\n{text}')
        return batch

    def stop(self) -> None:
        self._reader.stop()

    def _last(self, log: str) -> int | None:
        return max((int(path.name) for path in (self._folder / log).iterdir()), default=None)

    def _start(self, batch: int) -> dict[str, Any]:
        return self._reader.initialOffset() if batch == 0 else self._end(batch - 1)

    def _end(self, batch: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / "offsets" / str(batch)).read_text().split("\n")[2])
        return found

    def _run(self, batch: int) -> None:
        partitions = self._reader.partitions(self._start(batch), self._end(batch))
        shipped = cloudpickle.dumps((self._reader, self._writer()))
        messages = [cloudpickle.loads(self._task(shipped, batch, *each)) for each in enumerate(partitions)]
        self._writer().commit(messages or [None], batch)
        (self._folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        self._reader.commit(self._end(batch))

    def _writer(self) -> Any:
        return self._sink(self._options).streamWriter(self._schema, False)

    def _task(self, shipped: bytes, batch: int, number: int, partition: Any) -> bytes:
        reader, writer = cloudpickle.loads(shipped)
        zoned = to_arrow_schema(self._schema, timezone=ZONE)
        in_spark = to_arrow_schema(self._schema, timezone="UTC")

        def rows() -> Any:
            for records in reader.read(cloudpickle.loads(cloudpickle.dumps(partition))):
                assert records.schema.equals(in_spark)
                yield pa.RecordBatch.from_arrays([records.column(field.name).cast(field.type) for field in zoned], schema=zoned)

        TaskContext._taskContext = _Task(self.id, batch, number)  # type: ignore[assignment]
        try:
            return cloudpickle.dumps(writer.write(rows()))
        finally:
            TaskContext._taskContext = None
