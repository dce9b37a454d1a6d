"""A bounded source as a format of Spark: what travels, and by which way it never does."""

from __future__ import annotations

import base64
import pickle

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.errors import AnalysisException

from headrace import Pipeline
from headrace.enumerator.errors import UsageError
from headrace.files import FileSource
from headrace.runners.spark.bounded import BoundedSourceFormat, advised, read_source
from headrace.sinks import FunctionSink
from headrace.sources import Hybrid
from headrace.testing.memory import MemoryLog, MemorySource


@pytest.fixture
def source():
    log = MemoryLog()
    log.create("a")
    log.append("a", ["one", "two", "three"])
    return MemorySource(log, bounded=True)


class Injected:
    """Unpickling it would show."""

    unpickled = False

    def __reduce__(self):
        return setattr, (Injected, "unpickled", True)


@pytest.mark.parametrize("option", ["source", "SOURCE", "pickled", "PICKLED"])
def test_no_option_is_ever_unpickled(source, option):
    """Regression: the source was an option, so the process that could set one ran code in the driver and in the workers."""
    injected = base64.b64encode(pickle.dumps(Injected())).decode()
    assert BoundedSourceFormat.of(source)({option: injected}).schema().names == ["split", "offset", "value"]
    assert not Injected.unpickled


def test_the_format_travels_with_its_source_and_reads_it(source):
    made = cloudpickle.loads(cloudpickle.dumps(BoundedSourceFormat.of(source)))({})
    assert isinstance(made, BoundedSourceFormat)
    reader = made.reader(made.schema())
    rows = [value for split in reader.partitions() for batch in reader.read(split) for value in batch["value"].to_pylist()]
    assert rows == ["one", "two", "three"]


def test_another_source_has_another_name_and_the_same_the_same(source):
    assert BoundedSourceFormat.of(source).name() == BoundedSourceFormat.of(source).name()
    assert BoundedSourceFormat.of(source).name() != BoundedSourceFormat.of(source.with_columns(["value"])).name()


def test_what_has_several_stages_is_refused_before_there_is_a_frame(tmp_path):
    files = [FileSource(tmp_path / name, format="text") for name in "ab"]
    with pytest.raises(UsageError, match="has several stages: unite the frames of its sources, or read it as a stream"):
        read_source(None, Hybrid(files[0], then=files[1]))


def test_files_that_are_to_be_archived_are_refused(tmp_path):
    """A frame may be read again, and reports to no source."""
    schema = pa.schema([("value", pa.string())])
    with pytest.raises(UsageError, match=r"'files' is to archive or delete what was read .* read it as a stream"):
        read_source(None, FileSource(tmp_path, format="text", schema=schema, after_read="delete"))


def test_a_trigger_of_a_pipelines_query_is_a_mapping(source):
    with pytest.raises(UsageError, match=r"trigger must be a mapping, such as \{'availableNow': True\}, not 'availableNow'"):
        Pipeline(source, FunctionSink(print)).start_on_spark(None, checkpointLocation="c", trigger="availableNow")


def test_a_python_without_what_the_source_needs_is_named_with_advice():
    trace = "Error from python worker: ...\nModuleNotFoundError: No module named 'pyarrow'\n"
    with (
        pytest.raises(UsageError, match=r"No module named 'pyarrow'\. Set PYSPARK_PYTHON to the Python that has headrace"),
        advised(),
    ):
        raise AnalysisException(trace)
    with pytest.raises(AnalysisException, match="no such path"), advised():
        raise AnalysisException("no such path")
