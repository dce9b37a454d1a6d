"""`headrace dead-letters`: list, show and replay."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.dump import RECORD_COLUMNS, Encoding, record_rows, typed_values
from headrace.cli.letters.letters import COLUMNS, COUNT_COLUMNS, Counts, LetterFilter, moment_ms
from headrace.cli.options import (
    Bootstrap,
    CommitTopic,
    Prefix,
    Properties,
    PropertiesFile,
    RegistryUrl,
    client_config,
    client_properties,
    connect,
    registry_properties,
)
from headrace.cli.output import Listing, escaped, note, show
from headrace.cli.transactions import kafka_sink
from headrace.cli.verify import TopicReader
from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC, DEFAULT_PREFIX
from headrace.enumerator.errors import UsageError

dead_letters_app = typer.Typer(no_args_is_help=True, help="Look at dead letters, and put them back where they came from.")

MOST_REPLAYS = 3

Topic = Annotated[str, typer.Argument(help="A topic of dead letters, of headrace or of Kafka Connect.")]
FromTopic = Annotated[
    list[str] | None, typer.Option(help="Only letters that came from this topic. May be repeated.", metavar="TOPIC")
]
Reason = Annotated[str | None, typer.Option(help="Only letters with this text in their reason; case is ignored.")]
Since = Annotated[str | None, typer.Option(help="Only letters written at this time or later: 2026-11-23T10:00:00Z.")]
Until = Annotated[str | None, typer.Option(help="Only letters written before this time.")]


def _wanted(topics: list[str] | None, reason: str | None, since: str | None, until: str | None) -> LetterFilter:
    return LetterFilter(frozenset(topics or ()), reason, moment_ms("--since", since), moment_ms("--until", until))


@dead_letters_app.command(name="list")
def list_command(
    topic: Topic,
    *,
    from_topic: FromTopic = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
    properties_file: PropertiesFile = None,
) -> None:
    """Count dead letters by the topic that they came from and the reason, and how many of them were replayed.

    Plain lines are `letters` (topic, reason, letters, replayed, first, last).
    """
    from headrace.cli.letters.replay import read_replayed

    wanted = _wanted(from_topic, reason, since, until)
    given = client_properties(bootstrap, properties, properties_file)
    cluster = connect(client_config(bootstrap, properties, properties_file))
    replayed = read_replayed(kafka_sink(given, DEFAULT_PREFIX, DEFAULT_COMMIT_TOPIC), topic)
    if replayed.open_at is not None:
        note(f"a replay of {topic} is under way, or was killed: what its open transaction holds is not counted as replayed")
    counts, reader = Counts(), TopicReader(cluster, given)
    for batch in reader.batches(topic, COLUMNS):
        counts.add(batch, wanted, replayed)
    show(Listing("letters", f"Dead letters in {topic}", COUNT_COLUMNS, counts.rows()))
    _note_left_out(reader, topic, counts.others)


def _note_left_out(reader: TopicReader, topic: str, others: int) -> None:
    """Tell people of the records that are not letters, and of what cannot be read yet."""
    if others:
        note(f"{others} records of {topic} are not dead letters: they do not say which topic they came from")
    reader.note_hidden(topic)


@dead_letters_app.command(name="show")
def show_command(
    topic: Topic,
    partition: Annotated[int, typer.Argument(help="The letter's partition.", min=0)],
    offset: Annotated[int, typer.Argument(help="The letter's offset.", min=0)],
    *,
    value_format: Annotated[Encoding | None, typer.Option(help="Print the value as JSON, by a schema registry.")] = None,
    key_format: Annotated[Encoding | None, typer.Option(help="The same for the key.")] = None,
    schema_registry: RegistryUrl = None,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
    properties_file: PropertiesFile = None,
) -> None:
    """Print one dead letter: its record as `headrace dump` prints it, and its headers.

    Plain lines are `record` (partition, offset, timestamp, key, value, transaction) and `header` (name, value).
    """
    from headrace.connectors.kafka.format.stored_batch import records_of
    from headrace.connectors.kafka.log_dump import dump

    encodings = {"key": key_format, "value": value_format}
    typed = typed_values(schema_registry, encodings, registry_properties(properties, properties_file))
    cluster = connect(client_config(bootstrap, properties, properties_file))
    batch = next((each for each in dump(cluster, topic, partition, offset) if each.marker is None), None)
    rows = [] if batch is None else [row for row in record_rows(topic, partition, batch, typed) if row[1] == offset]
    if batch is None or not rows:
        raise UsageError(f"{topic}-{partition} has no record at offset {offset}")
    found = records_of(topic, partition, batch.stored)
    headers = found.column("headers")[found.column("offset").to_pylist().index(offset)].as_py() or ()
    show(Listing("record", f"{topic}-{partition}", RECORD_COLUMNS, rows))
    show(Listing("header", "Headers", ("name", "value"), [(each["key"], escaped(each["value"], 1000)) for each in headers]))


@dead_letters_app.command(name="replay")
def replay_command(
    topic: Topic,
    *,
    to: Annotated[str | None, typer.Option(help="Write all to this topic. Default: where each came from.")] = None,
    max_replays: Annotated[
        int, typer.Option(help="Leave records that were replayed so often before, as they fail again and again.", min=1)
    ] = MOST_REPLAYS,
    from_topic: FromTopic = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    prefix: Prefix = DEFAULT_PREFIX,
    commit_topic: CommitTopic = DEFAULT_COMMIT_TOPIC,
    bootstrap: Bootstrap = None,
    properties: Properties = None,
    properties_file: PropertiesFile = None,
) -> None:
    """Write dead letters back as the records that they were, each exactly once, however often this is killed and repeated.

    A record goes to the topic and partition that it came from, with its key, value and headers, and the header
    headrace.replays, which counts how often. What was replayed is noted in the topic headrace-replays, in the same
    transactions; the dead letters stay where they are. Readers need isolation.level=read_committed.

    Plain lines are `replayed` (topic, records), `already replayed` and `replayed too often` (records).
    """
    from headrace.cli.letters.replay import TRANSACTION_TIMEOUT_MS, Plan, Replay

    plan = Plan(_wanted(from_topic, reason, since, until), max_replays, to)
    given = client_properties(bootstrap, properties, properties_file)
    cluster = connect(client_config(bootstrap, properties, properties_file))
    own = {"transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS), **given}
    replay = Replay(kafka_sink(own, prefix, commit_topic), topic, plan)
    replay.begin()
    reader = TopicReader(cluster, given)
    for batch in reader.batches(topic, COLUMNS):
        replay.add(batch)
    replay.flush()
    report = replay.report
    show(Listing("replayed", f"Replayed from {topic}", ("topic", "records"), sorted(report.written.items())))
    left = [("already replayed", report.already), ("replayed too often", report.exhausted)]
    for kind, count in left:
        show(Listing(kind, f"Left in {topic}: {kind}", ("records",), [(count,)] if count else []))
    _note_left_out(reader, topic, report.others)
