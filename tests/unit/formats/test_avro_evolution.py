"""Schemas that change: what is read, what is refused and by which words, in each kind of a registry's compatibility."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.formats.registry.schemas import RegisteredSchema
from headrace.enumerator.errors import UsageError
from headrace.formats import AvroFormat, RegisteredAvroFormat, SchemaRegistry
from tests.helpers.avro_cases import expected, plain, read, said, written
from tests.helpers.avro_evolution import CHANGES, KINDS, SCHEDULES, Change, History, Lost, Outcome, Refused, holds, told_apart

NOBODY = SchemaRegistry("http://127.0.0.1:1")
"""It is asked for nothing: all schemas are known."""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_new_version_reads_the_old_ones_values_or_refuses_them_by_name(change: Change):
    check(change.backward, change.old, change.new, change.old_values)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_old_version_reads_the_new_ones_values_or_refuses_them_by_name(change: Change):
    check(change.forward, change.new, change.old, change.new_values)


def check(outcome: Outcome, writer: Any, reader: Any, values: Sequence[Any]) -> None:
    encoded = [written(writer, each) for each in values]
    if isinstance(outcome, Refused):
        with pytest.raises(UsageError) as raised:
            AvroFormat(json.dumps(writer), reader_schema=json.dumps(reader))
        assert outcome.why in str(raised.value)
        return
    column, bad = AvroFormat(json.dumps(writer), reader_schema=json.dumps(reader)).decode(pa.array(encoded, pa.binary()))
    column.validate(full=True)
    lost = outcome.rows if isinstance(outcome, Lost) else ()
    assert [each.row for each in bad] == [*lost]
    assert all(isinstance(outcome, Lost) and outcome.why in each.reason for each in bad)
    for row, value in enumerate(plain(column)):
        assert row in lost or said(value) == said(expected(reader, read(writer, encoded[row], reader)))


@pytest.mark.parametrize("history", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_a_topic_with_values_of_all_versions_is_read_as_far_as_they_are_compatible(history: History):
    """By each version as the reader's schema; what another version wrote is read, or bad with that version's id."""
    assert {kind for kind in KINDS if holds(kind, readable(history))} == history.kinds


def readable(history: History) -> list[list[bool]]:
    """For each version as the reader's, whether each version's value is read."""
    schemas = [RegisteredSchema(number, "AVRO", json.dumps(each)) for number, each in enumerate(history.versions, 1)]
    topic = pa.array(
        [
            b"\0" + number.to_bytes(4, "big") + written(version, value)
            for number, (version, value) in enumerate(zip(history.versions, history.values, strict=True), 1)
        ]
    )
    found = []
    for reader, version in zip(schemas, history.versions, strict=True):
        values, bad = RegisteredAvroFormat(NOBODY, reader, known=schemas).decode(topic)
        reasons = {each.row: each.reason for each in bad}
        for row, value in enumerate(plain(values)):
            if row not in reasons:
                data = topic[row].as_py()[5:]
                assert said(value) == said(expected(version, read(history.versions[row], data, version)))
            elif not reasons[row].startswith("field "):
                assert reasons[row].startswith(
                    f"schema {row + 1} cannot be read by the reader's schema: the reader's Avro schema"
                )
        found.append([row not in reasons for row in range(len(schemas))])
    return found


def test_every_kind_of_compatibility_is_reported_from_the_others():
    """A history has it that lacks some other, and one lacks it: so a check that always, or never, agrees is seen."""
    assert told_apart(SCHEDULES.values())
