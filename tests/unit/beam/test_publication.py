"""Which positions may be published when a runner finalises bundles: Beam's promise, and what Flink's runner makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from headrace.runners.beam.publication import FinalizationToken, Publication
from tests.helpers.driving import split
from tests.simulation.bugs.publications import Trusting


def at(offset):
    return split("a", offset)


def test_on_flink_a_finalised_bundle_proves_only_those_finalised_before_it_ended():
    publication = Publication()
    first, second = publication.register(at(0), at(5)), publication.register(at(5), at(9))
    assert publication.finalised(first) is None
    assert publication.finalised(second) is None
    assert publication.finalised(publication.register(at(9), at(12))) == at(9)


def test_an_idle_split_publishes_what_it_still_owes_and_is_then_quiet():
    publication = Publication()
    publication.finalised(publication.register(at(0), at(5)))
    assert publication.finalised(publication.register(at(5), at(5))) == at(5)
    assert publication.register(at(5), at(5)) is None
    assert publication.register(at(5), at(6)) is not None


def test_what_was_finalised_before_a_restore_proves_nothing_after_it():
    publication = Publication()
    publication.finalised(publication.register(at(0), at(9)))
    assert publication.finalised(publication.register(at(4), at(6))) is None


def test_the_finalisation_of_a_bundle_from_before_a_restore_is_ignored():
    publication = Publication()
    publication.finalised(publication.register(at(0), at(5)))
    old = publication.register(at(5), at(9))
    publication.register(at(4), at(6))
    assert publication.finalised(old) is None


def test_a_position_is_published_once_and_never_behind_an_earlier_one():
    publication = Publication()
    publication.finalised(publication.register(at(0), at(2)))
    publication.finalised(publication.register(at(2), at(5)))
    second, third = publication.register(at(5), at(9)), publication.register(at(9), at(9))
    assert publication.finalised(third) == at(5)
    assert publication.finalised(second) is None
    assert publication.finalised(third) is None


def test_a_restored_position_is_published_even_if_nothing_comes():
    publication = Publication()
    assert publication.finalised(publication.register(at(7), at(7))) is None
    assert not publication.settled(at(7))
    assert publication.finalised(publication.register(at(7), at(7))) == at(7)
    assert publication.settled(at(7))
    assert publication.register(at(7), at(7)) is None


def test_what_could_not_be_published_is_given_again():
    publication = Publication()
    publication.finalised(publication.register(at(0), at(5)))
    token = publication.register(at(5), at(5))
    assert publication.finalised(token) == at(5)
    publication.not_published(token)
    assert not publication.settled(at(5))
    assert publication.finalised(publication.register(at(5), at(5))) == at(5)


def test_a_runner_that_never_finalises_keeps_this_many_bundles_and_no_more():
    """Beam keeps the whole bundle for each callback, 95 KB; without a checkpoint interval Flink has it keep all of them."""
    publication = Publication(most_outstanding=3)
    tokens = [publication.register(at(number), at(number + 1)) for number in range(10)]
    assert [token is not None for token in tokens] == [True] * 3 + [False] * 7
    for token in tokens[:3]:
        publication.finalised(token)
    assert publication.finalised(publication.register(at(10), at(11))) == at(3)  # and continues when it does finalise
    restored = [publication.register(at(0), at(1)), publication.register(at(1), at(2))]
    assert None not in restored  # previous ones a restore are never finalised, and count no more


@dataclass
class Simulation:
    """Flink as measured: barriers, completions that finalise every bundle that has ended, crashes; one checkpoint at a time."""

    make: type[Publication] = Publication
    position: int = 0
    durable: int = 0
    barrier: int | None = None
    published: int = 0
    outstanding: list[FinalizationToken] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)

    def __post_init__(self):
        self.publications = [self.make()]

    def bundle(self, records):
        token = self.publications[-1].register(at(self.position), at(self.position + records))
        self.position += records
        if token is not None:
            self.outstanding.append(token)

    def complete(self):
        self.durable, self.barrier = self.barrier, None
        outstanding, self.outstanding = self.outstanding, []
        for token in outstanding:
            found = self.publications[-1].finalised(token)
            if found is not None:
                self.published = found.next_offset
                assert self.published <= self.durable, "published ahead of what a restore goes back to"

    def crash(self, process_survives):
        self.position, self.barrier = self.durable, None
        self.outstanding.clear()
        if not process_survives:
            self.publications.append(self.make())


class OnFlink(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.simulation = Simulation()

    @rule(records=st.integers(0, 3))
    def bundle(self, records):
        self.simulation.bundle(records)

    @precondition(lambda self: self.simulation.barrier is None)
    @rule()
    def trigger(self):
        self.simulation.barrier = self.simulation.position

    @precondition(lambda self: self.simulation.barrier is not None)
    @rule()
    def complete(self):
        self.simulation.complete()

    @precondition(lambda self: self.simulation.barrier is not None)
    @rule()
    def abort(self):
        self.simulation.barrier = None

    @rule(process_survives=st.booleans())
    def crash(self, process_survives):
        self.simulation.crash(process_survives)

    def teardown(self):
        """Left in peace, everything is published."""
        self.simulation.barrier = None
        for _ in range(3):
            self.simulation.bundle(0)
            self.simulation.barrier = self.simulation.position
            self.simulation.complete()
        assert self.simulation.published == self.simulation.position


TestOnFlink = OnFlink.TestCase
TestOnFlink.settings = settings(max_examples=200, stateful_step_count=40)


def test_the_simulation_above_catches_a_publication_that_trusts_finalisation_on_flink():
    simulation = Simulation(Trusting)
    simulation.bundle(1)
    simulation.barrier = simulation.position
    simulation.bundle(1)
    with pytest.raises(AssertionError, match="ahead of what a restore"):
        simulation.complete()
