"""Formats without structure: bytes as they are, and UTF-8 text."""

from __future__ import annotations

import pyarrow as pa

from headrace.connectors.base.nested import plain
from headrace.connectors.formats.value_format import BadValue, DecodedValues, ValueFormat, as_binary, is_text, without
from headrace.enumerator.errors import UsageError


class BytesFormat(ValueFormat):
    """Bytes as they are: nothing is bad."""

    @property
    def arrow_type(self) -> pa.DataType:
        """Arrow's `binary`."""
        return pa.binary()

    def decode(self, values: pa.Array) -> DecodedValues:
        """The same column."""
        return DecodedValues(as_binary(values), [])

    def encode(self, values: pa.Array) -> pa.Array:
        """The same column."""
        return as_binary(plain(values))


class StringFormat(ValueFormat):
    """UTF-8 text. A value that is not UTF-8 is bad."""

    @property
    def arrow_type(self) -> pa.DataType:
        """Arrow's `string`."""
        return pa.string()

    def decode(self, values: pa.Array) -> DecodedValues:
        """As `ValueFormat` says."""
        binary = as_binary(values)
        try:
            return DecodedValues(binary.cast(pa.string()), [])
        except pa.ArrowInvalid:
            bad = [index for index, value in enumerate(binary.to_pylist()) if value is not None and not is_text(value)]
        good = without(binary, bad)
        return DecodedValues(good.cast(pa.string()), [BadValue(index, "text is not UTF-8") for index in bad])

    def encode(self, values: pa.Array) -> pa.Array:
        """As `ValueFormat` says."""
        try:
            return plain(values).cast(pa.string()).cast(pa.binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"a column of {values.type} is not text: {error}") from error
