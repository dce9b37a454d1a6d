"""Commands about Delta and Iceberg tables: `headrace transactions` with `--delta` or `--iceberg`, and `headrace tables`.

A transaction's id is `<job>/<epoch>-<task>-<attempt>-<token>`, as its mark in the table's folder `_headrace` is named.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Yes, grouped, is_given, named_values
from headrace.cli.output import Listing, confirm, note, show
from headrace.connectors.base.jobs import check_job, is_one_off, is_part_of
from headrace.enumerator.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.connectors.tables.delta import DeltaSink
    from headrace.connectors.tables.iceberg import IcebergSink
    from headrace.connectors.tables.vacuum import JobState, OpenTransaction, TableUpkeep

tables_app = typer.Typer(no_args_is_help=True, help="Look after Delta and Iceberg tables that jobs write to.")

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table, and the options that name it."""

    sink: DeltaSink | IcebergSink
    where: str
    options: str

    @property
    def upkeep(self) -> TableUpkeep:
        """What the maintenance commands call."""
        from headrace.connectors.tables.vacuum import TableUpkeep

        return TableUpkeep(self.sink.log(), self.where)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options that name a table. A parameter of a command: see `grouped`."""

    delta: Annotated[
        str | None, typer.Option(help="A Delta table: a path, or an address as in s3://bucket/table.", metavar="URI")
    ] = None
    iceberg: Annotated[str | None, typer.Option(help="An Iceberg table.", metavar="NAMESPACE.TABLE")] = None
    table_properties: Annotated[
        list[str] | None,
        typer.Option(
            "--table-property",
            help="Of Iceberg's catalog (alongside PyIceberg's own configuration), or of Delta's store. May be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None

    def named(self, context: typer.Context, *shared: str) -> NamedTable | None:
        """The table that a command is about; None for a command about Kafka.

        `shared`: the names of parameters that it has for both. Raises UsageError for an option that is for the other: it would
        be ignored.
        """
        given = {name for name in context.params if is_given(context, name)}
        is_table = bool(given & {"delta", "iceberg"})
        own = {each.name for each in fields(self)}
        misplaced = given - {*own, *shared} if is_table else given & own
        if misplaced:
            option = next(found.opts[0] for found in context.command.params if found.name in misplaced)
            whose, other = ("Kafka", "a table") if is_table else ("tables", "Kafka")
            raise UsageError(f"{option} is for {whose}, and this is about {other}")
        return self.table() if is_table else None

    def table(self) -> NamedTable:
        """The one table that is named. Raises UsageError. No message shows a value of a property."""
        if (self.delta is None) == (self.iceberg is None):
            raise UsageError("give --delta or --iceberg")
        properties = named_values(self.table_properties, "--table-property")
        if self.delta is not None:
            from headrace.connectors.tables.delta import DeltaSink

            sink = DeltaSink(self.delta, storage_options=properties)
            return NamedTable(sink, sink.uri, f"--delta {self.delta}")
        from headrace.connectors.tables.iceberg import IcebergSink

        name = str(self.iceberg)
        return NamedTable(IcebergSink(name, properties), name, f"--iceberg {name}")


# --- list --------------------------------------------------------------------------------------------------------------


def id_of(item: OpenTransaction) -> str:
    return f"{item.job}/{item.place}"


def age_s(item: OpenTransaction, now_s: float) -> float | None:
    """By the store's clock and ours; None if the store does not say when the mark was made."""
    return None if item.since is None else max(0.0, now_s - item.since)


def _waiting(state: JobState) -> int:
    return 0 if state.commits is None else len(state.commits.handles)


def list_of_table(table: NamedTable) -> None:
    now_s = time.time()
    rows: list[Sequence[object]] = []
    for item in table.upkeep.transactions():
        epoch, task, attempt, _ = item.place.split("-", 3)
        rows.append((id_of(item), item.job, epoch, task, attempt, item.state.value, item.files, item.size, age_s(item, now_s)))
    columns = ("id", "job", "epoch", "task", "attempt", "state", "files", "bytes", "age s")
    show(Listing("transaction", "Transactions", columns, rows))
    jobs = [
        (each.job, each.epoch, "completed" if each.commits is None else "recorded", _waiting(each), each.drivers)
        for each in table.upkeep.jobs()
    ]
    show(Listing("list", f"Jobs of {table.where}", ("job", "epoch", "state", "to complete", "drivers"), jobs))


# --- commit ------------------------------------------------------------------------------------------------------------


