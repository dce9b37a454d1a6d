"""Changed copies of a checkpoint, in any stores. The checkpoint itself is never written to; no query starts from half a copy.

Where the last batch is not committed, only `fork` copies: what the next start runs again belongs to the offsets as they are.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from headrace.connectors.files.store import Store, is_local, normal_path, open_store
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import StateError, UsageError
from headrace.runners.spark.offset_log import LOCK_NAME
from headrace.spark.checkpoints import logs
from headrace.spark.checkpoints.positions import OffsetForm, StoredPositions, moved, stored_positions
from headrace.spark.checkpoints.targets import copy_target

QUIET_S = 60.0

Changed = Callable[[StoredPositions], StoredPositions | None]
"""A source's positions changed, or None where there is nothing to change."""

CopyPlan = Mapping[str, bytes]  # what differs from the checkpoint: files with other contents, by their names


def fork(checkpoint: logs.SparkCheckpoint) -> CopyPlan:
    """The same, for another query: exactly-once sinks tell the two apart, so both write all that comes.

    Raises StateError where the server of a source keeps one position, which both queries would move.
    """
    batch = None if checkpoint.last_planned is None else checkpoint.batch(None)
    for source in batch.sources if batch is not None else ():
        if source.text is not None and _reads_a_slot(source.text):
            raise StateError(
                f"source {source.name} reads a replication slot, and only one query can: start another query with "
                "another slot and a new checkpoint"
            )
    return _new_query()


def _reads_a_slot(text: str) -> bool:
    """Whether these offsets, or those of a stage in them, are of PostgreSQL's changes."""
    try:
        waiting: list[object] = [json.loads(text)]
    except (ValueError, RecursionError):
        return False
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            if found.get("source") in ("postgresql-changes-initial", "postgresql-changes-never"):
                return True
            waiting += [found.get("body"), found.get("offset")]
    return False


def rewind(checkpoint: logs.SparkCheckpoint, to_batch: int) -> CopyPlan:
    """At the positions after `to_batch`, for another query, since the sinks know what this one has written.

    Batches that came later stay, as ones that have read nothing: Spark's file sinks, and writes in `foreachBatch` that have a
    name of the user's, know no query, and skip the numbers that they have written. So the next batch has a new one.

    Raises UsageError for a batch that is not there, and StateError for what cannot go back: state, and sources not Kafka's.
    """
    last = last_committed(checkpoint)
    batch = checkpoint.batch(to_batch)
    if to_batch not in checkpoint.committed:
        there = f"{min(checkpoint.committed)} to {max(checkpoint.committed)}" if checkpoint.committed else "none"
        raise UsageError(f"batch {to_batch} is not among the committed ones, which are {there}")
    if checkpoint.state_operators and to_batch != last:
        raise StateError("the query keeps state, of which later batches have become part: it cannot go back by its logs alone")
    others = [source.name for source in batch.sources if stored_positions(source.text).form is OffsetForm.OTHER]
    if others:
        raise StateError(f"source {others[0]} is not Kafka's, and keeps what it has read in its own files: it cannot go back")
    later = [number for number in checkpoint.planned if number > to_batch]
    return {f"{logs.OFFSETS}/{number}": batch.content(batch.sources) for number in later} | _new_query()


def batch_at(checkpoint: logs.SparkCheckpoint, time_ms: int) -> int:
    """The last one before the first planned after this time (epoch ms, driver's clock). Raises UsageError where none is."""
    planned = sorted(checkpoint.planned.items())
    later = [number for number, batch in planned if batch.planned_ms is None or batch.planned_ms > time_ms]
    before = [number for number, _ in planned if not later or number < later[0]]
    if not before:
        known = [batch.planned_ms for _, batch in planned if batch.planned_ms is not None]
        since = f"the first of them at {min(known)} ms" if known else "at times that are not known"
        raise UsageError(
            f"no batch in {checkpoint.location} was planned by {time_ms} ms; those that are left were planned {since}"
        )
    return before[-1]


def set_offsets(checkpoint: logs.SparkCheckpoint, offsets: Mapping[tuple[str, int], int]) -> CopyPlan:
    """The same query, its next batch at these positions by topic and partition. Raises UsageError for one not stored once."""
    return _changed(checkpoint, lambda positions: _moved(positions, offsets), [f"{topic}-{part}" for topic, part in offsets])


def forget_topic(checkpoint: logs.SparkCheckpoint, topic: str) -> CopyPlan:
    """Without a topic: if still subscribed to, it is a new one, read from its start. Raises UsageError if it is not stored."""
    return _changed(checkpoint, lambda positions: _without(positions, topic), [topic])


