"""Records whose keys and values are typed columns: what the reader brings, decoded, and what becomes of those that are bad.

What is not asked for is not decoded, and so is never bad.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.counters import COUNTERS, Counted
from headrace.connectors.base.dead_letters import DEAD_LETTER, LETTER_TYPE, BadParts, letter_column
from headrace.connectors.formats.value_format import ColumnFullError, ValueFormat
from headrace.connectors.kafka.format.decode import arrow_schema
from headrace.connectors.kafka.read.split import KafkaSplit
from headrace.enumerator.errors import BadRecordError, HeadraceError, UsageError
from headrace.enumerator.source import SourceReader, SplitBatch

log = logging.getLogger(__name__)

BadRecords = Literal["fail", "keep", "skip"]
"""What becomes of a record whose key or value cannot be decoded: an error; a null, with bytes and reason; or nothing at all."""

_BAD_NAMES = {"key": "badKey", "value": "badValue"}
_REASON = "badReason"
_BAD_TYPES = {"badKey": pa.binary(), "badValue": pa.binary(), _REASON: pa.string(), DEAD_LETTER: LETTER_TYPE}
_OF_A_LETTER = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
_SHOWN_BYTES = 16


@dataclass(frozen=True)
class TypedColumns:
    """The `columns` that are asked for, some of them decoded. With on_bad "keep" there are badKey, badValue, badReason and
    deadLetter, too.

    Raises UsageError for a column that there is not.
    """

    columns: tuple[str, ...]
    formats: Mapping[str, ValueFormat]
    on_bad: BadRecords

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        known = self.bad_columns()
        raw = [name for name in self.columns if name not in known]
        if not raw and self.columns:
            raise UsageError(f"{', '.join(self.columns)} can only be read alongside other columns")
        arrow_schema(raw)
        for each in self.wanted.values():
            each.decode(pa.nulls(0, pa.binary()))  # what may never be read is refused here, and not by every task

    def bad_columns(self) -> tuple[str, ...]:
        """The names of those that tell of bad records, in their order."""
        if self.on_bad != "keep" or not self.formats:
            return ()
        return (*(bad for name, bad in _BAD_NAMES.items() if name in self.formats), _REASON, DEAD_LETTER)

    @property
    def schema(self) -> pa.Schema:
        """Of what `decoded` gives: Kafka's columns in their order, then those that tell of bad records."""
        raw = arrow_schema([name for name in self.columns if name not in self.bad_columns()])
        typed = [each.with_type(self.formats[each.name].arrow_type) if each.name in self.formats else each for each in raw]
        bad = [name for name in self.bad_columns() if name in self.columns]
        return pa.schema([*typed, *(pa.field(name, _BAD_TYPES[name]) for name in bad)])

    @property
    def wanted(self) -> Mapping[str, ValueFormat]:
        """Those that are decoded: what is asked for, and all where bad records are to be seen or left out."""
        sees_all = self.on_bad == "skip" or any(name in self.columns for name in self.bad_columns())
        return {name: each for name, each in self.formats.items() if sees_all or name in self.columns}

    @property
    def raw(self) -> tuple[str, ...]:
        """The columns that are needed of the records: of a dead letter all that the record is, whatever is asked for."""
        headers = ["headers"] if any(each.reads_headers for each in self.wanted.values()) else []
        asked = [name for name in self.columns if name not in self.bad_columns()]
        letter = _OF_A_LETTER if DEAD_LETTER in self.columns else ()
        return tuple(dict.fromkeys([*asked, *self.wanted, "offset", *headers, *letter]))

    def decoded(self, records: pa.RecordBatch, split: KafkaSplit) -> tuple[pa.RecordBatch, int]:
        """The batch with typed columns, and how many records were left out as they are bad.

        `records` has the columns of `raw`, and is of this split. Raises BadRecordError, which names topic, partition and
        offset, for a bad record where these fail; and what a format raises.
        """
        headers = records.column("headers") if "headers" in records.schema.names else None
        columns = {name: records.column(name) for name in records.schema.names}
        reasons: dict[int, list[tuple[str, str]]] = {}
        for name, each in self.wanted.items():
            values, bad = each.decode_records(records.column(name), headers)
            if bad and self.on_bad == "fail":
                raise _error(records, split, name, bad[0].row, bad[0].reason)
            columns[name] = values
            columns[_BAD_NAMES[name]] = _only(records.column(name), {row for row, _ in bad})
            for row, reason in bad:
                reasons.setdefault(row, []).append((name, reason))
        columns[_REASON] = _texts(records.num_rows, reasons)
        if DEAD_LETTER in self.columns:
            columns[DEAD_LETTER] = letter_column(records, self._bad_parts(records, headers, reasons))
        schema = self.schema
        batch = pa.record_batch([columns[field.name] for field in schema], schema=schema)
        if self.on_bad == "skip" and reasons:
            batch = batch.filter(pa.array([row not in reasons for row in range(records.num_rows)]))
        return batch, len(reasons)

    def _bad_parts(
        self, records: pa.RecordBatch, headers: pa.Array | None, reasons: Mapping[int, Sequence[tuple[str, str]]]
    ) -> dict[int, BadParts]:
        parts = {part for reported in reasons.values() for part, _ in reported[:1]}
        ids = {part: self.formats[part].schema_ids(records.column(part), headers) for part in parts}
        return {row: BadParts(_told(reported), reported[0][0], ids[reported[0][0]][row]) for row, reported in reasons.items()}