def commit_to_table(table: NamedTable, jobs: Collection[str] | None) -> None:
    """Complete the recorded epochs of these jobs, or (None) of all. Raises typer.Exit if one fails."""
    from headrace.connectors.base.commit import JobCommitter

    known = {state.job: state for state in table.upkeep.jobs()}
    for job in jobs or ():
        if check_job(job) not in known:
            raise UsageError(f"{table.where}: job {job!r} has recorded nothing here")
    due = [state for job, state in known.items() if (jobs is None or job in jobs) and state.commits is not None]
    if not due:
        note("nothing to commit")
    rows, failures = [], 0
    for state in due:
        note(f"job {state.job}: completing epoch {state.epoch}; a driver of this job that is still running is fenced and fails")
        committer = JobCommitter(state.job, table.sink.committer(state.job), state.driver_id)
        try:
            committer.recover()
            if is_one_off(state.job):
                committer.forget()
        except HeadraceError as error:
            note(f"job {state.job}: {error}")
            failures += 1
        else:
            rows.append((state.job, state.epoch, _waiting(state), "deleted" if is_one_off(state.job) else "kept"))
    show(Listing("committed", "Completed", ("job", "epoch", "transactions", "list"), rows))
    if failures:
        raise typer.Exit(1)


# --- abort and vacuum --------------------------------------------------------------------------------------------------


def abort_in_table(table: NamedTable, ids: Sequence[str], job: str | None, *, yes: bool) -> None:
    """Remove these transactions' files, or those of all that the job has open. Raises typer.Exit unless all end up aborted."""
    from headrace.connectors.tables.vacuum import MarkState

    there = {id_of(item): item for item in table.upkeep.transactions()}
    names = ids or [name for name, item in there.items() if is_part_of(item.job, check_job(job or ""))]
    if not names:
        note(f"job {job} has no open transactions in the table")
    due = [there[name] for name in names if name in there and there[name].state is not MarkState.COMMITTED]
    if due and not yes:
        note("\n".join(map(id_of, due)))
        confirm(f"Abort {len(due)} transaction(s)? A driver of their jobs that is still running is fenced.")
    removed = _removed(table, due)
    rows = [(name, *_fate(name, there.get(name), removed, table)) for name in names]
    show(Listing("abort", "Abort", ("id", "result", "reason"), rows))
    if any(result == "refused" for _, result, _ in rows):
        raise typer.Exit(1)


def _fate(name: str, item: OpenTransaction | None, removed: Collection[str], table: NamedTable) -> tuple[str, str]:
    if name in removed:
        return "aborted", ""
    if item is None:
        return "refused", "there is no mark of it: it is committed and completed, or was never here"
    command = f"headrace transactions commit {table.options} --job {item.job}"
    return "refused", f"it is committed to the table, and its epoch has to be completed: {command}"


def _removed(table: NamedTable, due: Sequence[OpenTransaction]) -> set[str]:
    removed: set[str] = set()
    for job, items in groupby(sorted(due, key=id_of), key=lambda item: item.job):
        removed |= {f"{job}/{place}" for place in table.upkeep.remove(job, {item.place for item in items})}
    return removed


@tables_app.command()
@grouped
def vacuum(
    *,
    older_than: Annotated[float, typer.Option(help="Only what was started at least this many hours ago.", min=0.0)] = 24.0,
    yes: Yes = False,
    tables: TableOptions,
) -> None:
    """Remove files of epochs that were never committed, as a dead job leaves them. Without --yes it lists them and asks.

    A job that runs removes its own at its next commit: this is for those that do not run again. Files that are in the table, or
    that a compaction has replaced, are left alone: for these there is the table's own vacuum. A driver of the job that is still
    running is fenced. Plain lines are `removed` (id, files, bytes, age in s).
    """
    from headrace.connectors.tables.vacuum import MarkState

    table = tables.table()
    now_s = time.time()
    left = [item for item in table.upkeep.transactions() if item.state is not MarkState.COMMITTED]
    ageless = [item for item in left if item.since is None]
    if ageless:
        note(f"left alone, as the store does not say how old they are: {', '.join(map(id_of, ageless))}")
    due = [item for item in left if (age := age_s(item, now_s)) is not None and age >= older_than * HOUR_S]
    if not due:
        note(f"nothing to remove: {len(left)} transaction(s) are open, none for {older_than:g} hours")
    elif not yes:
        note("\n".join(f"{id_of(item)}: {item.files} file(s), {item.size} bytes" for item in due))
        confirm(f"Remove the files of {len(due)} transaction(s)? A driver of their jobs that is still running is fenced.")
    removed = _removed(table, due)
    rows = [(id_of(item), item.files, item.size, age_s(item, now_s)) for item in due if id_of(item) in removed]
    show(Listing("removed", "Removed", ("id", "files", "bytes", "age s"), rows))
