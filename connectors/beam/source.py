"""Any bounded source of Beam as a Source: its bundles are the splits, all of them known at once.

What is read must not change meanwhile. Bundles are read by Beam's own code, record by record, in the reader's thread.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.internal import pickler
from apache_beam.io.iobase import BoundedSource, Read
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

from headrace.connectors.base.arguments import arrow_schema, at_least_one
from headrace.connectors.beam.rows import VALUE, inferred_schema, record_batch, record_batches, table_of
from headrace.connectors.beam.split import BundleSplit, BundleSplitSerializer
from headrace.enumerator.errors import DataLossError, StateError, UsageError
from headrace.enumerator.source import Boundedness, DiscoveryResult, Source, SourceReader, SplitBatch, SplitDiscovery

BATCH_ROWS = 8192
SAMPLE = 1000
_VALUES: Mapping[object, pa.DataType] = {str: pa.string(), bytes: pa.binary()}


class _Steps(PipelineVisitor):
    """The sources that a pipeline reads, and what it does besides."""

    def __init__(self) -> None:
        self.sources: list[Any] = []
        self.others: list[str] = []
        self._inside: AppliedPTransform | None = None

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        if self._inside is None and isinstance(transform_node.transform, Read):
            self.sources.append(transform_node.transform.source)
            self._inside = transform_node

    def leave_composite_transform(self, transform_node: AppliedPTransform) -> None:
        if self._inside is transform_node:
            self._inside = None

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        if self._inside is None and transform_node.transform is not None:
            self.others.append(transform_node.full_label)


def bounded_source(transform: beam.PTransform[Any, Any]) -> BoundedSource:
    """The source that a reading transform of Beam reads, such as ReadFromText, ReadFromParquetBatched, ReadFromAvro.

    Raises UsageError for a transform that does anything else besides.
    """
    pipeline, steps = beam.Pipeline(), _Steps()
    pipeline | deepcopy(transform)  # a transform that was applied belongs to that pipeline: the caller's is left as it was
    pipeline.visit(steps)
    if len(steps.sources) == 1 and not steps.others and isinstance(steps.sources[0], BoundedSource):
        return steps.sources[0]
    raise UsageError(
        f"{transform.label} has {len(steps.sources)} sources, and these other steps: {', '.join(steps.others) or 'none'}. A "
        "transform must read one bounded source, and do no more"
    )


def schema_of(source: BoundedSource | beam.PTransform[Any, Any]) -> pa.Schema:
    """The schema that the first records suggest, up to 1000 of them. Reads them, in this process.

    Raises UsageError when there are none, or when they leave a column's type open.
    """
    found = source if isinstance(source, BoundedSource) else bounded_source(source)
    elements = iter(found.read(found.get_range_tracker(None, None)))
    sample = list(islice(elements, 1))
    if not sample:
        raise UsageError("the source has no records to tell a schema from: give the schema")
    if table_of(sample[0]) is None:
        sample += islice(elements, SAMPLE - 1)
    return inferred_schema(sample)


def _schema_by_type(source: BoundedSource) -> pa.Schema:
    hint: object = None
    with suppress(NotImplementedError):
        reported = getattr(source, "output_type_hint", None)  # of Beam's text source only
        hint = source.default_output_coder().to_type_hint() if reported is None else reported()
    if hint not in _VALUES:
        raise UsageError(
            f"{type(source).__name__} does not say that its records are str or bytes (it says {hint}): give their schema, or "
            "look at some by schema_of(source)"
        )
    return pa.schema([(VALUE, _VALUES[hint])])


class BeamSource(Source[BundleSplit]):
    """A bounded source of Beam. Picklable.

    source: the source, or a transform that reads one and does no more. schema: of its records, whose fields are taken by name;
    not needed where the source states that they are str or bytes, which become the column `value`. bundle_bytes: how large
    bundles should be, by the source's own estimate; default: as Beam's runners choose it, 1 MiB, and more for a source above
    1 GB. After a failure, and for a restore, a bundle is read from its start. A value that the schema would change is an error,
    but that floating point numbers are rounded.

    Raises UsageError for a source that says nothing of its records, and for one that is not bounded.
    """

    name = "beam"

    def __init__(
        self,
        source: BoundedSource | beam.PTransform[Any, Any],
        schema: pa.Schema | None = None,
        *,
        bundle_bytes: int | None = None,
    ) -> None:
        """Raises UsageError as the class says."""
        if bundle_bytes is not None:
            at_least_one("bundle_bytes", bundle_bytes)
        if schema is not None:
            arrow_schema("schema", schema)
            if not schema.names:
                raise UsageError("the schema has no columns")
        self.source: BoundedSource = source if isinstance(source, BoundedSource) else bounded_source(source)
        self.schema: pa.Schema = schema if schema is not None else _schema_by_type(self.source)
        self.bundle_bytes = bundle_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        """By Beam's pickler, which also takes what a plain pickle does not: Beam's users are used to that."""
        return _unpickled, (pickler.dumps(self.source), self.schema, self.bundle_bytes)

    @property
    def boundedness(self) -> Boundedness:
        """BOUNDED."""
        return Boundedness.BOUNDED

    @property
    def split_serializer(self) -> BundleSplitSerializer:
        """JSON objects of three fields."""
        return BundleSplitSerializer()

    def create_discovery(self) -> BundleDiscovery:
        """A discovery that asks the source for its bundles."""
        return BundleDiscovery(self)

    def create_reader(self) -> BundleReader:
        """A reader of bundles."""
        return BundleReader(self.schema)


def _unpickled(source: bytes, schema: pa.Schema, bundle_bytes: int | None) -> BeamSource:
    return BeamSource(pickler.loads(source), schema, bundle_bytes=bundle_bytes)


class BundleDiscovery(SplitDiscovery[BundleSplit]):
    """Asks the source for its bundles, once: no second look could be distinguished from other data."""

    def __init__(self, source: BeamSource) -> None:
        self._source = source

    def initial(self) -> DiscoveryResult[BundleSplit]:
        source, size = self._source.source, self._source.bundle_bytes
        bundles = source.split(Read.get_desired_chunk_size(source.estimate_size()) if size is None else size)
        splits = []
        for number, bundle in enumerate(bundles):
            data = pickler.dumps((bundle.source, bundle.start_position, bundle.stop_position))
            # By its content too, so that no other run's bundle is taken for it.
            splits.append(BundleSplit(f"{number}-{hashlib.sha256(data).hexdigest()[:12]}", data))
        return DiscoveryResult(splits, complete=True)

    def later(self, known: Mapping[str, BundleSplit]) -> DiscoveryResult[BundleSplit]:
        return DiscoveryResult([], complete=True)


class BundleReader(SourceReader[BundleSplit]):
    """Reads its bundles one after the other."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._waiting: deque[BundleSplit] = deque()
        self._open: _OpenBundle | None = None

    def add_splits(self, splits: Sequence[BundleSplit]) -> None:
        self._waiting.extend(splits)

    def poll(self, timeout: float) -> SplitBatch[BundleSplit] | None:
        """Up to 8192 rows of a bundle, at least one unless it ends; None when there is no bundle left.

        Waits for one record of Beam's source however long it takes. Raises UsageError for records that do not fit the schema,
        DataLossError when a bundle has fewer records than it had before, and what Beam's source raises.
        """
        if self._open is None:
            if not self._waiting:
                return None
            self._open = _OpenBundle(self._waiting.popleft(), self._schema)
        batch = self._open.read(time.monotonic() + timeout)
        if batch.finished:
            self._open = None
        return batch

    def close(self) -> None:
        self._waiting.clear()
        if self._open is not None:
            self._open.close()
            self._open = None


