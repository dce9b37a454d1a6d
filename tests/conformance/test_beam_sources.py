"""The kit on Beam's text source: a file is a bundle. What is bounded cannot grow: cases that write later are left out."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("apache_beam", reason="needs headrace[beam]")

import apache_beam as beam

from headrace.connectors.beam import BeamSource, BundleSplit
from headrace.enumerator import Boundedness, EagerEnumerator, LazyEnumerator
from headrace.testing import ExternalContext, SourceConformance


class TextContext(ExternalContext):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._names = itertools.count()
        self._may_grow = True

    def create_source(self, boundedness: Boundedness) -> BeamSource:
        self._may_grow = self._may_grow and boundedness is Boundedness.BOUNDED
        return BeamSource(beam.io.ReadFromText(f"{self._folder.name}/*.txt", validate=False))

    def create_split(self) -> str:
        self._must_not_be_read()
        name = f"{next(self._names):03d}"
        self._path(name).touch()
        return name

    def write(self, split_id: str, values: Sequence[str]) -> None:
        self._must_not_be_read()
        with self._path(split_id).open("a") as file:
            file.writelines(f"{value}\n" for value in values)

    def values(self, batch: pa.RecordBatch) -> list[str]:
        return batch.column("value").to_pylist()

    def golden_splits(self) -> Sequence[tuple[int, str, Any]]:
        return [
            (1, '{"id":"0-1f2e3d4c5b6a","bundle":"AP9hYmM=","delivered":3}', BundleSplit("0-1f2e3d4c5b6a", b"\x00\xffabc", 3))
        ]

    def close(self) -> None:
        self._folder.cleanup()

    def _path(self, split_id: str) -> Path:
        return Path(self._folder.name) / f"{split_id}.txt"

    def _must_not_be_read(self) -> None:
        if not self._may_grow:
            pytest.skip("what is bounded does not grow")


class TestEager(SourceConformance):
    assignment = EagerEnumerator

    def create_external_context(self) -> TextContext:
        return TextContext()

    def test_positions_are_published_when_durable(self, external: ExternalContext) -> None:
        """As the kit has it; but a bundle's id is not known before it is discovered."""
        for split_id in (external.create_split(), external.create_split()):
            external.write(split_id, ["a", "b"])
        source = self.observe(external.create_source(Boundedness.BOUNDED))
        with closing(source.create_discovery()) as discovery:
            bundles = {split.split_id for split in discovery.initial().added}
        run = self.start_run(source)
        self.read_to_end(run)
        assert source.observed.published == {}
        run.checkpoint()
        assert source.observed.published.keys() == bundles
        assert len(bundles) == 2
        run.close()

    def test_constructor_contacts_no_process(self, external: ExternalContext, monkeypatch: pytest.MonkeyPatch) -> None:
        """As the kit has it, of a source that is always bounded."""
        monkeypatch.setattr(external, "create_source", lambda _: BeamSource(beam.io.ReadFromText("/none", validate=False)))
        monkeypatch.setattr("headrace.testing.conformance.Boundedness", [Boundedness.BOUNDED])
        super().test_constructor_contacts_no_process(external, monkeypatch)


class TestLazy(TestEager):
    assignment = LazyEnumerator
