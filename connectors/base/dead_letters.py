"""Dead letters: records that could not be decoded, on their way to their own topic, as Kafka Connect writes them.

A source that keeps bad records has a column `deadLetter`, which is null for good ones. It holds the original record, whatever
other columns there are: its key, its value and its headers, behind which stand headers that say where it was and what is wrong
with it. Those that Kafka Connect has too bear its names (`DeadLetterQueueReporter`, KIP-298), the others start with
`headrace.errors.`. A letter that is `addressed` names the topic that it is to be written to, and a Kafka sink writes it there,
in the transaction of the batch that it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.arguments import text
from headrace.connectors.base.nested import plain_rows
from headrace.connectors.base.outputs import DEFAULT_OUTPUT, parts
from headrace.enumerator.errors import UsageError

DEAD_LETTER = "deadLetter"
BAD_COLUMNS = ("badKey", "badValue", "badReason", DEAD_LETTER)
"""The columns of a source that say what is wrong with a record, and have no meaning to a sink, but for the last."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_RECORD = [("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)]
LETTER_TYPE = pa.struct(_RECORD)
"""Of the column `deadLetter`, as a source gives it."""
ADDRESSED_TYPE = pa.struct([("topic", pa.string()), *_RECORD])
"""Of the column `deadLetter`, as a sink takes it."""

_CONNECT = "__connect.errors."
_OURS = "headrace.errors."
_TOPIC, _PARTITION, _OFFSET = f"{_CONNECT}topic", f"{_CONNECT}partition", f"{_CONNECT}offset"
_CONNECTOR, _STAGE = f"{_CONNECT}connector.name", f"{_CONNECT}stage"
_EXCEPTION, _MESSAGE = f"{_CONNECT}exception.class.name", f"{_CONNECT}exception.message"
_TIMESTAMP, _SCHEMA_ID, _START = f"{_OURS}timestamp", f"{_OURS}schema.id", f"{_OURS}start"
_STAGES = {"key": "KEY_CONVERTER", "value": "VALUE_CONVERTER"}  # of Kafka Connect's enum Stage
REPLAYS = "headrace.replays"
"""The header of a record that was replayed: how often, as decimal digits."""

Header = tuple[str, bytes | None]


# --- written ----------------------------------------------------------------------------------------------------------


class BadParts(NamedTuple):
    """What is wrong with a record: the reason, which of key and value is bad (the first of them), and the schema it names."""

    reason: str
    part: str
    schema_id: str | None


def letter_column(records: pa.RecordBatch, bad: Mapping[int, BadParts]) -> pa.Array:
    """The column `deadLetter`: null but in the rows that are `bad`.

    `records` has the columns key, value, headers, topic, partition, offset and timestamp as Kafka has them. Of a file read in
    pieces also `start`: the byte from which on the offset counts.
    """
    if not bad:
        return pa.nulls(records.num_rows, LETTER_TYPE)
    rows = sorted(bad)
    found = records.take(pa.array(rows))
    micros = found.column("timestamp").cast(pa.int64()).to_pylist()  # Python has no such times as a producer may claim
    others = found.drop_columns(["timestamp"]).to_pylist()
    dead = [_letter(record, time, bad[row]) for row, record, time in zip(rows, others, micros, strict=True)]
    places = dict(zip(rows, range(len(rows)), strict=True))
    return pa.array(dead, LETTER_TYPE).take(pa.array([places.get(row) for row in range(records.num_rows)], pa.int64()))


def _letter(record: Mapping[str, Any], micros: int | None, bad: BadParts) -> dict[str, Any]:
    reported: dict[str, object] = {
        _TOPIC: record["topic"],
        _PARTITION: record["partition"],
        _OFFSET: record["offset"],
        _CONNECTOR: "headrace",
        _STAGE: _STAGES[bad.part],
        _EXCEPTION: "headrace.errors.CorruptDataError",
        _MESSAGE: bad.reason,
        _TIMESTAMP: None if micros is None else micros // 1000,
        _SCHEMA_ID: bad.schema_id,
        _START: record.get("start"),
    }
    more = [{"key": name, "value": str(value).encode()} for name, value in reported.items() if value is not None]
    return {"key": record["key"], "value": record["value"], "headers": [*(record["headers"] or ()), *more]}


def addressed(dead: pa.Array, topic: str) -> pa.Array:
    """The column `deadLetter` of a source as a sink takes it: each letter with the topic that it goes to."""
    names = pa.array([topic] * len(dead), pa.string())
    parts = [dead.field(name) for name, _ in _RECORD]
    return pa.StructArray.from_arrays([names, *parts], fields=list(ADDRESSED_TYPE), mask=dead.is_null())