class _OpenBundle:
    """A bundle that is being read."""

    def __init__(self, split: BundleSplit, schema: pa.Schema) -> None:
        try:
            source, start, stop = pickler.loads(split.bundle)
        except Exception as error:
            raise StateError(f"bundle {split.split_id} was pickled by other code than there is here: {error}") from error
        self._elements: Iterator[object] = iter(source.read(source.get_range_tracker(start, stop)))
        self._schema = schema
        self._split = split
        self._batches: deque[pa.RecordBatch] = deque()  # of a table that was taken and is not handed on yet
        self._skip(split.delivered)

    def read(self, deadline: float) -> SplitBatch[BundleSplit]:
        rows: list[object] = []
        finished = False
        while not self._batches and len(rows) < BATCH_ROWS and (not rows or time.monotonic() < deadline):
            try:
                element = next(self._elements)
            except StopIteration:
                finished = True
                break
            table = table_of(element)
            if table is None:
                rows.append(element)
            else:
                self._take(table)
        records = self._batches.popleft() if self._batches and not rows else record_batch(rows, self._schema)
        self._split = replace(self._split, delivered=self._split.delivered + records.num_rows)
        return SplitBatch(self._split, records, finished)

    def close(self) -> None:
        close = getattr(self._elements, "close", None)
        if close is not None:
            close()

    def _take(self, table: pa.Table) -> None:
        self._batches.extend(record_batches(table, self._schema, BATCH_ROWS))

    def _skip(self, rows: int) -> None:
        left = rows
        while left:
            try:
                element = next(self._elements)
            except StopIteration:
                raise DataLossError(
                    f"bundle {self._split.split_id} had at least {rows} rows when they were delivered, and has {rows - left} "
                    "now: what a Beam source reads must not change"
                ) from None
            table = table_of(element)
            if table is None:
                left -= 1
            elif table.num_rows <= left:
                left -= table.num_rows
            else:
                self._take(table.slice(left))
                left = 0