def export_to_jvm(checkpoint: logs.SparkCheckpoint) -> CopyPlan:
    """For Spark's own Kafka connector, in the query of the same id. Raises StateError for what that cannot express.

    It continues from the last batch. What it cannot express of previous ones stays as it is: that is not read.
    """
    last = last_committed(checkpoint)
    written = {}
    for number, batch in checkpoint.planned.items():
        try:
            sources = tuple(map(_of_jvm, batch.sources))
        except StateError:
            if number == last:
                raise
            continue
        if sources != batch.sources:
            written[f"{logs.OFFSETS}/{number}"] = batch.content(sources)
    if not written:
        raise UsageError(f"no batch in {checkpoint.location} has offsets of headrace's: there is nothing to export")
    return written


def _of_jvm(source: logs.SourceOffsets) -> logs.SourceOffsets:
    positions = stored_positions(source.text)
    return replace(source, text=positions.to_text(OffsetForm.JVM)) if positions.form is OffsetForm.HEADRACE else source


def write_copy(checkpoint: logs.SparkCheckpoint, to: str, plan: CopyPlan, *, quiet_s: float = QUIET_S) -> None:
    """Write the copy into a new folder: a path, or an address that fsspec knows.

    Killed at any moment, it leaves no such folder, or (in a store that is not local) one from which no query starts.

    `quiet_s`: a checkpoint that was written to within this many seconds, by the clock of the copy's store, is taken for a
    running query's. Raises StateError then, and where it is written to meanwhile; UsageError where `to` is there.
    """
    location, target = (normal_path(logs.fsspec_address(path)) for path in (checkpoint.location, to))
    if f"{_followed(target)}/".startswith(f"{_followed(location)}/"):
        raise UsageError(f"{to} is within the checkpoint itself")
    _refuse_linked_folders(location)
    source = open_store(location, {})
    copy = copy_target(target)
    try:
        refuse_running(source, checkpoint, copy.began_s, quiet_s)
        names = source.files()
        written = {**_schemas_of_copy(source, names, target if is_local(target) else to.rstrip("/")), **plan}
        for name in _taken_over(names, written):
            copy.take(source, name)
        for name, content in written.items():
            if name != logs.METADATA:
                copy.write(name, content)
        is_there = source.size(logs.METADATA) is not None
        metadata = plan.get(logs.METADATA) or (source.read(logs.METADATA) if is_there else None)
        if logs.read_checkpoint(checkpoint.location) != checkpoint:
            raise StateError(f"{checkpoint.location} has changed meanwhile: its query runs. Stop it first")
        copy.finish(metadata)
    except BaseException:
        copy.discard()
        raise


def _refuse_linked_folders(location: str) -> None:
    """Raise StateError for a folder that lies elsewhere: what is in it would be left out of the copy."""
    for folder, names, _ in os.walk(location) if is_local(location) else ():
        for path in (os.path.join(folder, name) for name in names):
            if os.path.islink(path):
                raise StateError(
                    f"{path} is a link, to {os.readlink(path)}, and a copy holds no links: put the folder itself in its place"
                )


def _followed(path: str) -> str:
    return os.path.realpath(path) if is_local(path) else path


def refuse_running(source: Store, checkpoint: logs.SparkCheckpoint, now_s: float, quiet_s: float) -> None:
    """By when the newest entry of each log was written, and `now_s`, of the same store's clock if it is available.

    Raises StateError where it was less than `quiet_s` seconds ago, and, unless these are 0, where a supervised driver has the
    checkpoint: that one may have found nothing to read for long.
    """
    if quiet_s > 0:
        _refuse_supervised(checkpoint)
    entries = {logs.OFFSETS: checkpoint.last_planned, logs.COMMITS: checkpoint.last_committed}
    newest = [f"{log}/{number}" for log, number in entries.items() if number is not None]
    # A file's time may lie some milliseconds in the future of a file that is written after it: clocks of files are coarse.
    age_s = max(0.0, now_s - max((source.modified_s(name) for name in newest), default=-math.inf))
    if age_s < quiet_s:
        raise StateError(
            f"{checkpoint.location} was written to {age_s:.0f} s ago, so its query may be running. Stop it, and if "
            "it is stopped, say so by --stopped"
        )


