"""PostgreSQL's errors in our tree, by SQLSTATE. For the sinks too, which reach the server by SQLAlchemy."""

from __future__ import annotations

import re

from headrace.enumerator.errors import AuthenticationError, HeadraceError, RetriableError, UnclassifiedError, UsageError

NEW_SNAPSHOT = "take a new snapshot: a new slot, no checkpoint, an empty table. In one with rows, deleted ones would stay"
"""What is advised for a job that has lost changes."""

NO_LIMITS = (
    "SELECT set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name IN "
    "('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')"
)
"""For a session whose statement or transaction lasts as long as an epoch or a large table: the limits of a role would end each
attempt at it. Which of them there are depends on the server's version."""

DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
"""For a session that writes: what does not wait for the disk is undone by a crash, and no job would write it again. A stronger
wait stays as it is."""

# By the longest prefix of the SQLSTATE. A value or a row that the table refuses is the caller's.
_STATES: dict[str, type[HeadraceError]] = {
    "08": RetriableError,  # connection lost
    "0A": UsageError,  # not supported
    "0L": AuthenticationError,
    "0P": AuthenticationError,
    "21": UsageError,  # a subquery of a trigger with many rows
    "22": UsageError,  # a value that cannot be stored
    "23": UsageError,  # a constraint, or no partition for the row
    "25006": RetriableError,  # read-only: a standby, until it is promoted
    "25P03": RetriableError,  # idle in a transaction for too long
    "25P04": RetriableError,  # a transaction that took too long
    "26": UsageError,  # no such prepared statement: of another session
    "28": AuthenticationError,
    "2F": UsageError,  # a function or trigger
    "38": UsageError,  # the same, in another language
    "39": UsageError,
    "3D": UsageError,  # no such database
    "3F": UsageError,  # no such schema
    "40": RetriableError,  # deadlock, serialization failure
    "42": UsageError,  # no such table or column, a generated column
    "42501": AuthenticationError,  # insufficient privilege
    "44": UsageError,  # a view's WITH CHECK OPTION
    "53": RetriableError,  # out of connections, prepared transactions, memory, disk
    "54": UsageError,  # a row that is too large
    "55": UsageError,  # not in the state that is needed
    "55006": RetriableError,  # object in use
    "55P03": RetriableError,  # lock timeout
    "57": RetriableError,  # shutting down, statement timeout
    "57P04": UsageError,  # the database was dropped
    "P0": UsageError,  # RAISE in a trigger
}

# What happens while psycopg connects has no SQLSTATE. What the address says wrong stays wrong.
_IN_ADDRESS = (
    'database ".*" does not exist',
    "(invalid|bad) .*(value|option|argument)|invalid (port number|SSL protocol version|SCRAM)|could not parse network address",
    "could not match [0-9]+|weak sslmode|required,? but|but (SSL|it) was required|did not request an SSL",
    "authentication method requirement .* failed",
    "unrecognized configuration parameter|FATAL: +-.* requires a value",
    "certificate (file|verify failed)|certificate .*does not match|private key|alert .*(certificate|unknown ca)",
    '(service file|definition of service) ".*" not found|in service file',
)
_CONNECTING: tuple[tuple[str, type[HeadraceError]], ...] = (
    *((pattern, UsageError) for pattern in _IN_ADDRESS),
    ("authentication failed|no password supplied|no pg_hba.conf entry|does not exist|permission denied", AuthenticationError),
    ("must be superuser or replication role", AuthenticationError),  # 15 and older: the right to replicate is missing
)


def kind_of_state(state: str) -> type[HeadraceError]:
    """What the table does not have is an UnclassifiedError."""
    return next((_STATES[state[:length]] for length in (5, 2) if state[:length] in _STATES), UnclassifiedError)


def kind_while_connecting(text: str, other: type[HeadraceError] = RetriableError) -> type[HeadraceError]:
    """Of an error without a SQLSTATE, by what libpq or the server says."""
    return next((kind for pattern, kind in _CONNECTING if re.search(pattern, text)), other)
