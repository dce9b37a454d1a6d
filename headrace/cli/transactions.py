"""`headrace transactions`: list, describe, abort and commit the transactions of exactly-once jobs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.durable_lists import DurableLists, read_lists
from headrace.cli.options import ClientOptions, CommitTopic, Prefix, Yes, connect, grouped
from headrace.cli.output import Listing, confirm, instant, note, progress, show
from headrace.cli.tables import TableOptions, abort_in_table, commit_to_table, list_of_table
from headrace.connectors.base.jobs import check_job, is_one_off, is_part_of
from headrace.connectors.kafka.write.names import (
    DEFAULT_COMMIT_TOPIC,
    DEFAULT_PREFIX,
    EACH_ROWS_TOPIC,
    Role,
    parse_key,
    parse_name,
)
from headrace.enumerator.errors import HeadraceError, StateError, UsageError

if TYPE_CHECKING:
    from headrace.connectors.base.sink import Committer
    from headrace.connectors.kafka.write.handles import KafkaHandle
    from headrace.connectors.kafka.write.sink import KafkaSink
    from headrace.connectors.kafka.write.transactions import TransactionDescription, Transactions

transactions_app = typer.Typer(no_args_is_help=True, help="Inspect and end the transactions of exactly-once writes.")

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence")


def parse_state(text: str) -> str:
    """Kafka's name of a state; case is ignored. Raises UsageError."""
    found = next((state for state in STATES if state.lower() == text.lower()), None)
    if found is None:
        raise UsageError(f"there is no state {text!r}; the states are {', '.join(STATES)}")
    return found


# --- list and describe -------------------------------------------------------------------------------------------------

TRANSACTION_COLUMNS = ("id", "job", "slot", "task", "attempt", "state", "producer id", "producer epoch", "age s", "timeout s")
LIST_COLUMNS = ("job", "epoch", "state", "to commit", "prefix", "destination", "driver")


def transaction_row(transactional_id: str, found: TransactionDescription | None, now_ms: int) -> Sequence[object]:
    """The cells of TRANSACTION_COLUMNS. For driver and repair the role replaces the task number."""
    name = parse_name(transactional_id)
    of_name = (name.job, name.slot, name.task if name.role is Role.TASK else name.role, name.attempt) if name else (None,) * 4
    if found is None:
        return (transactional_id, *of_name, "unknown", None, None, None, None)
    age = None if found.started_ms is None else max(0, now_ms - found.started_ms) / 1000
    producer = found.producer
    return (transactional_id, *of_name, found.state, producer.producer_id, producer.epoch, age, found.timeout_ms / 1000)


def list_rows(lists: DurableLists) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    for key, commits in lists.lists.items():
        found, state = parse_key(key), "completed" if commits.completed else "recorded"
        driver = None if commits.claim is None else commits.claim.driver_id or "given back"
        rows.append((found.job, commits.epoch, state, len(commits.handles), found.prefix, commits.destination, driver))
    for key, reason in lists.unreadable.items():
        rows.append((parse_key(key).job, None, f"unreadable: {reason}", None, parse_key(key).prefix, None, None))
    return rows


