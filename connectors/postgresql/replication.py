"""A replication connection: the log of a logical slot, from a position on. The slot moves only by what the caller confirms."""

from __future__ import annotations

import re
import select
import struct
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, NoReturn

from psycopg import errors, pq
from psycopg.conninfo import make_conninfo

from headrace.connectors.postgresql.connection import parameters, shown, translated
from headrace.connectors.postgresql.errors import NEW_SNAPSHOT
from headrace.enumerator.errors import CorruptDataError, DataLossError, RetriableError, UsageError

RECEIVE_BYTES = 4 << 20
"""One call receives about this many bytes of messages at most."""
_FLOW_S = 0.01
"""Where much is here at once, so that more follows, a call gathers it for this many seconds: each batch has a cost."""
_FLOW_BYTES = 16 << 10
"""That is much."""
COMMAND_S = 30.0
"""Seconds within which the server must answer a command."""
SILENCE_S = 60.0
"""Seconds of waiting after which a server that has sent nothing is taken for gone; it is asked for an answer halfway."""
_CLOSE_S = 2.0

_VERSION_MESSAGES = 140000
_UNIX_2000 = 946_684_800
_XLOG_DATA, _KEEPALIVE = b"wk"
_XLOG_HEADER = struct.Struct(">cqqq")
_KEEPALIVE_MESSAGE = struct.Struct(">cqqB")
_STATUS = struct.Struct(">cqqqqB")
_NO_ANSWER, _ANSWER = 0, 1
# What the slot needs is gone: a segment of the log is removed, the slot is invalidated, there is no such slot.
_LOST = (errors.UndefinedFile, errors.ObjectNotInPrerequisiteState, errors.UndefinedObject)

_SLOT = """
    SELECT plugin, (confirmed_flush_lsn - '0/0')::bigint, wal_status, active_pid FROM pg_catalog.pg_replication_slots
    WHERE slot_name = {slot}
"""
_PUBLICATIONS = "SELECT pubname FROM pg_catalog.pg_publication WHERE pubname IN ({names})"
_WARNING_OF_A_GAP = b"55000"  # from 18 on; before, it is an error


class System(NamedTuple):
    """What the server says it is. `position` is the end of its log."""

    identifier: str
    timeline: int
    position: int


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes it: 16/B374D848."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Of PostgreSQL's text."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


