"""Tables on S3 and in Glue, both played by moto, as other readers find them; requests that fail, and lost answers."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headrace.connectors.tables import committer
from headrace.connectors.tables.vacuum import TableUpkeep
from headrace.delta import DeltaSink
from headrace.iceberg import IcebergSink
from headrace.sinks import Attempt, Changes
from tests.helpers.object_store import ObjectStore, object_store
from tests.helpers.table_rig import JOB, driver

BUCKET = "lake"
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("offset", pa.int64())])
DELTA, GLUE = "delta", "iceberg"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch, object_store() as served:
        # moto takes no checksum behind a body, which newer clients of S3 send by themselves
        patch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        served.client().create_bucket(Bucket=BUCKET)
        yield served


class Rig:
    """its own table. `table()` is read by deltalake or PyIceberg."""

    def __init__(self, kind: str, store: ObjectStore, changes: Changes | None = None) -> None:
        self.kind, self.store = kind, store
        self._name = f"t{uuid.uuid4().hex[:8]}"
        self.sink: Any
        if kind == DELTA:
            self._uri, self._options = f"s3://{BUCKET}/{self._name}", store.delta_options()
            self.sink = DeltaSink(self._uri, storage_options=self._options, changes=changes)
        else:
            self._catalog = {"warehouse": f"s3://{BUCKET}/house", **store.glue_options()}
            self.sink = IcebergSink(f"shop.{self._name}", self._catalog, changes=changes)
        self.sink.create_table(ROWS)

    def prepared(self, epoch: int, rows: Mapping[int, str], task: int = 0) -> Any:
        batch = [{"id": key, "name": name, "offset": epoch} for key, name in rows.items()]
        with self.sink.begin(Attempt(JOB, epoch, task, 0)) as transaction:
            transaction.write(pa.RecordBatch.from_pylist(batch, schema=ROWS))
            return transaction.prepare()

    def names(self) -> Sequence[str]:
        if self.kind == DELTA:
            return sorted(DeltaTable(self._uri, storage_options=self._options).to_pyarrow_table()["name"].to_pylist())
        table = load_catalog("default", **self._catalog).load_table(f"shop.{self._name}")
        return sorted(table.scan().to_arrow()["name"].to_pylist())

    def objects(self, text: str) -> list[str]:
        """Keys of the job's own objects that have this text."""
        pages = self.store.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        return [key for key in keys if self._name in key and text in key]


@pytest.mark.parametrize("kind", [DELTA, GLUE])
def test_epochs_are_appended_once_and_what_an_abandoned_one_has_left_is_removed(store, kind):
    rig = Rig(kind, store)
    abandoned = rig.prepared(0, {9: "abandoned"}, task=1)
    left = TableUpkeep(rig.sink.log(), "the table").transactions()
    assert [found.place for found in left] == [abandoned.place]
    assert left[0].since is not None
    driver(rig.sink).commit(0, (rig.prepared(0, {1: "a"}), rig.prepared(0, {2: "b"})))
    successor = driver(rig.sink)
    successor.recover()
    successor.commit(1, (rig.prepared(1, {3: "c"}),))
    assert rig.names() == ["a", "b", "c"]
    assert rig.sink.recorded_epochs() == {JOB: 1}
    assert rig.objects(abandoned.place) == []
    assert rig.objects(".open") == []
    assert len(rig.objects(".parquet")) == 3


@pytest.mark.parametrize("kind", [DELTA, GLUE])
def test_changes_by_key_take_the_place_of_rows(store, kind):
    rig = Rig(kind, store, Changes(("id",)))
    committing = driver(rig.sink)
    committing.commit(0, (rig.prepared(0, {1: "a", 2: "b"}),))
    committing.commit(1, (rig.prepared(1, {2: "b2", 3: "c"}),))
    assert rig.names() == ["a", "b2", "c"]
    assert rig.objects(".open") == []


def test_files_of_any_partition_are_found_and_those_of_an_abandoned_epoch_removed(store):
    """Folders have names with percent signs, which stores and addresses write in their own ways."""
    rig = Rig(DELTA, store)
    sink = DeltaSink(f"s3://{BUCKET}/{rig._name}p", storage_options=rig._options)
    sink.create_table(ROWS, ["name"])
    rig.sink, rig._uri = sink, sink.uri
    names = ["a", "a b", "ü", "x/y", "c=d", "50%", "%41", "..", "it's", "#?:*", "~"]
    abandoned = rig.prepared(0, dict(enumerate(names)), task=1)
    driver(sink).commit(0, (rig.prepared(0, dict(enumerate(names))),))
    assert rig.names() == sorted(names)
    assert rig.objects(abandoned.place) == []
    assert len(rig.objects("/name=")) == len(names)
    assert rig.objects(".open") == []


COMMITS = {DELTA: ("PUT", "_delta_log"), GLUE: ("POST", "UpdateTable")}
"""Method and text of the request that commits."""


@pytest.mark.parametrize(("kind", "fault"), [(DELTA, "refused"), (GLUE, "refused"), (GLUE, "closed")])
def test_a_store_that_is_away_when_an_epoch_is_committed_is_waited_for(store, monkeypatch, kind, fault):
    monkeypatch.setattr(committer, "LONGEST_PAUSE_S", 0.0)
    rig = Rig(kind, store)
    committing = driver(rig.sink)
    committing.commit(0, (rig.prepared(0, {1: "a"}),))
    handle = rig.prepared(1, {2: "b"})
    away = 6  # more than what the libraries try again by themselves
    store.fail(fault, away)
    committing.commit(1, (handle,))
    assert store.failed() == away
    assert rig.names() == ["a", "b"]
    assert rig.objects(".open") == []


@pytest.mark.parametrize("kind", [DELTA, GLUE])
def test_an_epoch_whose_commit_was_done_and_not_answered_is_there_once(store, kind):
    """The libraries ask again, and are informed that another process has been there."""
    rig = Rig(kind, store)
    committing = driver(rig.sink)
    committing.commit(0, (rig.prepared(0, {1: "a"}),))
    handle = rig.prepared(1, {2: "b"})
    store.fail("lost", 1, *COMMITS[kind])
    committing.commit(1, (handle,))
    assert store.failed() == 1
    assert rig.names() == ["a", "b"]
    assert rig.sink.recorded_epochs() == {JOB: 1}


def test_options_of_a_store_show_no_secret(store):
    assert "secret" not in "".join(repr(Rig(kind, store).sink) for kind in (DELTA, GLUE))
