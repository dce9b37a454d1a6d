"""Mutated Avro values by the ten million through the compiled decoder: schemas and values from Hypothesis, fastavro the oracle.

A chunk draws `CASES` schemas. Of each, `BATCHES` columns are decoded: by the writer's own schema, by an evolved reader's, or
only some fields. Most of a column's values are mutated, and each `_GOOD_EVERY`th is as fastavro wrote it.
"""

import json
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from headrace.connectors.formats.avro.decode import REASONS
from headrace.connectors.formats.value_format import DecodedValues
from headrace.formats import AvroFormat
from tests.fuzz.batches import change
from tests.fuzz.target import Finding
from tests.helpers.avro_cases import RefusedError, StrictReader, evolved, expected, plain, read, said, schemas, values, written

CASES = 10
BATCHES = 4
VALUES = 250
"""Of a batch: a chunk has 10,000."""

SLOW_S = 1.0
"""Processor time that one batch may take."""

_GOOD_EVERY = 16
_JUDGED_EVERY = 64
"""Mutated values that the strict reader judges: it takes some ten times as long as all else."""

_NOISE = 24
_SETTINGS = hypothesis.settings(
    max_examples=CASES, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck)
)

Decode = Callable[[AvroFormat, pa.Array], DecodedValues]


@dataclass(frozen=True)
class Case:
    """A writer's schema, what is read of it, and values that fastavro wrote."""

    writer: Any
    reader: Any
    fields: tuple[str, ...] | None
    good: tuple[bytes, ...]

    @cached_property
    def format(self) -> AvroFormat:
        return AvroFormat(json.dumps(self.writer), reader_schema=json.dumps(self.reader), fields=self.fields)

    @property
    def is_whole(self) -> bool:
        """Whether every byte is looked at: what is skipped may be wrong within its bounds."""
        return self.fields is None and self.reader is self.writer

    def request(self, data: bytes) -> str:
        """What fastavro reads, as a text that can be compared."""
        value = expected(self.reader, read(self.writer, data, None if self.reader is self.writer else self.reader))
        return said(value if self.fields is None else {name: value[name] for name in self.fields})

    def is_sound(self, data: bytes) -> bool | None:
        """Whether the bytes start with a value, by the specification to the letter. None: it does not say what a part is."""
        strict = StrictReader(data)
        try:
            strict.read(self.writer)
        except RefusedError:
            return False if self.is_whole else None
        return True if self.is_whole or strict.sizes_hold else None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any schema; half of them read by itself, a quarter by an evolved one, a quarter in part."""
    writer = draw(schemas(with_empty=False))
    good = draw(st.lists(values(writer), min_size=1, max_size=4))
    way = draw(st.sampled_from(["whole", "whole", "evolved", "part"]))
    reader = draw(evolved(writer)) if way == "evolved" else writer
    names = [field["name"] for field in writer["fields"]]
    fields = tuple(draw(st.lists(st.sampled_from(names), min_size=1, unique=True))) if way == "part" else None
    return Case(writer, reader, fields, tuple(written(writer, each) for each in good))


def drawn(seed: str) -> list[Case]:
    found: list[Case] = []

    @hypothesis.seed(zlib.crc32(seed.encode()))
    @_SETTINGS
    @hypothesis.given(cases())
    def draw(case: Case) -> None:
        found.append(case)

    draw()
    return found


def batch(case: Case, chance: random.Random) -> list[bytes]:
    """Mutated values, with good ones among them."""
    items = []
    for row in range(VALUES):
        item = case.good[row % len(case.good)]
        if row % _GOOD_EVERY:
            changed, noise = bytearray(item), chance.randbytes(_NOISE)
            change(changed, noise)
            item = bytes(changed)
        items.append(item)
    return items


def check(case: Case, items: Sequence[bytes], decode: Decode) -> Counter[str]:
    """Decode them: how many were read, and how many refused. Raises Finding, or whatever the decoder should not raise."""
    column, bad = decode(case.format, pa.array(items, pa.binary()))
    column.validate(full=True)
    if len(column) != len(items) or column.type != case.format.arrow_type:
        raise Finding(f"{len(column)} values of {column.type} for {len(items)}")
    refused = {each.row: each.reason for each in bad}
    if list(refused) != sorted(refused) or column.is_null().to_pylist() != [row in refused for row in range(len(items))]:
        raise Finding("rows that are null are not those that are bad")
    if unknown := [each for each in refused.values() if not each.endswith(tuple(REASONS.values()))]:
        raise Finding(f"a reason that is none: {unknown[0]}")
    _check_values(case, items, column, refused)
    return Counter(refused=len(refused), decoded=len(items) - len(refused))


def _check_values(case: Case, items: Sequence[bytes], column: pa.Array, refused: dict[int, str]) -> None:
    """Good values are what fastavro reads, whatever is next to them; some mutated ones are judged by the specification."""
    chosen = sorted({row for row in range(len(items)) if row % _GOOD_EVERY == 0 or row % _JUDGED_EVERY == 1})
    for row, value in zip(chosen, plain(column.take(pa.array(chosen, pa.int32()))), strict=True):
        item = items[row]
        sound = case.is_sound(item)
        if sound is None:
            continue
        if not sound:
            if row not in refused:
                raise Finding(f"row {row} is not a value, and was read")
        elif row in refused:
            raise Finding(f"row {row} is a value, and was refused: {refused[row]}")
        elif said(value) != case.request(item):
            raise Finding(f"row {row} was read as {said(value)}; fastavro reads {case.request(item)}")


def run_chunk(
    seed: str, chunk: int, request: dict[str, Any], keep: Path | None = None, decode: Decode = AvroFormat.decode
) -> None:
    """Adds to what is reported. `keep`: a file that each batch is written to before it is decoded."""
    found, chance = drawn(f"{seed}-{chunk}"), random.Random(f"{seed}-{chunk}")
    for number in range(CASES * BATCHES):
        case = found[number % len(found)]
        items = batch(case, chance)
        if keep is not None:
            keep.write_text(json.dumps([case.writer, case.reader, case.fields, [each.hex() for each in items]]))
        started_at = time.thread_time()
        try:
            outcomes = check(case, items, decode)
        except Exception as error:
            said_where = f"chunk {chunk}, batch {number}, {json.dumps(case.writer)}"
            raise Finding(f"{type(error).__name__}: {error}; {said_where}") from error
        took = time.thread_time() - started_at
        if took > SLOW_S:
            raise Finding(f"{took} s for batch {number} of chunk {chunk}")
        request["slowest_ms"] = max(request["slowest_ms"], took * 1000)
        request["outcomes"].update(outcomes)
        request["rows"] += outcomes["decoded"]
        request["buffers"] += len(items)
