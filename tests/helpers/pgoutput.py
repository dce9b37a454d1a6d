"""Messages of pgoutput, written by hand: what a server sends, in XLogData. The decoder uncompiled."""

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.connectors.postgresql import pgoutput as compiled
from tests.helpers.decode_twin import load

uncompiled = load(compiled)
Value = bytes | None | type(...)  # a text, a null, unchanged

YEAR_2000 = 946_684_800_000_000
OID, XID, LSN = 7, 77, 0x1_0000_0000
COLUMNS = (("id", 23, True), ("name", 25, False), ("data", 25, False))


def xlog(body: bytes, lsn: int = LSN) -> bytes:
    return b"w" + struct.pack(">qqq", lsn, lsn, 0) + body


def text(name: str) -> bytes:
    return name.encode() + b"\0"


def start(xid: int = XID, time: int = 5, lsn: int = LSN) -> bytes:
    return xlog(b"B" + struct.pack(">qqI", LSN, time, xid), lsn)


def commit(end: int = LSN + 100) -> bytes:
    return xlog(b"C\0" + struct.pack(">qqq", end - 8, end, 5), end)


def in_stream(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def relation(
    columns: Sequence[tuple[str, int, bool]] = COLUMNS,
    identity: str = "d",
    oid: int = OID,
    name: str = "items",
    xid: int | None = None,
) -> bytes:
    listed = b"".join(bytes([in_key]) + text(column) + struct.pack(">Ii", kind, -1) for column, kind, in_key in columns)
    head = struct.pack(">I", oid) + text("public") + text(name) + identity.encode() + struct.pack(">h", len(columns))
    return xlog(b"R" + in_stream(xid) + head + listed)


def row(values: Sequence[Any]) -> bytes:
    def part(value: Any) -> bytes:
        if value is None:
            return b"n"
        return b"u" if value is ... else b"t" + struct.pack(">I", len(value)) + value

    return struct.pack(">h", len(values)) + b"".join(map(part, values))


def insert(*values: Any, lsn: int = LSN, oid: int = OID, xid: int | None = None) -> bytes:
    return xlog(b"I" + in_stream(xid) + struct.pack(">I", oid) + b"N" + row(values), lsn)


def update(new: Sequence[Any], old: Sequence[Any] | None = None, kind: bytes = b"K", lsn: int = LSN, oid: int = OID) -> bytes:
    before = b"" if old is None else kind + row(old)
    return xlog(b"U" + struct.pack(">I", oid) + before + b"N" + row(new), lsn)


def delete(*old: Any, kind: bytes = b"K", lsn: int = LSN, oid: int = OID) -> bytes:
    return xlog(b"D" + struct.pack(">I", oid) + kind + row(old), lsn)


def truncate(*oids: int, lsn: int = LSN) -> bytes:
    return xlog(b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids), lsn)


def message(prefix: str, content: bytes, flags: int = 0) -> bytes:
    return xlog(b"M" + bytes([flags]) + struct.pack(">q", LSN) + text(prefix) + struct.pack(">I", len(content)) + content)


def stream_start(xid: int, is_first: int = 1) -> bytes:
    return xlog(b"S" + struct.pack(">IB", xid, is_first))


def stream_stop() -> bytes:
    return xlog(b"E")


def stream_commit(xid: int, end: int = LSN + 100) -> bytes:
    return xlog(b"c" + struct.pack(">IBqqq", xid, 0, end - 8, end, 5))


def stream_abort(xid: int, subtransaction: int) -> bytes:
    return xlog(b"A" + struct.pack(">II", xid, subtransaction))


def plain(value: Any) -> Any:
    """What a decoder gives, as Python's own values, so that those of two modules compare."""
    if isinstance(value, pa.Array):
        value.validate(full=True)
        return value.to_pylist() if not pa.types.is_timestamp(value.type) else value.cast(pa.int64()).to_pylist()
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return value
