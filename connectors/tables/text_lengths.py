"""How many characters a column's texts may have: a field of a Delta table keeps VARCHAR(n) and CHAR(n) in its metadata.

Iceberg has no such types. Texts of CHAR are stored as they come, and padded where an engine that knows it writes rows again.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from headrace.enumerator.errors import UsageError

_DECLARED = b"__CHAR_VARCHAR_TYPE_STRING"
_PLAIN = re.compile(r"(?P<varying>var)?char\((?P<most>\d{1,10})\)", re.IGNORECASE)


def check_lengths(column: pa.Array, field: pa.Field, where: str) -> None:
    """Raise UsageError for texts of a column that are longer than its field declares them, in characters."""
    found = _PLAIN.fullmatch(_declared(field))
    if found is None:
        return
    longest = pc.max(pc.utf8_length(column)).as_py() or 0
    if longest > int(found["most"]):
        raise UsageError(
            f"{where}: column {field.name!r} is {found[0].upper()} in the table, and a row has a text of {longest} characters: "
            "shorten it, or declare the column longer"
        )


def is_char(field: pa.Field) -> bool:
    """Whether equal texts of a column may have another number of spaces at their ends."""
    found = _PLAIN.fullmatch(_declared(field))
    return found is not None and found["varying"] is None


def has_unchecked_lengths(field: pa.Field) -> bool:
    """Whether a column's field declares lengths that `check_lengths` does not see: of texts within a nested type."""
    if not _declared(field):
        return _declares_any(field.type)
    return _PLAIN.fullmatch(_declared(field)) is None or not types.is_string(field.type)


def _declared(field: pa.Field) -> str:
    found: bytes = (field.metadata or {}).get(_DECLARED, b"")
    return found.decode()


def _declares_any(kind: pa.DataType) -> bool:
    parts = map(kind.field, range(kind.num_fields))
    return any(_declared(part) or _declares_any(part.type) for part in parts)