class LogConnection:
    """The log of a slot of pgoutput. Not thread-safe. While it is open, no other connection can use the slot.

    `streaming="on"` has the server send large transactions while they run (PostgreSQL 14 and newer); a `Decoder` keeps them
    until they are committed. Errors are those of the tree; a password is in none.
    """

    def __init__(self, url: str, slot: str, publications: Sequence[str], streaming: Literal["off", "on"] = "off") -> None:
        self._url = url
        self._slot = slot
        self._publications = publications
        self._streaming = streaming
        self._connection: pq.abc.PGconn | None = None
        self._received = self._confirmed = self._passed = 0
        self._silent_s = 0.0
        self._has_asked = False
        self._gap: str | None = None

    @property
    def passed(self) -> int:
        """The server has sent all that was committed up to here, with the messages received so far.

        Between two transactions it may be confirmed like the end of one: so a slot moves over changes of other tables.
        """
        return self._passed

    def start(self, lsn: int, identifier: str | None = None, timeline: int | None = None) -> System:
        """Connect, and ask for what was committed after `lsn`; 0 is where the slot is. Again after a loss, for a new `Decoder`.

        `identifier` and `timeline`: those of the server that `lsn` is of, if they are known. Raises DataLossError for another
        server, if the slot is gone, was invalidated, or is past `lsn`, and if the server's log ends ahead of it, or left that
        timeline ahead of it; RetriableError while another connection uses the slot.
        """
        self.close()
        given = {**parameters(self._url), "replication": "database"}
        with self._translated():
            connection = pq.PGconn.connect(make_conninfo("", **given).encode())
            try:
                if connection.status != pq.ConnStatus.OK:
                    raise errors.OperationalError(pq.error_message(connection))
                connection.nonblocking = 1
                connection.notice_handler = self._noticed
                system = self._started(connection, lsn, identifier, timeline)
            except BaseException:
                connection.finish()
                raise
        self._connection = connection
        self._received = self._passed = lsn
        self._confirmed = 0  # what is before `lsn` was read, and need not be durable yet
        self._silent_s, self._has_asked, self._gap = 0.0, False, None
        return system

    def receive(self, timeout_s: float) -> list[bytes]:
        """The next messages (XLogData, with its header), waiting for the first one; none if there is none in time.

        Raises RetriableError when the connection is lost. Unless this or `keep_alive` is called within the server's
        wal_sender_timeout (60 s), it closes the connection.
        """
        deadline = time.monotonic() + timeout_s
        with self._translated():
            connection = self._open()
            try:
                return self._received_by(connection, deadline)
            except errors.UndefinedObject as error:
                raise self._lacking(str(error)) from error
            except _LOST as error:
                raise self._lost(error) from error

    def _received_by(self, connection: pq.abc.PGconn, deadline: float) -> list[bytes]:
        found: list[bytes] = []
        size = 0
        while True:
            connection.consume_input()
            is_first = not found
            size += self._buffered(connection, found, RECEIVE_BYTES - size)
            if self._gap is not None:
                raise self._lacking(self._gap)
            if found and is_first:
                deadline = min(deadline, time.monotonic() + _FLOW_S)
            left = deadline - time.monotonic()
            if found:
                if size >= RECEIVE_BYTES or not _wait(connection, left if size >= _FLOW_BYTES else 0.0):
                    return found
            elif left <= 0:
                return found
            else:
                self._wait_for_message(connection, left)

    def _noticed(self, notice: pq.abc.PGresult) -> None:
        """Of the server's warnings, the one of a publication that it has skipped."""
        if notice.error_field(pq.DiagnosticField.SQLSTATE) == _WARNING_OF_A_GAP:
            self._gap = pq.error_message(notice)

    def _lost(self, error: errors.Error) -> DataLossError:
        said = f"the slot {self._slot} of {shown(self._url)} cannot be read any more: {str(error).strip()}"
        return DataLossError(f"{said}. Drop it, and {NEW_SNAPSHOT}")

    def _lacking(self, said: str) -> DataLossError:
        return DataLossError(
            f"the slot {self._slot} of {shown(self._url)} is at a point where a publication did not exist, and changes are "
            f"missing from there on ({said.strip()}). Drop the slot, and {NEW_SNAPSHOT}"
        )

    def confirm(self, lsn: int) -> None:
        """What was committed up to `lsn` is durable: the slot may move there, and the server drop its log."""
        self._confirmed = max(self._confirmed, lsn)
        self.keep_alive()

    def keep_alive(self) -> None:
        """Report to the server that we are there."""
        with self._translated():
            self._send_status(self._open(), _NO_ANSWER)

    def close(self) -> None:
        """Release the slot, waiting for the server for 2 s at most, and close the connection."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.put_copy_end()
            deadline = time.monotonic() + _CLOSE_S
            while time.monotonic() < deadline:
                size, _ = connection.get_copy_data(1)
                if size < 0:
                    _results(connection, deadline)
                    break
                if size == 0:
                    _wait(connection, deadline - time.monotonic())
                    connection.consume_input()
        except (errors.Error, RetriableError):
            pass  # it is lost already, or the server does not answer
        finally:
            connection.finish()

    def _open(self) -> pq.abc.PGconn:
        if self._connection is None:
            raise UsageError(f"the connection of the slot {self._slot} is not started, or closed")
        return self._connection

    def _translated(self) -> AbstractContextManager[None]:
        return translated(self._url, f"reading the slot {self._slot}")

    def _started(self, connection: pq.abc.PGconn, lsn: int, identifier: str | None, timeline: int | None) -> System:
        found, current, position, _ = _row(_query(connection, "IDENTIFY_SYSTEM"))
        system = System(str(found), int(current or 0), lsn_number(str(position)))
        if identifier is not None and identifier != system.identifier:
            raise DataLossError(
                f"{shown(self._url)} is another cluster ({system.identifier}) than the one that was read up to {lsn_text(lsn)} "
                f"({identifier}): go back to that one, or {NEW_SNAPSHOT}"
            )
        self._check_slot(connection, lsn)
        if lsn > system.position:
            raise DataLossError(
                f"the log of {shown(self._url)} ends at {lsn_text(system.position)}, and was read up to {lsn_text(lsn)}: the "
                "server has lost the end of its log, as a promoted standby or a restored backup has, or it is another one. "
                f"So {NEW_SNAPSHOT}"
            )
        if timeline is not None and timeline != system.timeline:
            self._check_history(connection, system, lsn, timeline)
        known = _query(connection, _PUBLICATIONS.format(names=", ".join(map(_literal, self._publications))))
        missing = set(self._publications) - {_row(known, number)[0] for number in range(known.ntuples)}
        if missing:
            raise UsageError(f"{shown(self._url)} has no publication {', '.join(sorted(missing))}: create it, then the slot")
        version = 2 if self._streaming == "on" else 1
        options = {"proto_version": str(version), "publication_names": ",".join(map(_identifier, self._publications))}
        if self._streaming == "on":
            options["streaming"] = "on"
        if connection.server_version >= _VERSION_MESSAGES:
            options["messages"] = "true"
        listed = ", ".join(f"{name} {_literal(value)}" for name, value in options.items())
        command = f"START_REPLICATION SLOT {_identifier(self._slot)} LOGICAL {lsn_text(lsn)} ({listed})"
        try:
            _query(connection, command)
        except _LOST as error:
            self._check_slot(connection, lsn)
            raise self._lost(error) from error
        return system

    def _check_history(self, connection: pq.abc.PGconn, system: System, lsn: int, timeline: int) -> None:
        """Raise DataLossError unless the server's log went through `lsn` on that timeline, before it was promoted."""
        _, history = _row(_query(connection, f"TIMELINE_HISTORY {system.timeline}"))
        ends = dict(map(str.split, re.findall(r"^\d+\s+[0-9A-Fa-f]+/[0-9A-Fa-f]+", history or "", re.MULTILINE)))
        end = ends.get(str(timeline))
        if end is None or lsn > lsn_number(end):
            left = "was never on that timeline" if end is None else f"left that timeline at {end}"
            raise DataLossError(
                f"changes were read up to {lsn_text(lsn)} on timeline {timeline}, and {shown(self._url)}, on timeline "
                f"{system.timeline}, {left}: the server that was promoted has not had the last of them. So {NEW_SNAPSHOT}"
            )

    def _check_slot(self, connection: pq.abc.PGconn, lsn: int) -> None:
        """Raise DataLossError unless the slot still has what was committed after `lsn`."""
        result = _query(connection, _SLOT.format(slot=_literal(self._slot)))
        place = f"the slot {self._slot} of {shown(self._url)}"
        if result.ntuples == 0:
            raise DataLossError(f"{place} does not exist: changes since {lsn_text(lsn)} cannot be read. So {NEW_SNAPSHOT}")
        plugin, confirmed, wal_status, _ = _row(result)
        if plugin != "pgoutput":
            raise UsageError(f"{place} is of the plugin {plugin}, not pgoutput: name another slot")
        if wal_status == "lost":
            raise DataLossError(
                f"{place} was invalidated by the server: changes since {lsn_text(lsn)} are gone. A larger "
                f"max_slot_wal_keep_size lets the next one wait longer: drop it, and {NEW_SNAPSHOT}"
            )
        if confirmed is not None and 0 < lsn < int(confirmed):
            raise DataLossError(
                f"{place} is at {lsn_text(int(confirmed))}, and the next changes to read are those after {lsn_text(lsn)}: "
                "another reader has moved it, as where a query reads a frame twice (give each its slot, or use foreachBatch), "
                f"or it was made again. So {NEW_SNAPSHOT}"
            )

    def _buffered(self, connection: pq.abc.PGconn, found: list[bytes], most: int) -> int:
        """Add the messages that libpq has, up to about `most` bytes, which are returned; keepalives are answered."""
        size, heard = 0, False
        while size < most:
            length, data = connection.get_copy_data(1)
            if length == 0:
                break
            if length < 0:
                _ended(connection)
            heard = True
            if data[0] == _XLOG_DATA:
                found.append(bytes(data))
                size += length
            elif data[0] == _KEEPALIVE and length == _KEEPALIVE_MESSAGE.size:
                _, end, _, wants_answer = _KEEPALIVE_MESSAGE.unpack(data)
                self._passed = max(self._passed, end)
                if wants_answer:
                    self._send_status(connection, _NO_ANSWER)
            else:
                raise CorruptDataError(f"the log of {shown(self._url)} has a message of the kind {data[0]} and {length} bytes")
        if heard:
            self._silent_s, self._has_asked = 0.0, False
        if found and len(found[-1]) >= _XLOG_HEADER.size:
            _, start, end, _ = _XLOG_HEADER.unpack_from(found[-1])
            self._received = max(self._received, start, end)
        return size

    def _wait_for_message(self, connection: pq.abc.PGconn, left_s: float) -> None:
        """Raise RetriableError once the server is taken for gone."""
        if self._silent_s >= SILENCE_S:
            raise RetriableError(f"{shown(self._url)} has sent nothing for {SILENCE_S:g} s, though it was asked to")
        if self._silent_s >= SILENCE_S / 2 and not self._has_asked:
            self._has_asked = True
            self._send_status(connection, _ANSWER)
        started = time.monotonic()
        _wait(connection, min(left_s, SILENCE_S / 2))
        self._silent_s += time.monotonic() - started

    def _send_status(self, connection: pq.abc.PGconn, wants_answer: int) -> None:
        now = int((time.time() - _UNIX_2000) * 1_000_000)
        received = max(self._received, self._confirmed)
        status = _STATUS.pack(b"r", received, self._confirmed, self._confirmed, now, wants_answer)
        connection.put_copy_data(status)
        connection.flush()


