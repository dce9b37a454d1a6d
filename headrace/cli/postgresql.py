"""`headrace postgresql`: what a source of a database's changes lacks there, and its slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace._extras import needs_extra
from headrace.cli.options import Json, Yes
from headrace.cli.output import Listing, confirm, note, show_all
from headrace.enumerator.errors import StateError

if TYPE_CHECKING:
    import psycopg

    from headrace.connectors.postgresql.catalog import Slot
    from headrace.connectors.postgresql.checks import Facts

postgresql_app = typer.Typer(
    no_args_is_help=True, help="Prepare a PostgreSQL for reading its changes, and look after its slots."
)

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="postgresql://user@host:5432/database, with libpq's parameters; PGPASSWORD has the password."
    ),
]


@postgresql_app.command(name="check")
def check_command(
    url: Url,
    *,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE", help="schema.table; * is any text, ? any character. May be repeated. Default: the publication's."
        ),
    ] = None,
    publication: Annotated[str, typer.Option(help="The publication to read.")] = "headrace",
    slot: Annotated[str | None, typer.Option(help="The source's slot, if it has one already.")] = None,
    as_json: Json = False,
) -> None:
    """Print what a source of changes lacks in a database, with the SQL that repairs it. Changes nothing.

    The role needs LOGIN, REPLICATION, USAGE on the tables' schemas and SELECT on their published columns. The publication is
    made by the tables' owner.
    Plain lines are `table` (table, rows by the server's estimate, primary key, replica identity), a table of the source; and
    `finding` (error or warning, subject, what is wrong, the SQL). Exit status 1 if there is an error.
    """
    with needs_extra("sql", "psycopg"):
        from headrace.connectors.postgresql.catalog import TablePattern
        from headrace.connectors.postgresql.checks import WantedSource, find_problems, read_facts

    facts = read_facts(url, WantedSource(tuple(map(TablePattern.parse, tables or ())), publication, slot))
    problems = find_problems(facts)
    rows = [(each.level, each.subject, each.what, each.fix) for each in problems]
    findings = Listing("finding", "Findings", ("level", "subject", "what", "fix"), rows)
    show_all([_tables(facts), findings], is_json=as_json)
    if any(each.level == "error" for each in problems):
        raise typer.Exit(1)
    note("no error")


def _tables(facts: Facts) -> Listing:
    rows = []
    for relation in facts.followed():
        table = facts.tables[relation.oid]
        estimate = None if relation.rows < 0 else int(relation.rows)
        rows.append((relation.full_name, estimate, ", ".join(table.key), table.identity))
    return Listing("table", "Tables", ("table", "rows", "key", "identity"), rows)


SLOT_COLUMNS = ("slot", "database", "active", "status", "retained bytes", "safe bytes", "xid age", "inactive s")


@postgresql_app.command(name="slots")
def slots_command(
    url: Url,
    *,
    drop: Annotated[str | None, typer.Option(metavar="NAME", help="Drop this slot, which no process may be using.")] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """List the slots of headrace's sources, in all databases of the server; with --drop, drop one.

    Plain lines are `slot` (name, database, active or idle, status, bytes of log that it retains, bytes that can be written
    before it may be lost, age in transactions, seconds without a reader). The status is PostgreSQL's wal_status, or why the
    server has invalidated it. The source of a slot that is dropped starts over with a snapshot.
    """
    with needs_extra("sql", "psycopg"):
        from headrace.connectors.postgresql.catalog import read_slots

    with _session(url) as connection:
        if drop is not None:
            _drop(connection, drop, yes=yes)
            return
        found = [slot for slot in read_slots(connection) if slot.is_ours]
    show_all([Listing("slot", "Slots", SLOT_COLUMNS, [_cells(slot) for slot in found])], is_json=as_json)


@contextmanager
def _session(url: str) -> Iterator[psycopg.Connection]:
    from headrace.connectors.postgresql.connection import connect, translated

    with connect(url) as connection, translated(url, "looking after slots"):
        yield connection


def _cells(slot: Slot) -> tuple[object, ...]:
    status = slot.invalidation_reason or slot.wal_status
    active = "active" if slot.is_active else "idle"
    return (slot.name, slot.database, active, status, slot.retained, slot.safe_wal_size, slot.xid_age, slot.inactive_s)


def _drop(connection: psycopg.Connection, name: str, *, yes: bool) -> None:
    from headrace.connectors.postgresql.catalog import check_slot_name, drop_slot, read_slot

    slot = read_slot(connection, check_slot_name(name))
    if slot is None:
        raise StateError(f"the server has no slot {name}")
    if slot.is_active:
        raise StateError(f"process {slot.active_pid} of the server is active on slot {name}: stop its source first")
    if not yes:
        confirm(f"Drop slot {name}? Its source loses all changes that it has not read, and starts over with a snapshot.")
    drop_slot(connection, name)
    note(f"dropped {name}")
