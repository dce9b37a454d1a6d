"""A query's positions as a savepoint that `headrace run` starts with: headrace's query, or one of Spark's own connector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

from headrace.connectors.files.store import normal_path, open_store
from headrace.connectors.kafka.client.cluster import KafkaCluster
from headrace.connectors.kafka.read.split import KafkaSplit, KafkaSplitSerializer
from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import DataLossError, StateError, UsageError
from headrace.enumerator.ledger import SplitState
from headrace.runners.local.savepoints import Savepoint
from headrace.spark.checkpoints.copies import QUIET_S, last_committed, refuse_running
from headrace.spark.checkpoints.logs import SparkCheckpoint, fsspec_address, read_checkpoint
from headrace.spark.checkpoints.positions import OffsetForm, StoredPositions, stored_positions

_KAFKA = "kafka"


def export_to_run(checkpoint: SparkCheckpoint, folder: Path, cluster: KafkaCluster | None, *, quiet_s: float = QUIET_S) -> Path:
    """Write the savepoint into `folder`, made if need be, and return its file.

    `quiet_s`: a checkpoint that was written to within this many seconds, by the clock of the folder's store, is taken for a
    running query's. Raises StateError then, and as `savepoint_of`.
    """
    source = open_store(normal_path(fsspec_address(checkpoint.location)), {})
    savepoint = savepoint_of(checkpoint, cluster)
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder) as fresh:
        refuse_running(source, checkpoint, Path(fresh.name).stat().st_mtime, quiet_s)
    if read_checkpoint(checkpoint.location) != checkpoint:
        raise StateError(f"{checkpoint.location} has changed meanwhile: its query runs. Stop it first")
    return savepoint.write(folder)


def savepoint_of(checkpoint: SparkCheckpoint, cluster: KafkaCluster | None) -> Savepoint:
    """The positions after the last batch, which is committed: so the sink has ended all that was written before them.

    Offsets of Spark's own connector name topics only, so `cluster` is asked for their ids: those of the topics that exist now.
    Of which leader epoch the record before a position is, Spark does not know; so none is given, and until a first batch was
    read a truncated log is noticed by its end alone.

    Raises StateError for a batch that is planned and not committed, and for a query with state or of other sources; UsageError
    where `cluster` is needed; DataLossError where topics or partitions are gone.
    """
    batch = last_committed(checkpoint)
    if checkpoint.state_operators:
        raise StateError("the query keeps state, which a pipeline has none of: its positions alone would not continue with it")
    sources = [stored_positions(source.text) for source in checkpoint.batch(batch).sources]
    if len(sources) != 1 or sources[0].form is OffsetForm.OTHER:
        names = ", ".join(source.name for source in checkpoint.batch(batch).sources)
        raise StateError(
            f"a pipeline has one source, and this query's sources are {names}: only one of Kafka can be carried over"
        )
    splits = _identified(sources[0], cluster)
    states = tuple(SplitState(replace(split, last_epoch=None), finished=False) for split in splits)
    serializer = CheckpointSerializer(_KAFKA, KafkaSplitSerializer())
    source = serializer.serialize(Checkpoint(batch, states, exhausted=False)).decode()
    return Savepoint(f"query-{checkpoint.query_id}", batch, source)


def _identified(positions: StoredPositions, cluster: KafkaCluster | None) -> Sequence[KafkaSplit]:
    if positions.form is OffsetForm.HEADRACE:
        return list(positions)
    if cluster is None:
        raise UsageError(
            "Spark's own Kafka connector stores topics by name alone, and a savepoint has their ids: give --bootstrap"
        )
    topics = cluster.topics({split.topic for split in positions})
    gone = [str(split) for split in positions if split.partition not in topics[split.topic].partitions]
    if gone:
        raise DataLossError(f"the checkpoint names partitions that are gone: {', '.join(gone)}")
    return [replace(split, topic_id=topics[split.topic].topic_id) for split in positions]