def _told(reasons: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons)


def _texts(rows: int, reasons: Mapping[int, Sequence[tuple[str, str]]]) -> pa.Array:
    if not reasons:
        return pa.nulls(rows, pa.string())
    return pa.array([_told(reasons[row]) if row in reasons else None for row in range(rows)], pa.string())


def _only(values: pa.Array, rows: set[int]) -> pa.Array:
    """The column with nulls in all rows but these."""
    if not rows:
        return pa.nulls(len(values), values.type)
    return pc.if_else(pa.array([row in rows for row in range(len(values))]), values, pa.scalar(None, values.type))


def _error(records: pa.RecordBatch, split: KafkaSplit, name: str, row: int, reason: str) -> BadRecordError:
    offset, value = records.column("offset")[row].as_py(), records.column(name)[row].as_py()
    return BadRecordError(
        f"{split.topic}-{split.partition}, offset {offset}: the {name} cannot be decoded: {reason}. It has {len(value)} bytes, "
        f"which start with {value[:_SHOWN_BYTES].hex(' ')}. To continue without such records, let them be kept or skipped: "
        "on_bad_record (as an option: onBadRecord)"
    )


def _halves(batch: SplitBatch[KafkaSplit]) -> tuple[SplitBatch[KafkaSplit], SplitBatch[KafkaSplit]]:
    """Two batches, the split after the first at the first record of the second."""
    half = batch.records.num_rows // 2
    between = batch.split.between(batch.records.column("offset")[half].as_py(), batch.split.stop_offset)
    return SplitBatch(between, batch.records.slice(0, half)), replace(batch, records=batch.records.slice(half))


class TypedReader(SourceReader[KafkaSplit]):
    """A reader of Kafka splits whose batches have typed columns."""

    def __init__(self, reader: SourceReader[KafkaSplit], columns: TypedColumns) -> None:
        """`reader` gives the columns of `columns.raw`, and is closed with this one."""
        self._reader, self._columns = reader, columns
        self._failure: HeadraceError | MemoryError | None = None
        self._left_out = 0
        self._rest: deque[SplitBatch[KafkaSplit]] = deque()  # parts of a batch that is too large, decoded

    def add_splits(self, splits: Sequence[KafkaSplit]) -> None:
        self._reader.add_splits(splits)

    def poll(self, timeout: float) -> SplitBatch[KafkaSplit] | None:
        """As `SourceReader` says. Raises what the reader raises, and as `TypedColumns.decoded`; then for ever, as it does."""
        if self._failure is not None:
            raise self._failure
        batch = self._rest.popleft() if self._rest else self._reader.poll(timeout)
        if batch is None:
            return None
        try:
            return self._decoded(batch)
        except (HeadraceError, MemoryError) as error:
            self._failure = error
            raise

    def _decoded(self, batch: SplitBatch[KafkaSplit]) -> SplitBatch[KafkaSplit]:
        """The batch, or so much of it as a column can hold; the rest comes with the next polls."""
        while True:
            try:
                records, bad = self._columns.decoded(batch.records, batch.split)
            except ColumnFullError:
                if batch.records.num_rows == 1:
                    raise
                batch, behind = _halves(batch)
                self._rest.appendleft(behind)
            else:
                self._note(bad)
                return replace(batch, records=records)

    def linger(self, seconds: float) -> None:
        self._reader.linger(seconds)

    def wake_up(self) -> None:
        self._reader.wake_up()

    def close(self) -> None:
        self._reader.close()

    def _note(self, bad: int) -> None:
        """Said the first time, and whenever their number has doubled, so that the log does not grow."""
        skips = self._columns.on_bad == "skip"
        COUNTERS.add(Counted.RECORDS_SKIPPED if skips else Counted.RECORDS_KEPT_BAD, bad)
        before, self._left_out = self._left_out, self._left_out + bad
        if self._left_out.bit_length() != before.bit_length():
            what = "left out" if skips else "kept with a null"
            log.warning("%d records so far cannot be decoded, and are %s", self._left_out, what)
