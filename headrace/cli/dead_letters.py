"""`headrace dead-letters`: list and show what is in a topic of dead letters, and replay them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.dead_letter_records import COLUMNS, DeadLetterCounts, DeadLetterFilter, Replay, moment_ms
from headrace.cli.dump import RECORD_COLUMNS, Encoding, chosen_partitions, record_rows, typed_values
from headrace.cli.options import ClientOptions, CommitTopic, Prefix, RegistryUrl, grouped
from headrace.cli.output import Listing, escaped, note, show
from headrace.cli.verify import TopicReader
from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC, DEFAULT_PREFIX
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from headrace.runners.local.settings import RunSettings

dead_letters_app = typer.Typer(no_args_is_help=True, help="Look at dead letters, and put them back where they came from.")

Topic = Annotated[str, typer.Argument(help="A topic of dead letters, of headrace or of Kafka Connect.")]


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """The options that select dead letters. A parameter of a command: see `grouped`."""

    from_topic: Annotated[
        list[str] | None, typer.Option(help="Only dead letters that came from this topic. May be repeated.", metavar="TOPIC")
    ] = None
    reason: Annotated[str | None, typer.Option(help="Only dead letters with this text in their reason; case is ignored.")] = (
        None
    )
    since: Annotated[
        str | None, typer.Option(help="Only dead letters written at this time or later: 2026-11-23T10:00:00Z.")
    ] = None
    until: Annotated[str | None, typer.Option(help="Only dead letters written before this time.")] = None

    def wanted(self) -> DeadLetterFilter:
        if self.reason == "":  # of a variable that is not set: every reason has it
            raise UsageError("--reason is empty: give a part of the reason, or leave the option out")
        since, until = moment_ms("--since", self.since), moment_ms("--until", self.until)
        return DeadLetterFilter(frozenset(self.from_topic or ()), self.reason, since, until)


@dead_letters_app.command(name="list")
@grouped
def list_command(topic: Topic, *, selection: FilterOptions, client: ClientOptions) -> None:
    """Count dead letters by the topic that they came from and the reason.

    Plain lines are `letters` (topic, reason, letters, first, last).
    """
    wanted = selection.wanted()
    counts, reader = DeadLetterCounts(), TopicReader(client.connect(), client.client_properties())
    for batch in reader.batches(topic, COLUMNS):
        counts.add(batch, wanted)
    columns = ("topic", "reason", "letters", "first", "last")
    show(Listing("letters", f"Dead letters in {topic}", columns, counts.rows()))
    if counts.others:
        note(f"{counts.others} records of {topic} are not dead letters: they do not say which topic they came from")
    reader.note_hidden(topic)


@dead_letters_app.command(name="show")
@grouped
def show_command(
    topic: Topic,
    partition: Annotated[int, typer.Argument(help="The letter's partition.", min=0)],
    offset: Annotated[int, typer.Argument(help="The letter's offset.", min=0)],
    *,
    value_format: Annotated[Encoding | None, typer.Option(help="Print the value as JSON, by a schema registry.")] = None,
    key_format: Annotated[Encoding | None, typer.Option(help="The same for the key.")] = None,
    schema_registry: RegistryUrl = None,
    client: ClientOptions,
) -> None:
    """Print one dead letter: its record as `headrace dump` prints it, and its headers.

    Plain lines are `record` (partition, offset, timestamp, key, value, transaction) and `header` (name, value).
    """
    from headrace.connectors.kafka.format.stored_batch import records_of
    from headrace.connectors.kafka.log_dump import dump

    encodings = {"key": key_format, "value": value_format}
    typed = typed_values(schema_registry, encodings, client.registry_properties())
    cluster = client.connect()
    chosen_partitions(cluster, topic, partition)
    batch = next((each for each in dump(cluster, topic, partition, offset) if each.marker is None), None)
    rows = [] if batch is None else [row for row in record_rows(topic, partition, batch, typed) if row[1] == offset]
    if batch is None or not rows:
        raise UsageError(f"{topic}-{partition} has no record at offset {offset}")
    found = records_of(topic, partition, batch.stored)
    headers = found.column("headers")[found.column("offset").to_pylist().index(offset)].as_py() or ()
    show(Listing("record", f"{topic}-{partition}", RECORD_COLUMNS, rows))
    show(Listing("header", "Headers", ("name", "value"), [(each["key"], escaped(each["value"], 1000)) for each in headers]))


@dead_letters_app.command(name="replay")
@grouped
def replay_command(
    topic: Topic,
    *,
    checkpoints: Annotated[
        str, typer.Option(help="The folder of the checkpoints, of this replay alone. With it a replay continues.")
    ],
    to: Annotated[str | None, typer.Option(help="Write all to this topic. Default: where each came from.")] = None,
    max_replays: Annotated[
        int, typer.Option(help="Leave records that were replayed this often before, as they fail again and again.", min=1)
    ] = 3,
    selection: FilterOptions,
    prefix: Prefix = DEFAULT_PREFIX,
    commit_topic: CommitTopic = DEFAULT_COMMIT_TOPIC,
    client: ClientOptions,
) -> None:
    """Write dead letters back as the records that they were, each exactly once for a folder of checkpoints.

    A record goes to the topic and partition that it came from, with its key, value and headers, and the header
    headrace.replays, which counts how often. Ends where the topic ended at the start. The same command continues a replay that
    was stopped or killed, and after one that has ended it replays what came since; another selection needs another folder. The
    dead letters stay where they are. Readers need isolation.level=read_committed.
    """
    from headrace.cli.run_report import text_report
    from headrace.connectors.kafka.write.sink import KafkaSink
    from headrace.runners.local.processes import forked_apart
    from headrace.runners.local.storage.folder import local_folder
    from headrace.runners.local.supervisor import supervise
    from headrace.runners.pipeline import PickledPipeline, PipelineSpec

    folder = local_folder(checkpoints)
    given = client.client_properties()
    reader = TopicReader(client.connect(), given)
    sink = KafkaSink(given["bootstrap.servers"], properties=given, transactional_id_prefix=prefix, commit_topic=commit_topic)
    replay = Replay(sink, topic, selection.wanted(), max_replays, to)
    source = replace(reader.source(topic, COLUMNS), fail_on_data_loss=False)  # retention may have deleted unread ones
    with own_folder(folder, replay) as settings:
        pipeline = PickledPipeline.of(PipelineSpec(source, sink, replay))
        supervise(pipeline, settings, forked_apart, text_report(settings.folder))
    reader.note_hidden(topic)


@contextmanager
def own_folder(folder: Path, replay: Replay) -> Iterator[RunSettings]:
    """The settings of the run that continues the replay of this folder, which is locked meanwhile.

    A run reads to where the topic ended when it started. So a replay is a chain of runs: each starts with the savepoint of the
    previous one, in a separate folder. Raises FencedError while another process has the folder, UsageError for a folder of
    another selection.
    """
    from headrace.runners.local.settings import RunSettings
    from headrace.runners.local.storage.folder import write_whole
    from headrace.runners.local.storage.lock import FolderLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {folder} cannot be used: {error}") from error
    with closing(FolderLock(folder, str(folder))):
        selection, file = replay.selection, folder / "replay.json"
        if not file.exists():
            write_whole(file, selection.encode())
        elif (found := file.read_text()) != selection:
            raise UsageError(f"{folder} has the checkpoints of the replay {found}; give {selection} another folder")
        start: str | None = None
        for number in itertools.count(1):
            run, savepoints = folder / f"run-{number}", folder / f"savepoint-{number}"
            if not (ended := sorted(savepoints.glob("*.json"))):
                break
            start = str(ended[-1])
        yield RunSettings(str(run), savepoints=str(savepoints), from_savepoint=start)
