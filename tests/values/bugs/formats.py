"""Injected bugs of formats: what a bad value costs, what is taken for good, what is written of slices and nulls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from headrace.connectors.formats import json_schema, json_values, value_format
from headrace.connectors.formats.avro import avro_format, writing
from headrace.connectors.formats.protobuf import protobuf_format
from headrace.connectors.formats.protobuf import writing as protobuf_writing

Injected = Callable[[], AbstractContextManager[Any]]


def a_null_records_texts_are_looked_at() -> AbstractContextManager[Any]:
    return patch.object(writing, "_shown", lambda record, field: field)


def the_last_bad_value_is_not_reported() -> AbstractContextManager[Any]:
    made = avro_format._bad
    return patch.object(avro_format, "_bad", lambda program, row, *rest: made(program, max(0, row - 1), *rest))


def skipped_fields_are_those_of_the_first_branch() -> AbstractContextManager[Any]:
    made = avro_format.only
    return patch.object(avro_format, "only", lambda schema, fields: made(schema, fields[:-1] or fields))


def messages_are_given_on_as_they_came() -> AbstractContextManager[Any]:
    """Without the runtime, which merges what is there twice."""

    def read(self: Any, values: pa.Array, header_bytes: int) -> tuple[pa.Array, dict[int, str]]:
        _, bad = real(self, values, header_bytes)
        return value_format.without(values, bad), bad

    real = protobuf_format._Types.read
    return patch.object(protobuf_format._Types, "read", read)


def times_that_do_not_fit_are_others() -> AbstractContextManager[Any]:
    return patch.object(protobuf_format, "beyond", lambda column: False)


def unknown_numbers_of_enums_are_the_first() -> AbstractContextManager[Any]:
    return patch.object(protobuf_writing, "_enum", lambda place, column, enum: pa.nulls(len(column), pa.int32()).fill_null(0))


def what_closes_the_array_is_a_value() -> AbstractContextManager[Any]:
    return patch.object(json_values, "_REOPENS", r"\A\z.")


def constants_are_numbers() -> AbstractContextManager[Any]:
    return patch.object(json_values, "_constant_rows", lambda texts: [])


def text_that_is_not_utf8_is_text() -> AbstractContextManager[Any]:
    return patch.object(json_values, "_not_utf8", lambda texts: [])


def a_bad_value_costs_those_beside_it() -> AbstractContextManager[Any]:
    made = json_values._without
    return patch.object(json_values, "_without", lambda texts, wrong: made(texts, {**wrong, **{row + 1: "" for row in wrong}}))


def nulls_are_written_where_none_may_be() -> AbstractContextManager[Any]:
    return patch.object(json_schema._Node, "may_leave_out", False)


def alternatives_are_never_null() -> AbstractContextManager[Any]:
    made = json_schema._kinds
    return patch.object(json_schema, "_kinds", lambda schema, path: (made(schema, path)[0], False))


OF_FORMATS: tuple[tuple[str, Injected], ...] = (
    ("avro", a_null_records_texts_are_looked_at),
    ("avro", the_last_bad_value_is_not_reported),
    ("avro", skipped_fields_are_those_of_the_first_branch),
    ("protobuf", messages_are_given_on_as_they_came),
    ("protobuf", times_that_do_not_fit_are_others),
    ("protobuf", unknown_numbers_of_enums_are_the_first),
    ("json", what_closes_the_array_is_a_value),
    ("json", constants_are_numbers),
    ("json", text_that_is_not_utf8_is_text),
    ("json", a_bad_value_costs_those_beside_it),
    ("json schema", nulls_are_written_where_none_may_be),
    ("json schema", alternatives_are_never_null),
)
