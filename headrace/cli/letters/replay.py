"""Putting dead letters back, exactly once: each batch of them in one transaction with the note that they were.

It is a job of the Kafka sink like others, named by the topic of dead letters: two at a time fence each other, and what a killed
one has left is ended by the next, which only then reads what was replayed. Two whose names differ do not: the first one claims
the topic (`replayed.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.cli.letters.letters import Letter, LetterFilter, letters_in, origins
from headrace.cli.letters.notes import read_notes
from headrace.cli.letters.replayed import REPLAYS_TOPIC, Replayed
from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.dead_letters import replayed_headers
from headrace.connectors.base.sink import Attempt
from headrace.connectors.kafka.write.at_least_once import AtLeastOnceKafkaSink
from headrace.connectors.kafka.write.names import DEFAULT_COMMIT_TOPIC, digest_of
from headrace.connectors.kafka.write.topics import find_topic
from headrace.enumerator.errors import RetriableError, UsageError

if TYPE_CHECKING:
    from headrace.connectors.base.sink import Committer
    from headrace.connectors.kafka.write.handles import KafkaHandle
    from headrace.connectors.kafka.write.sink import KafkaSink

MOST_LETTERS, MOST_BYTES = 1000, 4 << 20
"""Of a transaction, whichever comes first; one letter at least."""
TRANSACTION_TIMEOUT_MS = 60_000
"""What a killed replay has left open hides what others write behind it: for no longer than a call of a command waits."""

_OF_LISTS = "holds the lists of transactions"
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ROWS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)]
)
_CLAIM_ROW = pa.schema([("key", pa.binary()), ("value", pa.binary())])


@dataclass(frozen=True, slots=True)
class Plan:
    """What is replayed. `to`: a topic for all; None: each letter goes to the topic and partition that it came from.

    `most_replays`: a record that was replayed so often is left where it is.
    """

    wanted: LetterFilter
    most_replays: int
    to: str | None = None


@dataclass(slots=True)
class ReplayReport:
    """What became of the letters that were wanted: by topic where they were written; and those that were not.

    `others`: records that are not dead letters.
    """

    written: Counter[str] = field(default_factory=Counter)
    already: int = 0
    exhausted: int = 0
    others: int = 0


def job_of(topic: str) -> str:
    """The name of the job that replays this topic."""
    return f"replay-{digest_of(topic)}"


def read_replayed(sink: KafkaSink, topic: str) -> Replayed:
    """What was replayed of the topic, as far as it is decided now; nothing where nothing ever was. Waits for no transaction."""
    cluster = sink.cluster()
    by = f"{sink.transactional_id_prefix} {sink.commit_topic}"
    notes = read_notes(cluster)
    found = Replayed.parse(topic, cluster.topics([topic])[topic].topic_id, by, notes.decided)
    found.end = notes.end
    found.open_at = min((offset for key, offset in notes.open.items() if found.is_page(key)), default=None)
    return found


class Replay:
    """One run over a topic of dead letters. `start` first; not thread-safe.

    `committer` makes the driver's side: of the sink, or in a test of one that dies.
    """

    def __init__(
        self, sink: KafkaSink, topic: str, plan: Plan, committer: Callable[[str], Committer[KafkaHandle]] | None = None
    ) -> None:
        """Contacts nobody. Raises UsageError for letters that are to be put where they lie, or among our own records."""
        self._closed_to = {
            DEFAULT_COMMIT_TOPIC: _OF_LISTS,
            sink.commit_topic: _OF_LISTS,
            REPLAYS_TOPIC: "holds the notes of what was replayed",
            topic: "is the topic of the dead letters themselves",
        }
        if plan.to in self._closed_to:
            raise UsageError(f"--to {plan.to} {self._closed_to[plan.to]}")
        self._sink, self._topic, self._plan = sink, topic, plan
        self._job = job_of(topic)
        self._driver = JobCommitter(self._job, (committer or sink.committer)(self._job))
        self._epoch = 0
        self._replayed = Replayed(topic, None, "")
        self._waiting: list[Letter] = []
        self._bytes = 0
        self.report: ReplayReport = ReplayReport()

    def begin(self) -> None:
        """Claim the topic, shut out another replay of it, end what that has left, and read what was replayed.

        Raises StateError where another prefix or commit topic has claimed it: then those replays are not shut out.
        """
        from headrace.connectors.kafka.write.commit_log import CommitLog

        cluster = self._sink.cluster()
        notes = CommitLog(cluster, REPLAYS_TOPIC, holds="replayed dead letters")
        notes.create()
        self._claim()
        self._driver.recover()
        recorded = self._driver.recorded_epoch  # by the fence: who looks again waits for the open writes of all jobs
        self._epoch = 0 if recorded is None else recorded + 1
        reading = f"reading what was replayed of {self._topic!r}"
        self._replayed = cluster.retrying(reading, lambda: self._read_decided(notes.write_nothing()))

    def _claim(self) -> None:
        """Nobody's transaction hides a claim, so who reads them after its own write has all that came before it."""
        found = read_replayed(self._sink, self._topic)
        found.refuse_unfenced()
        if found.claims:
            return
        sink = AtLeastOnceKafkaSink(
            self._sink.bootstrap, topic=REPLAYS_TOPIC, properties=self._sink.properties, sasl=self._sink.sasl
        )
        key, value = found.claim()
        with sink.begin(Attempt(self._job, 0, 0, 0)) as claiming:
            claiming.write(pa.RecordBatch.from_pylist([{"key": key, "value": value}], schema=_CLAIM_ROW))
            claiming.prepare()
        looking = f"reading the claim of {self._topic!r}"
        self._sink.cluster().retrying(looking, self._read_claimed)

    def _read_claimed(self) -> None:
        """Raises StateError where another one came before. A reading without the claim of our own may lack that one, too."""
        found = read_replayed(self._sink, self._topic)
        found.refuse_unfenced()
        if found.by not in found.claims:
            raise RetriableError(f"{REPLAYS_TOPIC}-0 was read, and the claim that was just written to it did not come")

    def _read_decided(self, written: int) -> Replayed:
        """Raises RetriableError while a transaction of this job is open: of a replay that was shut out, and continues until it
        notices; or one that is being ended. And for a reading without what was just written at that offset: a leader that is
        cut off from the others may lack notes, too.
        """
        found = read_replayed(self._sink, self._topic)
        if found.end <= written:
            self._sink.cluster().invalidate(REPLAYS_TOPIC)
            raise RetriableError(f"{REPLAYS_TOPIC}-0 was read up to offset {found.end}, and was written to at {written}")
        if found.open_at is not None:
            self._driver.recover()
            raise RetriableError(f"a transaction of a replay is open, from offset {found.open_at} of {REPLAYS_TOPIC}-0 on")
        return found

    def add(self, batch: pa.RecordBatch) -> None:
        """Records of the topic, in their order in each partition. Raises what the sink raises, and UsageError for a letter that
        claims to come from a topic of ours.
        """
        found = list(letters_in(batch))
        self.report.others += batch.num_rows - len(found)
        for letter in found:
            if not self._plan.wanted.takes(letter):
                continue
            if self._replayed.has(letter.partition, letter.offset):
                self.report.already += 1
            elif letter.origin.replays >= self._plan.most_replays:
                self.report.exhausted += 1
            else:
                self._take(letter)

    def _take(self, letter: Letter) -> None:
        if self._plan.to is None and letter.origin.topic in self._closed_to:
            raise UsageError(
                f"the dead letter at offset {letter.offset} of {self._topic}-{letter.partition} states that it came from the "
                f"topic {letter.origin.topic!r}, which {self._closed_to[letter.origin.topic]}: leave it out with --from-topic, "
                "or choose a topic with --to"
            )
        self._waiting.append(letter)
        self._bytes += len(letter.key or b"") + len(letter.value or b"")
        if len(self._waiting) >= MOST_LETTERS or self._bytes >= MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits, with the note of it, and commit both."""
        letters, self._waiting, self._bytes = self._waiting, [], 0
        if not letters:
            return
        pages = self._replayed.with_these((letter.partition, letter.offset) for letter in letters)
        transaction = self._sink.begin(Attempt(self._job, self._epoch, 0, 0))
        with transaction:
            transaction.write(self._rows(letters))
            transaction.write(self._notes(pages.items()))
            handle = transaction.prepare()
        assert handle is not None
        self._driver.commit(self._epoch, (handle,))
        self._epoch += 1
        self._replayed.pages |= pages
        self.report.written += origins(letters) if self._plan.to is None else Counter({self._plan.to: len(letters)})

    def _rows(self, letters: list[Letter]) -> pa.RecordBatch:
        names = {self._plan.to} if self._plan.to is not None else set(origins(letters))
        found = {name: find_topic(self._sink.cluster(), name) for name in names}
        if missing := sorted(name for name in names if found[name] is None):
            raise UsageError(
                f"there is no topic {', '.join(map(repr, missing))}: make it, or choose another one with --to, or leave its "
                "letters out with --from-topic"
            )
        partitions = {name: len(topic.partitions) for name, topic in found.items() if topic is not None}
        return pa.RecordBatch.from_pylist([self._row(letter, partitions) for letter in letters], schema=_ROWS)

    def _row(self, letter: Letter, partitions: dict[str, int]) -> dict[str, object]:
        """A partition that is no more leaves it to the key."""
        origin = letter.origin
        own = origin.partition if self._plan.to is None and (origin.partition or 0) < partitions[origin.topic] else None
        headers = [{"key": name, "value": value} for name, value in replayed_headers(origin)]
        to = origin.topic if self._plan.to is None else self._plan.to
        return {"topic": to, "partition": own, "key": letter.key, "value": letter.value, "headers": headers}

    def _notes(self, pages: Iterable[tuple[tuple[int, int], int]]) -> pa.RecordBatch:
        records = (self._replayed.record(page, bits) for page, bits in pages)
        rows = [{"topic": REPLAYS_TOPIC, "partition": 0, "key": key, "value": value} for key, value in records]
        return pa.RecordBatch.from_pylist(rows, schema=_ROWS)
