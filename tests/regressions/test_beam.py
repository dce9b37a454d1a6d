"""What Beam's own runners and KafkaIO shipped, each sequence replayed on the Beam transform. The table is in README.md."""

from __future__ import annotations

import gc
import weakref
from collections import deque

import apache_beam as beam
import pytest
from apache_beam.pipeline import PipelineVisitor
from apache_beam.transforms.core import RestrictionProvider

from headrace.beam import ReadFromSource
from headrace.kafka import KafkaSource, Latest
from headrace.runners.beam import enumerate as enumerating
from headrace.runners.beam import worker
from headrace.runners.beam.coders import Element
from headrace.runners.beam.publication import Publication
from headrace.runners.beam.reader_cache import HeldReader
from headrace.runners.beam.split_restriction import Fresh
from headrace.testing.memory import MemorySource
from tests.helpers.beam_rig import BeamRun, Stage
from tests.helpers.driving import log_of
from tests.helpers.kafka_rig import ONE_BATCH_PER_FETCH, transactional
from tests.simulation.bugs.publications import Trusting


@pytest.fixture
def runs():
    started = []

    def start(source, checkpoint=None, **options):
        started.append(BeamRun(source, checkpoint, **options))
        return started[-1]

    yield start
    for run in started:
        run.close()


@pytest.fixture
def published(monkeypatch):
    splits = []
    monkeypatch.setattr(MemorySource, "checkpoint_completed", lambda self, published: splits.extend(published))
    return splits


def values(run):
    return "".join(value for batch in run.delivered() for value in batch.column("value").to_pylist())


def read(run):
    while run.step(0):
        pass
    return "".join(sorted(values(run)))


def restored(runs, source):
    before = runs(source)
    before.step(0)
    after = runs(source, before.checkpoint())
    return values(before), read(after)


def test_beam_31313_34890_pr_33606_a_restored_enumerator_does_not_split_the_source_again(runs):
    before, after = restored(runs, MemorySource(log_of(a="1234", b="5678")))
    assert before != ""
    assert sorted(before + after) == list("12345678")


def test_beam_31313_34890_shows_when_the_bug_is_injected(runs, monkeypatch):
    """The ledger is forgotten at every look, as if the enumerator could not tell that it was restored."""
    honest = enumerating.look
    monkeypatch.setattr(enumerating, "look", lambda _, discovery: honest(Fresh(), discovery))
    before, after = restored(runs, MemorySource(log_of(a="1234", b="5678")))
    assert len(before + after) > 8


def read_after_a_restore(runs, is_emitted_again):
    """A job from latest, whose runner emits the element that starts it all again when it restores, or does not."""
    source = MemorySource(log_of(a="1234"), start="latest")
    checkpoint = runs(source).checkpoint()
    source.log.append("a", "56")
    after = runs(source, checkpoint)
    if is_emitted_again:
        after.job.enumerating.append(after.enumerate.begin(Element(b"")))
        after.look_for_splits()
    found = read(after)
    source.log.append("a", "78")
    return found + read(after)[len(found) :]


def test_beam_30903_the_element_that_starts_it_all_is_not_emitted_again(runs):
    """What a restore brings back are the residuals; the first restriction is asked for once in the lifetime of a job."""
    assert read_after_a_restore(runs, is_emitted_again=False) == "5678"


def test_beam_30903_shows_when_the_runner_emits_it_again(runs):
    assert read_after_a_restore(runs, is_emitted_again=True) != "5678"


def test_beam_20836_splits_added_between_two_runs_are_read(runs):
    log = log_of(a="12")
    source = MemorySource(log)
    before = runs(source)
    assert read(before) == "12"
    checkpoint = before.checkpoint()
    log.create("b")
    log.append("b", "34")
    assert read(runs(source, checkpoint)) == "34"


def test_beam_25975_every_split_continues_however_many_workers_there_are(runs):
    """A reader is its own element, with its splits: no worker owns any, and fewer workers are given all of them."""
    source = MemorySource(log_of(a="12", b="34", c="56", d="78"), bounded=True)
    before = runs(source, num_readers=4)
    checkpoint = before.checkpoint()
    assert len(before.job.reading) == 4
    after = runs(source, checkpoint, num_readers=1)
    assert read(after) == "12345678"
    assert after.finished


def test_beam_25975_shows_when_a_worker_continues_with_one_element_only(runs):
    source = MemorySource(log_of(a="12", b="34", c="56", d="78"), bounded=True)
    after = runs(source, runs(source, num_readers=4).checkpoint(), num_readers=1)
    after.job.reading = deque([after.job.reading[0]])
    assert len(read(after)) == 2


def test_beam_21742_nothing_is_published_while_no_checkpoint_succeeds(runs, published):
    assert read(runs(MemorySource(log_of(a="123456")))) == "123456"
    assert published == []


def test_beam_26884_what_was_read_last_is_published_though_nothing_more_comes(runs, published):
    run = runs(MemorySource(log_of(a="123456")))
    assert read(run) == "123456"
    for _ in range(2):
        run.step(0)
        run.checkpoint()
    assert [split.next_offset for split in published] == [6]


def test_beam_26884_the_last_position_of_a_bounded_read_is_published_before_it_ends(runs, published):
    """On Flink no later bundle of the split would prove it; so there is one, until the position is published."""
    run = runs(MemorySource(log_of(a="123456"), bounded=True))
    assert read(run) == "123456"
    for _ in range(2):
        assert run.job.reading
        run.checkpoint()
        run.calls()
    run.calls()
    assert [split.next_offset for split in published] == [6]
    assert not run.job.reading


