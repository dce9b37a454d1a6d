"""The kit on real Spark streams: a log, splits without a known end, and finite splits."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs headrace[spark]")
pytest.importorskip("apache_beam", reason="needs headrace[beam]")

from headrace.enumerator import Boundedness, Source
from headrace.files import FileSource
from headrace.testing import ExternalContext, SparkSourceConformance
from tests.conformance import test_files as files
from tests.conformance.test_beam_sources import TextContext
from tests.conformance.test_kafka import PartitionPerSplit
from tests.conformance.test_memory import MemoryContext, ServedHybrid, ServedPieces
from tests.helpers.page_connector import write_lines_module
from tests.helpers.spark_tools import start_session, stop_session

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its processes find the connector that the how-to page writes."""
    modules = tmp_path_factory.mktemp("modules")
    write_lines_module(modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(modules), prepend=":")
        patch.syspath_prepend(modules)
        spark = start_session()
        yield spark
        stop_session(spark)
    sys.modules.pop("lines", None)


class OnSpark(SparkSourceConformance):
    @pytest.fixture(scope="class")
    def spark(self, session: Any) -> Any:
        return session


class ServedLog(MemoryContext):
    def __init__(self) -> None:
        super().__init__()
        self.log.serve()


@pytest.mark.full
class TestMemory(OnSpark):
    """Ranges of offsets, planned by the driver."""

    def create_external_context(self) -> ExternalContext:
        return ServedLog()


@pytest.mark.full
class TestPieces(OnSpark):
    """Finite splits, found by a cursor."""

    def create_external_context(self) -> ExternalContext:
        return ServedPieces()


class Folder(ExternalContext):
    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp())

    def create_source(self, boundedness: Boundedness) -> Source[Any]:
        from lines import LinesSource  # type: ignore[import-not-found]  # the page's

        source: Source[Any] = LinesSource(self.path, bounded=boundedness is Boundedness.BOUNDED, batch_lines=3)
        return source

    def create_split(self) -> str:
        file = self.path / f"{len(list(self.path.iterdir()))}.txt"
        file.touch()
        return file.name

    def write(self, split_id: str, values: Sequence[str]) -> None:
        with (self.path / split_id).open("a") as file:
            file.writelines(f"{value}\n" for value in values)

    def values(self, batch: pa.RecordBatch) -> list[str]:
        return batch.column("value").to_pylist()

    def golden_splits(self) -> Sequence[tuple[int, str, Any]]:
        return ()

    def close(self) -> None:
        shutil.rmtree(self.path)


class TestLines(OnSpark):
    """Splits whose end is known when a task has read them."""

    def create_external_context(self) -> ExternalContext:
        return Folder()


class TextFiles(files.TextContext):
    def create_source(self, boundedness: Boundedness) -> FileSource:
        watch = boundedness is Boundedness.UNBOUNDED
        return self.source(watch=watch, **({"discovery_interval_s": 0.3} if watch else {}))


@pytest.mark.full
class TestFiles(OnSpark):
    """Finite splits, found by a cursor."""

    def create_external_context(self) -> ExternalContext:
        return TextFiles()


@pytest.mark.broker
@pytest.mark.full
class TestKafka(OnSpark):
    """Ranges of offsets of a real topic."""

    @pytest.fixture(autouse=True)
    def reach(self, broker: Any) -> None:
        self.bootstrap = broker.bootstrap

    def create_external_context(self) -> ExternalContext:
        return PartitionPerSplit(self.bootstrap)


@pytest.mark.full
class TestHybrid(OnSpark):
    """Finite splits, then a log."""

    def create_external_context(self) -> ExternalContext:
        return ServedHybrid()


@pytest.mark.full
class TestBeamText(OnSpark):
    """Finite splits, all known at once."""

    def create_external_context(self) -> ExternalContext:
        return TextContext()