def parted(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """The rows that are not dead letters, and the dead letters among them: with the columns topic, key, value and headers.

    Raises UsageError for letters that say not which topic they go to.
    """
    rows = plain_rows(rows)
    if DEAD_LETTER not in rows.schema.names:
        return rows, None
    column = rows.column(DEAD_LETTER)
    rest = rows.drop_columns([DEAD_LETTER])
    if column.null_count == len(column):
        return rest, None
    if not pa.types.is_struct(column.type) or {each.name for each in column.type} != {each.name for each in ADDRESSED_TYPE}:
        raise UsageError(
            f"the column {DEAD_LETTER!r} must be {ADDRESSED_TYPE}, with the topic that each dead letter goes to, and is "
            f"{column.type}: with_dead_letters(frame, topic) makes it so, or DeadLetters(topic) in a pipeline"
        )
    dead = column.drop_null()
    names = [each.name for each in ADDRESSED_TYPE]
    good = rest.filter(column.is_null()) if rest.num_columns else rest.slice(0, column.null_count)
    return good, pa.record_batch([pc.struct_field(dead, name) for name in names], names=names)


@dataclass(frozen=True)
class DeadLetters:
    """A pipeline's function that sends dead letters to `topic`, and all other rows through `then`, if it is given.

    For batches of a `KafkaSource(on_bad_record="keep")` with the column `deadLetter`, and a `KafkaSink`: the letters are
    written in the transaction of their batch. `then` gets rows without the columns that tell of bad records.

    `output`: in a pipeline with several sinks the name of the one that takes the letters, a `KafkaSink`; default: the only one.
    """

    topic: str
    then: Any = field(default=None)
    output: str = field(default=DEFAULT_OUTPUT, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what is not a name, and what is not a function."""
        text("topic", self.topic)
        text("output", self.output)
        if self.then is not None and not callable(self.then):
            raise UsageError(f"then must be a function of a batch, not {self.then!r}")

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """The other rows, as `then` makes them; and the letters. Raises UsageError for a batch without the column."""
        if DEAD_LETTER not in batch.schema.names:
            raise UsageError(
                f"DeadLetters needs the column {DEAD_LETTER!r}: KafkaSource(..., on_bad_record='keep', columns=[..., "
                f"{DEAD_LETTER!r}])"
            )
        column = batch.column(DEAD_LETTER)
        good = batch.filter(column.is_null()).drop_columns([name for name in BAD_COLUMNS if name in batch.schema.names])
        if good.num_rows:
            yield from parts(good if self.then is None else self.then(good))
        if column.null_count < len(column):
            dead = pa.record_batch([addressed(column.drop_null(), self.topic)], names=[DEAD_LETTER])
            yield (self.output, dead) if self.output else dead


# --- read -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What the headers of a dead letter say, of headrace or of Kafka Connect's. None: they do not.

    `timestamp_ms`: of the original record. `headers`: those of the original record. `replays`: how often it was replayed
    before it came here.
    """

    topic: str
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    reason: str | None
    exception: str | None
    schema_id: str | None
    headers: tuple[Header, ...]
    replays: int


def letter_of(headers: Iterable[Header]) -> DeadLetter | None:
    """The letter that a record with these headers is; None for one that is none, as it does not say of which topic it is.

    Of a record that was a dead letter more than once the last time counts: the headers from its last topic on are of it.
    """
    found = list(headers)
    starts = [index for index, (name, _) in enumerate(found) if name == _TOPIC]
    if not starts or found[starts[-1]][1] is None:
        return None
    own = {name: value for name, value in found[starts[-1] :] if _is_ours(name)}
    original = (*found[: starts[-1]], *(each for each in found[starts[-1] :] if not _is_ours(each[0])))
    return DeadLetter(
        topic=_text(own[_TOPIC]) or "",
        partition=_number(own.get(_PARTITION)),
        offset=_number(own.get(_OFFSET)),
        timestamp_ms=_number(own.get(_TIMESTAMP)),
        reason=_text(own.get(_MESSAGE)),
        exception=_text(own.get(_EXCEPTION)),
        schema_id=_text(own.get(_SCHEMA_ID)),
        headers=tuple(original),
        replays=max((_number(value) or 0 for name, value in original if name == REPLAYS), default=0),
    )


def replayed_headers(letter: DeadLetter) -> Sequence[Header]:
    """Of the record that is put back: its own, and how often it was replayed with this time."""
    own = [each for each in letter.headers if each[0] != REPLAYS]
    return [*own, (REPLAYS, str(letter.replays + 1).encode())]


def _is_ours(name: str) -> bool:
    return name.startswith((_CONNECT, _OURS))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _number(value: bytes | None) -> int | None:
    """A whole number from 0 as decimal digits; of anything else nothing is known."""
    digits = _text(value) or ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
