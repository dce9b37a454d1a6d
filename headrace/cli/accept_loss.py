"""`headrace transactions accept-loss` and `forget`: for a job that cannot continue by itself."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from headrace.cli.durable_lists import DurableLists, read_lists
from headrace.cli.options import ClientOptions, CommitTopic, Prefix, Yes, connect, grouped
from headrace.cli.output import Listing, confirm, note, show
from headrace.cli.transactions import complete, kafka_sink, plan_commit
from headrace.connectors.base.jobs import check_job, is_part_of, owner_of
from headrace.connectors.kafka.write import names
from headrace.enumerator.errors import StateError

Job = Annotated[str, typer.Option(help="The job that cannot continue. Stop it first.")]


@grouped
def accept_loss(
    *,
    job: Job,
    prefix: Prefix = names.DEFAULT_PREFIX,
    commit_topic: CommitTopic = names.DEFAULT_COMMIT_TOPIC,
    yes: Yes = False,
    client: ClientOptions,
) -> None:
    """Complete a job's list without the records that are lost, for a job that stops with a DataLossError at every start.

    That is: its transactions timed out before they were committed, and retention, or who deleted the topic, has taken their
    records since. Whatever can still be committed or copied is; the rest never becomes visible, the job does not write it
    again, and continues with its next epoch. Prints one `loss` for each range of offsets that is given up (job, topic,
    partition, first and last offset, records, reason): keep it, nothing else names them afterwards.
    """
    from headrace.connectors.kafka.write.accept_loss import LossAccepting

    sink = kafka_sink(client.client_properties(), prefix, commit_topic)
    cluster = connect(sink.config)
    due = plan_commit(read_lists(cluster, commit_topic), [job], prefix)
    if not due:
        note(f"nothing to accept: every list of job {job} is completed")
        return
    for item in due:
        note(f"job {job}, epoch {item.epoch}: {item.transactions} transaction(s) to {item.topic or 'topics of its rows'}")
    if not yes:
        confirm("Give up for good whatever of these can be neither committed nor copied?")
    rows: list[Sequence[object]] = []
    for item in due:
        accepting = LossAccepting(replace(sink, topic=item.topic).committer(job), cluster)
        complete(item, accepting)
        for lost in accepting.losses:
            gone = lost.written
            rows.append((job, gone.topic, gone.partition, gone.first, gone.last, gone.records, lost.reason))
    columns = ("job", "topic", "partition", "first offset", "last offset", "records", "reason")
    show(Listing("loss", "Given up", columns, rows))
    if not rows:
        note("nothing was lost: the lists are completed")


@grouped
def forget(
    *,
    job: Job,
    topic: Annotated[list[str] | None, typer.Option(help="A topic that it writes to and that was deleted. Repeatable.")] = None,
    prefix: Prefix = names.DEFAULT_PREFIX,
    commit_topic: CommitTopic = names.DEFAULT_COMMIT_TOPIC,
    yes: Yes = False,
    client: ClientOptions,
) -> None:
    """Delete what is recorded of a job: for one whose list cannot be read, or was lost with its commit topic.

    Its open transactions are aborted, also those that its list names. At its next start the job has written nothing: an epoch
    that it repeats is written again, and what readers have of it already they get twice. What its list names and was not
    committed is lost if the job does not repeat it. Where a list can be read, see `commit` and `accept-loss` first.
    """
    from headrace.connectors.kafka.write.transactions import Transactions

    sink = kafka_sink(client.client_properties(), prefix, commit_topic)
    cluster = connect(sink.config)
    lists = read_lists(cluster, commit_topic)
    ids = [found.transactional_id for found in Transactions(cluster).listing(f"{prefix}.{check_job(job)}")]
    candidates = {names.EACH_ROWS_TOPIC, *(topic or ()), *cluster.topics(re.compile(".*"))}
    digests = recorded_digests(lists, ids, prefix, job)
    destinations = {part: known_destinations(own, candidates) for part, own in sorted(digests.items())}
    if not destinations:
        raise StateError(
            f"nothing is known of job {job} with the prefix {prefix}: no list in {commit_topic}, no transactional id"
        )
    for key, commits in lists.lists.items():
        if is_part_of(found := names.parse_key(key).job, job):
            state = "completed" if commits.completed else f"{len(commits.handles)} transaction(s) NOT committed yet"
            note(f"job {found}, epoch {commits.epoch} to {commits.destination}: {state}")
    note("it has written to: " + ", ".join(sorted({place for places in destinations.values() for place in places})))
    if not yes:
        confirm(f"Forget what is recorded of job {job}, and abort what it has open?")
    rows = []
    for part, places in destinations.items():
        for destination in places:
            committer = replace(sink, topic=None if destination == names.EACH_ROWS_TOPIC else destination).committer(part)
            if part == job or owner_of(part) == part:
                committer.start_over()
                rows.append((part, destination))
            else:  # a worker's, which has recorded nothing itself
                committer.clean_up(())
    show(Listing("forgotten", "Forgotten", ("job", "destination"), rows))


def recorded_digests(
    lists: DurableLists, transactional_ids: Collection[str], prefix: str, job: str
) -> Mapping[str, Collection[str]]:
    """The digests of destinations by job: of this one, of those that write for it, and of those that record for these.

    By lists, readable or not, and by the ids that coordinators know.
    """
    keys = [names.parse_key(key) for key in (*lists.lists, *lists.unreadable)]
    known = {(key.prefix, key.job, key.digest) for key in keys}
    known |= {(name.prefix, name.job, name.digest) for name in map(names.parse_name, transactional_ids) if name is not None}
    found: dict[str, set[str]] = defaultdict(set)
    for its_prefix, part, digest in known:
        if its_prefix == prefix and digest is not None and is_part_of(part, job):
            for each in {part, part if part == job else owner_of(part)}:
                found[each].add(digest)
    return found


def known_destinations(digests: Collection[str], candidates: Collection[str]) -> list[str]:
    """The destinations that these digests stand for. Raises StateError for one that none of the candidates is."""
    by_digest = {names.digest_of(candidate): candidate for candidate in candidates}
    unknown = sorted(set(digests) - by_digest.keys())
    if unknown:
        raise StateError(
            f"the job has written to a topic that is not there any more ({', '.join(unknown)}): name it by --topic"
        )
    return sorted(by_digest[digest] for digest in digests)