def test_beam_26884_also_of_one_that_is_restored_after_it_has_read_all(runs, published):
    before = runs(MemorySource(log_of(a="123456"), bounded=True))
    assert read(before) == "123456"
    run = runs(before.read.fn._reading.source, before.snapshot())
    for _ in range(3):
        run.calls()
        run.checkpoint()
    assert run.delivered() == []
    assert [split.next_offset for split in published] == [6]
    run.calls()
    assert not run.job.reading


def test_a_bounded_read_that_is_restored_without_publishing_ends(runs):
    """Its checkpoint holds last positions that are to be published, and no process does any more."""
    before = runs(MemorySource(log_of(a="123456"), bounded=True))
    assert read(before) == "123456"
    run = runs(before.read.fn._reading.source, before.snapshot(), publish=False)
    run.calls()
    assert (run.delivered(), list(run.job.reading)) == ([], [])


def test_a_read_that_an_expansion_service_builds_publishes_nothing_ahead_on_flink(published):
    """What builds it has its own runner, DirectRunner by default; and Flink's runs it."""
    log = log_of(a="123456")
    built = beam.Pipeline()
    _ = built | ReadFromSource(MemorySource(log), publish=True, read_s=1e-9)
    enumerate_stage, read_stage = (Stage(fn) for fn in splittable_of(built))
    (found,) = enumerate_stage.process(enumerate_stage.begin(Element(b""))).outputs
    bundle = read_stage.process(read_stage.begin(found.value))
    bundle.finalizer.finalize_bundle()  # it ended after the barrier of the checkpoint that completes now
    assert published == []
    enumerate_stage.close()
    read_stage.close()


def splittable_of(pipeline):
    found = []

    class Visitor(PipelineVisitor):
        def visit_transform(self, node):
            fn = getattr(node.transform, "fn", None)
            if isinstance(fn, RestrictionProvider):
                found.append(fn)

    pipeline.visit(Visitor())
    return found


def test_a_runner_that_finalises_nothing_does_not_keep_a_bounded_read_from_ending(runs, caplog):
    run = runs(MemorySource(log_of(a="123456"), bounded=True))
    assert read(run) == "123456"
    run.calls()
    assert run.job.reading
    run.read.fn._publisher._timeout_s = 0.0
    run.calls()
    assert not run.job.reading
    assert "last position is not published: the runner has finalised no bundle" in caplog.text


def test_beam_27648_a_hundred_splits_are_as_many_calls_as_there_are_readers(runs):
    """Flink's runner keeps something of every call for ever: here there is a call of a reader, and not of a split."""
    run = runs(MemorySource(log_of(**{f"s{number}": "12" for number in range(100)})), num_readers=2)
    assert len(run.job.reading) == 2
    assert len(read(run)) == 200


@pytest.fixture
def ends_in_nothing(fake_kafka):
    """A bounded read of a record, behind which there are only an aborted record and control records."""
    fake_kafka.create_topic("t")
    fake_kafka.append("t", b"a")
    transactional(fake_kafka.bootstrap, "t").transaction("t", [b"x"], commit=False)
    assert fake_kafka.offsets("t")[2] == 3
    properties = {"isolation.level": "read_committed", **ONE_BATCH_PER_FETCH}
    return KafkaSource(fake_kafka.bootstrap, topics=["t"], stop=Latest(), properties=properties)


def read_to_its_end(run, calls=200):
    for _ in range(calls):
        if run.finished:
            break
        run.calls()
    return [value for batch in run.delivered() for value in batch.column("value").to_pylist()], run.finished


def test_beam_25962_the_position_moves_over_records_that_yield_nothing(ends_in_nothing, runs):
    """Kafka's control records, aborted transactions and gaps: a claim is where the split is after a batch, not a record."""
    assert read_to_its_end(runs(ends_in_nothing, read_s=0.05)) == ([b"a"], True)


def test_beam_25962_shows_when_only_what_yields_something_is_claimed(ends_in_nothing, runs, monkeypatch):
    honest = HeldReader.poll

    def poll(self, timeout_s):
        batch = honest(self, timeout_s)
        return batch if batch is not None and batch.records.num_rows else None

    monkeypatch.setattr(HeldReader, "poll", poll)
    assert read_to_its_end(runs(ends_in_nothing, read_s=0.05), calls=20) == ([b"a"], False)


def test_flink_finalises_bundles_that_ended_after_the_checkpoints_barrier(runs, published):
    run = runs(MemorySource(log_of(a="123456")))
    run.step(0)
    run.snapshot()
    run.step(0)
    run.notify()
    run.lose_reader()
    assert read(run) == "123456"
    assert published == []


def test_the_same_shows_when_finalisation_is_trusted(runs, monkeypatch, published):
    monkeypatch.setattr(worker, "Publication", Trusting)
    run = runs(MemorySource(log_of(a="123456")))
    run.step(0)
    run.snapshot()
    run.step(0)
    run.notify()
    assert max(split.next_offset for split in published) == 4
    run.lose_reader()
    run.step(0)
    assert values(run) == "1234"  # two of them came from before the checkpoint: reading continued at 2


class Position:
    """One that can be weakly referenced."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and other.offset == self.offset

    __hash__ = None


def test_calls_and_checkpoints_without_end_keep_the_last_positions_only():
    """A token that holds the token that it proves holds every one since the start of the process."""
    publication = Publication()
    kept = []
    for number in range(100):
        end = Position(number + 1)
        kept.append(weakref.ref(end))
        token = publication.register(Position(number), end)
        publication.finalised(token)
        del end, token
    gc.collect()
    assert len([position for position in kept if position() is not None]) <= 2