def _refuse_supervised(checkpoint: logs.SparkCheckpoint) -> None:
    path = normal_path(logs.fsspec_address(checkpoint.location))
    if sys.platform != "linux" or not is_local(path):
        return
    from headrace.runners.spark.supervision.lock import is_held

    if is_held(path):
        raise StateError(
            f"a supervised driver is running with {checkpoint.location}: it has the lock, {LOCK_NAME}. Stop its job first"
        )


def _taken_over(names: Iterable[str], written: Mapping[str, bytes]) -> Iterator[str]:
    """What is copied as it is: not the checksums of files that are written otherwise, which Spark reads without."""
    gone = {*written, LOCK_NAME}
    for name in names:
        summed = re.sub(r"(^|/)\.([^/]*)\.crc$", r"\1\2", name)
        if name != logs.METADATA and name not in gone and summed not in gone:
            yield name


def _new_query() -> dict[str, bytes]:
    return {logs.METADATA: json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")).encode()}


def _changed(checkpoint: logs.SparkCheckpoint, change: Changed, wanted: list[str]) -> CopyPlan:
    """The last batch with the positions of one source changed. `wanted`: for errors."""
    number = last_committed(checkpoint)
    batch: logs.PlannedBatch = checkpoint.batch(number)
    found = [(at, new) for at, source in enumerate(batch.sources) if (new := change(stored_positions(source.text))) is not None]
    if len(found) != 1:
        where = "more than one source of the query" if found else "any source of the query"
        raise UsageError(f"{', '.join(wanted)}: {'stored in' if found else 'not stored in'} {where}, in batch {number}")
    ((at, positions),) = found
    sources = list(batch.sources)
    sources[at] = replace(sources[at], text=positions.to_text())
    return {f"{logs.OFFSETS}/{number}": batch.content(tuple(sources))}


def _moved(positions: StoredPositions, offsets: Mapping[tuple[str, int], int]) -> StoredPositions | None:
    splits: dict[str, KafkaSplit] = dict(positions.offsets.splits)
    for (topic, partition), to in offsets.items():
        there = [split for split in positions if (split.topic, split.partition) == (topic, partition)]
        if len(there) != 1:
            return None
        splits[there[0].split_id] = moved(there[0], to)
    return positions.changed(splits)


def _without(positions: StoredPositions, topic: str) -> StoredPositions | None:
    rest = {split.split_id: split for split in positions if split.topic != topic}
    return None if len(rest) == len(positions.offsets.splits) else positions.changed(rest)


def last_committed(checkpoint: logs.SparkCheckpoint) -> int:
    """The last batch. Raises StateError where it is not committed, or a file is damaged."""
    if checkpoint.damaged:
        raise StateError(f"{checkpoint.damaged[0].name} is damaged ({checkpoint.damaged[0].why}): no copy is made of that")
    last = checkpoint.last_planned
    if last is None or last != checkpoint.last_committed:
        raise StateError(
            f"batch {last} is not committed: what its next run is to read is stored. Start the query once, let the batch end, "
            "and stop it"
        )
    return last


# --- where the schemas of a query's state are -------------------------------------------------------------------------

_STORES = re.compile(r"state/\d+/_metadata/v2/\d+")
"""`transformWithState` keeps schemas, in files that Spark names by their whole paths. What names them are these files: the line
`v2`, and JSON with `stateSchemaFilePaths` for each store. In a copy these would be those of the checkpoint that it was made of:
without that one the copy's query does not start."""

_SCHEMA = re.compile(r".*/(state/\d+/_stateSchema/[^/]+/[^/]+)")


def _schemas_of_copy(source: Store, names: Iterable[str], copy: str) -> Mapping[str, bytes]:
    """The files that name schemas, as a copy at this path or address is to have them. One of an unknown form stays as it is."""
    there = f"file:{copy}" if is_local(copy) else copy
    found = {name: _with_schemas_in(source.read(name).decode(), there) for name in names if _STORES.fullmatch(name)}
    return {name: text.encode() for name, text in found.items() if text is not None}


def _with_schemas_in(text: str, there: str) -> str | None:
    """None where it names no schema."""
    version, _, body = text.partition("\n")
    try:
        document = json.loads(body)
        stores = [store for store in document["stateStoreInfo"] if store["stateSchemaFilePaths"]]
        for store in stores:
            paths = [(path, _SCHEMA.fullmatch(path)) for path in store["stateSchemaFilePaths"]]
            store["stateSchemaFilePaths"] = [path if found is None else f"{there}/{found[1]}" for path, found in paths]
    except (ValueError, KeyError, TypeError):
        return None
    return f"{version}\n{json.dumps(document, separators=(',', ':'), ensure_ascii=False)}" if stores else None