def _ended(connection: pq.abc.PGconn) -> NoReturn:
    """The server has ended the log: by an error, or because it shuts down."""
    _results(connection, time.monotonic() + _CLOSE_S)
    raise RetriableError("the server has ended the connection")


def _query(connection: pq.abc.PGconn, command: str) -> pq.abc.PGresult:
    """Raises psycopg's errors, and RetriableError if there is no answer in time."""
    connection.send_query(command.encode())
    return _results(connection, time.monotonic() + COMMAND_S)


def _results(connection: pq.abc.PGconn, deadline: float) -> pq.abc.PGresult:
    """The last result of a command; that of a log that starts is the only one."""
    last: pq.abc.PGresult | None = None
    failed: errors.Error | None = None
    while True:
        while connection.flush() or connection.is_busy():
            if (left := deadline - time.monotonic()) <= 0:
                raise RetriableError(f"the server has not answered for {COMMAND_S:g} s")
            _wait(connection, left)
            connection.consume_input()
        result = connection.get_result()
        if result is None:
            break
        if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
            failed = errors.error_from_result(result, encoding="utf-8")
        last = result
        if result.status == pq.ExecStatus.COPY_BOTH:
            break
    if failed is not None:
        raise failed
    if last is None:
        raise errors.OperationalError(pq.error_message(connection))
    return last


def _wait(connection: pq.abc.PGconn, timeout_s: float) -> bool:
    """Until the server has sent something, or there is space for what is still to be sent. Whether that was in time."""
    poll = select.poll()
    poll.register(connection.socket, select.POLLIN | (select.POLLOUT if connection.flush() else 0))
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def _row(result: pq.abc.PGresult, number: int = 0) -> list[str | None]:
    values = (result.get_value(number, column) for column in range(result.nfields))
    return [None if value is None else value.decode() for value in values]


def _identifier(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _literal(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
