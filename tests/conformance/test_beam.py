"""The kit on the Beam transform: its two stages, driven as a portable runner drives them; on the log in memory and on Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.enumerator import Boundedness, Source, SourceReader, SplitDiscovery, SplitSerializer
from headrace.testing import ExternalContext, Run, SourceConformance
from headrace.testing.memory import MemorySource
from tests.helpers.beam_rig import BeamRun

from .test_kafka import PartitionPerSplit
from .test_memory import HybridContext, MemoryContext, PiecesContext


class Opaque(Source[Any]):
    """A source whose splits are not offsets, for all that a runner can see."""

    name = "opaque"

    def __init__(self, inner: MemorySource) -> None:
        self._inner = inner
        self.schema = inner.schema

    @property
    def boundedness(self) -> Boundedness:
        return self._inner.boundedness

    @property
    def split_serializer(self) -> SplitSerializer[Any]:
        return self._inner.split_serializer

    def create_discovery(self) -> SplitDiscovery[Any]:
        return self._inner.create_discovery()

    def create_reader(self) -> SourceReader[Any]:
        return self._inner.create_reader()


class WithTheNextCheckpoint(BeamRun):
    """What a checkpoint holds is published with the next one, which proves it durable. Then what has ended is reported."""

    def checkpoint(self) -> bytes:
        data = super().checkpoint()
        self.calls()
        super().checkpoint()
        self.calls()
        return data


class OnBeam(SourceConformance):
    run = BeamRun

    def create_run(self, source: Source[Any], *, checkpoint: bytes | None, parallelism: int) -> Run:
        return self.run(source, checkpoint)

    def test_positions_are_published_when_durable(self, external: ExternalContext) -> None:
        self.run = WithTheNextCheckpoint
        super().test_positions_are_published_when_durable(external)

    def test_finished_splits_are_reported_when_that_is_durable(self, external: ExternalContext) -> None:
        self.run = WithTheNextCheckpoint
        super().test_finished_splits_are_reported_when_that_is_durable(external)


class TestLogOfOffsets(OnBeam):
    def create_external_context(self) -> MemoryContext:
        return MemoryContext()


class TestPieces(OnBeam):
    def create_external_context(self) -> PiecesContext:
        return PiecesContext()


@pytest.mark.full
class TestHybrid(OnBeam):
    def create_external_context(self) -> HybridContext:
        return HybridContext()


class OpaqueContext(MemoryContext):
    def create_source(self, boundedness: Boundedness) -> Opaque:
        return Opaque(super().create_source(boundedness))


@pytest.mark.full
class TestOpaqueSplits(OnBeam):
    def create_external_context(self) -> OpaqueContext:
        return OpaqueContext()


@pytest.mark.timeout(120)
class TestKafka(OnBeam):
    """On a fake broker: a real one is behind the same source in test_kafka.py, and behind the transform on a real Flink."""

    poll_timeout_s = 0.2
    timeout_polls = 100

    @pytest.fixture(autouse=True)
    def reach(self, fake_kafka):
        self.bootstrap = fake_kafka.bootstrap

    def create_external_context(self) -> PartitionPerSplit:
        return PartitionPerSplit(self.bootstrap)