@transactions_app.command(name="list")
@grouped
def list_command(
    context: typer.Context,
    *,
    prefix: Prefix = DEFAULT_PREFIX,
    state: Annotated[
        list[str] | None, typer.Option(help="Only transactions in this state, such as Ongoing. May be repeated.")
    ] = None,
    commit_topic: CommitTopic = DEFAULT_COMMIT_TOPIC,
    client: ClientOptions,
    tables: TableOptions,
) -> None:
    """List transactional ids and the stored lists of committables. `--prefix ""` lists every id of the cluster.

    Plain lines are `transaction` (id, job, slot, task, attempt, state, producer id, producer epoch, age in s, timeout in s) and
    `list` (job, epoch, completed or recorded, number of transactions to commit, prefix, destination, the supervised driver that
    has claimed the job).
    With `--delta` or `--iceberg`: `transaction` (id, job, epoch, task, attempt, state, files, bytes, age in s) and `list` (job,
    epoch, completed or recorded, number of transactions to complete, number of drivers so far).
    """
    if (table := tables.named(context)) is not None:
        list_of_table(table)
        return
    from headrace.connectors.kafka.write.transactions import Transactions

    states = [parse_state(text) for text in state or ()]
    cluster = client.connect()
    transactions = Transactions(cluster)
    listed = transactions.listing(f"{prefix}." if prefix else "", states)
    rows = []
    with progress("describing", len(listed)) as advance:
        for item in listed:
            found = transactions.describe([item.transactional_id])[item.transactional_id]
            rows.append(transaction_row(item.transactional_id, found, time.time_ns() // 1_000_000))
            advance(1)
    show(Listing("transaction", "Transactions", TRANSACTION_COLUMNS, rows))
    lists = list_rows(read_lists(cluster, commit_topic))
    show(Listing("list", f"Lists of committables in {commit_topic}", LIST_COLUMNS, lists))


def description_rows(found: TransactionDescription, lists: DurableLists, now_ms: int) -> list[Sequence[object]]:
    name = parse_name(found.producer.transactional_id or "")
    holder = lists.holder(found.producer.transactional_id or "")
    return [
        ("id", found.producer.transactional_id),
        ("job", name and name.job),
        ("role", name and name.role),
        ("epoch slot", name and name.slot),
        ("task", name and name.task),
        ("attempt", name and name.attempt),
        ("state", found.state),
        ("producer id", found.producer.producer_id),
        ("producer epoch", found.producer.epoch),
        ("timeout s", found.timeout_ms / 1000),
        ("started", instant(found.started_ms)),
        ("age s", None if found.started_ms is None else max(0, now_ms - found.started_ms) / 1000),
        ("partitions", ", ".join(f"{topic}-{partition}" for topic, partition in sorted(found.partitions))),
        ("list of committables", "not named" if holder is None else f"named by job {holder[0]}, epoch {holder[1]}"),
    ]


@transactions_app.command()
@grouped
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="ID")],
    *,
    commit_topic: CommitTopic = DEFAULT_COMMIT_TOPIC,
    client: ClientOptions,
) -> None:
    """Print what the coordinator knows about a transactional id, and whether a list of committables names it."""
    from headrace.connectors.kafka.write.transactions import Transactions

    cluster = client.connect()
    found = Transactions(cluster).describe([transactional_id])[transactional_id]
    if found is None:
        raise StateError(f"no coordinator knows the transactional id {transactional_id!r}: never used, or expired")
    rows = description_rows(found, read_lists(cluster, commit_topic), time.time_ns() // 1_000_000)
    show(Listing("field", transactional_id, ("", ""), rows))


# --- abort -------------------------------------------------------------------------------------------------------------


class AbortDecision(Enum):
    """What happens to a transaction that was named for an abort."""

    ABORT = "abort"
    ABORTED = "aborted"  # already
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Planned:
    """One transactional id, the decision, and its reason."""

    transactional_id: str
    decision: AbortDecision
    reason: str = ""


def plan_abort(described: Mapping[str, TransactionDescription | None], lists: DurableLists) -> list[Planned]:
    """Refuse those that are, or may be, on a list of committables: readers may already have seen others of that epoch."""
    return [Planned(name, *_decided(name, found, lists)) for name, found in described.items()]


def _decided(transactional_id: str, found: TransactionDescription | None, lists: DurableLists) -> tuple[AbortDecision, str]:
    holder, name = lists.holder(transactional_id), parse_name(transactional_id)
    if holder is not None:
        job, epoch = holder
        command = completing_command(job, name.prefix if name else DEFAULT_PREFIX, lists.topic)
        reason = f"it is on the list of committables of job {job}, epoch {epoch}, and must be committed: {command}"
    elif name is not None and (unread := lists.unreadable_of(name)):
        reason = f"the list of committables of its job may name it, and cannot be read: {unread}"
    elif found is None:
        reason = "no coordinator knows it: never used, or expired"
    elif found.is_ongoing:
        return AbortDecision.ABORT, ""
    elif found.is_aborted:
        return AbortDecision.ABORTED, f"it is {found.state} already"
    else:
        reason = f"it is {found.state}: there is no open transaction"
    return AbortDecision.REFUSED, reason


def completing_command(job: str, prefix: str, commit_topic: str) -> str:
    of_prefix = f" --prefix {prefix}" if prefix != DEFAULT_PREFIX else ""
    of_topic = f" --commit-topic {commit_topic}" if commit_topic != DEFAULT_COMMIT_TOPIC else ""
    return f"headrace transactions commit --job {job}{of_prefix}{of_topic}"


def abort_one(transactions: Transactions, found: TransactionDescription) -> Planned:
    """Abort it and return the outcome: it may have been ended or claimed since it was described."""
    from headrace.connectors.kafka.write.transactions import Answer

    name = found.producer.transactional_id or ""
    match transactions.abort(found.producer, transactions.protocol(), found.timeout_ms):
        case Answer.DONE:
            return Planned(name, AbortDecision.ABORTED)
        case Answer.REFUSED:
            return Planned(name, AbortDecision.REFUSED, "it was ended by another client in the meantime")
        case Answer.UNKNOWN:
            return Planned(name, AbortDecision.REFUSED, "another producer has claimed its id in the meantime")


@transactions_app.command()
@grouped
def abort(
    context: typer.Context,
    transactional_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...")] = None,
    *,
    job: Annotated[
        str | None, typer.Option(help="All open transactions of this job, or run of headrace run, instead of ids.")
    ] = None,
    prefix: Prefix = DEFAULT_PREFIX,
    commit_topic: CommitTopic = DEFAULT_COMMIT_TOPIC,
    yes: Yes = False,
    client: ClientOptions,
    tables: TableOptions,
) -> None:
    """Abort open transactions; their records never become visible. Stop the job's driver first, or it writes them again.

    Of a table (`--delta`, `--iceberg`) their files are removed, and a driver of the job is fenced. A transaction on a list of
    committables is refused: it must be committed. Exit status 1 unless every id ends up aborted.
    """
    from headrace.connectors.kafka.write.transactions import Transactions

    if bool(transactional_ids) == bool(job):
        raise UsageError("give transactional ids, or --job, and not both")
    if (table := tables.named(context, "transactional_ids", "job", "yes")) is not None:
        abort_in_table(table, transactional_ids or (), job, yes=yes)
        return
    cluster = client.connect()
    transactions = Transactions(cluster)
    names = transactional_ids or _open_of(transactions, prefix, job or "")
    if not names:
        note(f"job {job} has no open transactions of the prefix {prefix}")

    def plan() -> tuple[dict[str, TransactionDescription | None], list[Planned]]:
        known = transactions.describe(dict.fromkeys(names))
        return known, plan_abort(known, read_lists(cluster, commit_topic))

    described, planned = plan()
    due = [item.transactional_id for item in planned if item.decision is AbortDecision.ABORT]
    if due and not yes:
        note("\n".join(due))
        confirm(f"Abort {len(due)} transaction(s)?")
        described, planned = plan()  # meanwhile a driver may have put them on its list
    ended = []
    for item in planned:
        found = described[item.transactional_id]
        ended.append(abort_one(transactions, found) if item.decision is AbortDecision.ABORT and found else item)
    rows = [(item.transactional_id, item.decision.value, item.reason) for item in ended]
    show(Listing("abort", "Abort", ("id", "result", "reason"), rows))
    if any(item.decision is AbortDecision.REFUSED for item in ended):
        raise typer.Exit(1)


def _open_of(transactions: Transactions, prefix: str, job: str) -> list[str]:
    """All but the driver's own transaction, which guards the stored list and is open for milliseconds."""
    of_job = f"{check_job(prefix)}.{check_job(job)}"
    found = [(name, parse_name(name)) for name in transactions.ongoing(of_job)]
    foreign = [name for name, parsed in found if parsed is None and name.startswith(f"{of_job}.")]
    own = [name for name, parsed in found if parsed and parsed.role is not Role.DRIVER and is_part_of(parsed.job, job)]
    return sorted(foreign + own)


# --- commit ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Completion:
    """A list that must be completed, and its number of transactions. `forget`: it is deleted afterwards.

    `topic`: None when each row names its own. `driver_id`: of the supervised driver who owns the job, for which it is done.
    """

    job: str
    epoch: int
    transactions: int
    forget: bool
    topic: str | None = None
    driver_id: str | None = None


def kafka_sink(given: dict[str, str], prefix: str, commit_topic: str) -> KafkaSink:
    """What a job with this prefix and commit topic writes by. No I/O. No call waits for more than a minute: a user waits."""
    from headrace.connectors.kafka.write.sink import KafkaSink

    servers = given["bootstrap.servers"]
    return KafkaSink(servers, properties=given, transactional_id_prefix=prefix, commit_topic=commit_topic).bounded()


def plan_commit(lists: DurableLists, jobs: Collection[str] | None, prefix: str) -> list[Completion]:
    """The lists to complete: of these jobs, or (None) of all jobs whose transactions have the prefix.

    Raises StateError for a named job without a list, with an unreadable one, or with another prefix: its driver would then
    have another id and would not be fenced.
    """
    for job in jobs or ():
        _refuse_unknown(lists, job, prefix)
    completions = []
    for key, commits in lists.lists.items():
        job, one_off = parse_key(key).job, is_one_off(parse_key(key).job)
        is_due = not commits.completed or (one_off and jobs is not None)
        is_asked_for = (jobs is None or job in jobs) and parse_key(key).prefix == prefix
        if is_due and is_asked_for and commits.epoch is not None:
            topic = None if commits.destination == EACH_ROWS_TOPIC else commits.destination
            owner = None if commits.claim is None else commits.claim.driver_id
            completions.append(Completion(job, commits.epoch, len(commits.handles), one_off, topic, owner))
    return completions


def _refuse_unknown(lists: DurableLists, job: str, prefix: str) -> None:
    """Raise StateError unless the job has a list of this prefix, and all of its lists can be read."""
    unreadable = [reason for key, reason in lists.unreadable.items() if parse_key(key).job == job]
    if unreadable:
        raise StateError("; ".join(unreadable))
    own = {key: commits for key, commits in lists.lists.items() if parse_key(key).job == job}
    if not own:
        there = ", ".join(sorted({parse_key(key).job for key in lists.lists})) or "none"
        raise StateError(f"job {job!r} has no list of committables in {lists.topic}; jobs that have one: {there}")
    prefixes = {str(parse_key(key).prefix) for key in own}
    if prefix not in prefixes:
        raise StateError(f"the transactions of job {job} have another prefix: use --prefix {' or '.join(sorted(prefixes))}")


def complete(completion: Completion, sinks_committer: Committer[KafkaHandle]) -> None:
    """Commit the list, repair what timed out, abort the others. Raises DataLossError, FencedError, PeerError. Repeatable."""
    from headrace.connectors.base.commit import JobCommitter

    committer = JobCommitter(completion.job, sinks_committer, completion.driver_id)
    try:
        committer.recover()
        if completion.forget:
            committer.forget()
    finally:
        committer.close()


@transactions_app.command()
@grouped
def commit(
    context: typer.Context,
    *,
    job: Annotated[list[str] | None, typer.Option(help="The job whose list to complete. May be repeated.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every job of the prefix with an incomplete list.")] = False,
    prefix: Prefix = DEFAULT_PREFIX,
    commit_topic: CommitTopic = DEFAULT_COMMIT_TOPIC,
    client: ClientOptions,
    tables: TableOptions,
) -> None:
    """Complete lists of committables, as the job's next start would: for a write whose driver died during its commit.

    A driver of the job that is still running is fenced and fails, although its epoch is committed. The job's other open
    transactions are aborted. The list of a one-off batch write (job `batch-...`) is deleted afterwards.
    """
    if bool(job) == every:
        raise UsageError("give --job or --all")
    if (table := tables.named(context, "job", "every")) is not None:
        commit_to_table(table, job or None)
        return
    sink = kafka_sink(client.client_properties(), prefix, commit_topic)
    lists = read_lists(connect(sink.config), commit_topic)
    completions = plan_commit(lists, job or None, prefix)
    if every:
        for reason in lists.unreadable.values():
            note(f"skipped: {reason}")
        for found in map(parse_key, lists.incomplete()):
            if found.prefix != prefix:
                note(f"skipped: job {found.job} needs --prefix {found.prefix}")
    if not completions:
        note("nothing to commit")
    rows, failures = [], 0
    for item in completions:
        note(f"job {item.job}: completing epoch {item.epoch}; a driver of this job that is still running is fenced and fails")
        try:
            complete(item, replace(sink, topic=item.topic).committer(item.job))
        except HeadraceError as error:
            failures += 1
            note(f"job {item.job}: {error}")
        else:
            rows.append((item.job, item.epoch, item.transactions, "deleted" if item.forget else "kept"))
    show(Listing("committed", "Completed", ("job", "epoch", "transactions", "list"), rows))
    if failures:
        raise typer.Exit(1)
