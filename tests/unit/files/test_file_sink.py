"""The file sink in one process: names, refusals, and drivers that die or are replaced before any call of the filesystem."""

import errno
import json
import os
import pickle
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from headrace.connectors.base.commit import StaleEpochError
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.sink import Attempt, CommitList, Outcome
from headrace.connectors.files import FileFormat, FileHandle, FileHandleSerializer, FileSink
from headrace.connectors.files.read.folders import open_folder
from headrace.connectors.files.store import FsspecStore, LocalStore, open_store
from headrace.connectors.formats.json_lines import json_lines
from headrace.enumerator.errors import (
    DataLossError,
    FencedError,
    HeadraceError,
    PeerError,
    ProtocolViolationError,
    StateError,
    UsageError,
)
from tests.helpers import batch_writes
from tests.helpers.file_rig import (
    JOB,
    WORK,
    KilledError,
    WatchedStore,
    batch_of,
    committer_of,
    job_committer,
    left_over,
    prepared,
    published,
    visible,
)
from tests.helpers.python_path import printed
from tests.simulation.bugs import files

GOLDEN = Path(__file__).parents[1] / "golden" / "file_handle_v1.json"
HANDLE = FileHandle(Attempt("query-1", 7, 3, 1), "0123456789abcdef", FileFormat.PARQUET, rows=1000, size=2**40)
ROWS = ["a", "b", "c", "d"]


@pytest.fixture(params=["local", "memory"])
def sink(request, tmp_path) -> FileSink:
    if request.param == "local":
        return FileSink(str(tmp_path / "out"))
    pytest.importorskip("fsspec")
    return FileSink(f"memory://{uuid4().hex}/out")


# --- handles ------------------------------------------------------------------------------------------------------------
def test_the_golden_handle_is_read_and_written():
    """A difference here means that the format has changed, and needs a new version."""
    assert FileHandleSerializer().deserialize(1, json.loads(GOLDEN.read_text())) == HANDLE
    assert json.dumps(FileHandleSerializer().serialize(HANDLE), separators=(",", ":")) == GOLDEN.read_text()


@pytest.mark.parametrize("changes", [
    {"job": None}, {"job": "../x"}, {"token": "../x"}, {"token": 7}, {"format": "orc"}, {"epoch": "x"}, {"size": None},
], ids=str)  # fmt: skip
def test_a_damaged_handle_is_refused(changes):
    handles = FileHandleSerializer()
    with pytest.raises((KeyError, TypeError, ValueError)):
        handles.deserialize(1, handles.serialize(HANDLE) | changes)


def test_an_unknown_version_of_a_handle_is_refused():
    with pytest.raises(ValueError, match="version 2"):
        FileHandleSerializer().deserialize(2, FileHandleSerializer().serialize(HANDLE))


def test_a_format_is_given_by_its_name_too():
    assert FileSink("/a", "jsonl") == FileSink("/a", FileFormat.JSON_LINES)
    assert str(FileSink("/a", "parquet").format) == "parquet"


def test_views_are_plain_in_parquet(tmp_path):
    """Or pyarrow could not filter the file's rows, by whatever column, and would read no lists of them."""
    kind = pa.schema([("a", pa.binary_view()), ("l", pa.list_(pa.string_view())), ("n", pa.int64())])
    rows = pa.RecordBatch.from_pylist([{"a": b"x", "l": ["y", None], "n": 1}, {"a": None, "l": None, "n": 2}], schema=kind)
    sink = FileSink(str(tmp_path))
    with sink.begin(Attempt("job", 0, 0, 0)) as transaction:
        transaction.write(rows)
        transaction.prepare()
    (file,) = tmp_path.rglob("*.tmp")
    found = ds.dataset(file, format="parquet")
    assert found.schema.field("a").type == pa.binary()
    assert found.to_table(filter=ds.field("n") == 1).to_pylist() == rows.to_pylist()[:1]
    assert found.to_table(filter=ds.field("a") == b"x").to_pylist() == rows.to_pylist()[:1]


@pytest.mark.parametrize("column", [
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["x", None], pa.string_view())),
    pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int16()), pa.array(["x", None, "x"])),
    pa.array([["x"], None, ["y"]], pa.large_list(pa.string_view())),
    pa.array([{"a": "x"}, None, {"a": None}], pa.struct([("a", pa.string_view())])),
    pa.array([[{"a": "x"}], None, []], pa.list_(pa.struct([("a", pa.string_view())]))),
], ids=lambda column: str(column.type))  # fmt: skip
@pytest.mark.parametrize("file_format", list(FileFormat))
def test_encoded_columns_are_written_as_their_values(tmp_path, file_format, column):
    """Regression: JSON lines had no null lists and records of views, and Parquet no nulls in dictionaries, and no runs."""
    with FileSink(str(tmp_path), file_format).begin(Attempt("job", 0, 0, 0)) as transaction:
        transaction.write(pa.record_batch({"c": column}))
        transaction.prepare()
    (file,) = tmp_path.rglob("*.tmp")
    rows = (
        pq.read_table(file).to_pylist()
        if file_format is FileFormat.PARQUET
        else list(map(json.loads, file.read_text().splitlines()))
    )
    assert rows == [{"c": value} for value in column.to_pylist()]


def test_names_before_and_after():
    assert HANDLE.temporary == "7.3.1.0123456789abcdef.tmp"
    assert HANDLE.cleaned_up == "7.3.1.0123456789abcdef.swept"
    assert HANDLE.published == "part-query-1-000000007-00003-1-0123456789abcdef.parquet"


# --- paths and options --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("path", "normal"), [
    ("/a/b/", "/a/b"), ("/a/../b", "/b"), ("file:///a/b", "/a/b"), ("file:/a/b", "/a/b"), ("a", os.path.abspath("a")),
    ("s3://bucket/a/", "s3://bucket/a"), ("./a:b", os.path.abspath("a:b")), ("/a://b", "/a:/b"),
    ("file:///a%20b", "/a b"), ("file:/a%2520b", "/a%20b"), ("/a%20b", "/a%20b"),
])  # fmt: skip
def test_a_path_means_the_same_in_every_process(path, normal):
    sink = FileSink(path)
    assert sink.path == normal
    assert pickle.loads(pickle.dumps(sink)) == sink


@pytest.mark.parametrize(
    "path", ["dbfs:/x", "hdfs:/x", "s3:/x", "s3a:bucket/x", "HDFS:/x", "s3:", "c:/x", "x://y", "simplecache::s3://b"]
)
def test_an_address_without_two_slashes_is_no_local_folder(path):
    """findings: Sinks 9. Hadoop takes `dbfs:/x`; here it became the folder `dbfs:` of one machine."""
    with pytest.raises(UsageError, match=rf"^{path}: this names no filesystem.*/dbfs/folder"):
        FileSink(path)


@pytest.mark.parametrize("path", ["a", "a/b", "c"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path, path):
    """Regression: on Spark a path that is a file was a PicklingError about `_delta_log`, which does not exist."""
    (tmp_path / "a").touch()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / WORK).touch()
    sink = FileSink(str(tmp_path / path))
    with pytest.raises(UsageError, match=f"^{sink.path}: this is a file, or there is one in the place of a folder: correct"):
        sink.recorded_epochs()


def test_a_folder_that_this_process_may_not_list_is_named(tmp_path, monkeypatch):
    def names(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "_delta_log")

    monkeypatch.setattr(LocalStore, "names", names)
    for look in (FileSink(str(tmp_path)).recorded, FileSink(str(tmp_path)).committer(JOB).fence):
        with pytest.raises(PeerError, match=f"^{tmp_path}: Permission denied: let this process list the folder"):
            look()


@pytest.mark.parametrize("path", ["s3://b//x", "s3a://b//x/y/", "zip://a.zip::gs://b//x"])
def test_an_address_of_a_store_with_an_empty_name_behind_the_bucket_is_refused(path):
    """Regression: s3fs lists it as another place: rows were not read, and a run resumed from nothing at each start."""
    with pytest.raises(UsageError, match="between the two slashes behind the bucket there is an empty name"):
        FileSink(path)


@pytest.mark.parametrize(
    "path", ["s3://b/x//y", "hdfs://host//x", "root://host//x", "zip://x::file:///a.zip", "filecache://x::hdfs:///x"]
)
def test_two_slashes_elsewhere_are_taken(path):
    """Hadoop takes them for one, XRootD has them ahead of an absolute path.

    Regression: further in a bucket, where fsspec finds what is there, an empty name was refused.
    """
    assert FileSink(path).path == path


@pytest.mark.parametrize(
    ("name", "whose"), [("_delta_log", "Delta Lake"), ("_spark_metadata", "a streaming query's own file sink")]
)
def test_rows_written_into_a_table_of_others_are_seen_by_no_process_so_it_is_refused(sink, name, whose):
    """findings: Sinks 9. Before any task, and at the latest by the driver's first look; nothing is published."""
    handle, store = prepared(sink, 0, 0, ROWS), open_store(sink.path, sink.storage_options)
    store.make_folder(name)
    job_committer(sink).recover()  # an empty folder is not a table
    store.create(f"{name}/0", b"{}", f"{WORK}/scratch")
    for act in (sink.recorded_epochs, lambda: job_committer(sink).commit(0, (handle,))):
        with pytest.raises(UsageError, match=rf"is a table of {whose}: .* {name} lists"):
            act()
    assert visible(sink) == []


@pytest.mark.parametrize(("arguments", "message"), [
    ({"path": ""}, "path of a folder"), ({"path": "file://host/a"}, "file:///folder"), ({"path": "s3://bucket/*"}, "patterns"),
    ({"path": "/a", "row_group_bytes": 0}, "at least 1"), ({"path": "/a", "compression": "rar"}, "no compression 'rar'"),
    ({"path": "/a", "compression": "zstd", "format": FileFormat.JSON_LINES}, "for Parquet"),
    ({"path": "/a", "format": "json"}, "format must be one of parquet, jsonl, not 'json'$"),
    ({"path": "/a", "storage_options": {"key": "hidden"}}, r"no storage options; got \['key'\]$"),
], ids=str)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_at_once(arguments, message):
    with pytest.raises(UsageError, match=message):
        FileSink(**arguments)


def test_storage_options_are_not_shown_and_tell_sinks_apart():
    sinks = [FileSink("s3://bucket/a", storage_options={"key": key}) for key in ("hidden", "hidden", "other")]
    assert "hidden" not in repr(sinks[0])
    assert len(set(sinks)) == 2


def test_an_unknown_scheme_is_refused():
    pytest.importorskip("fsspec")
    with pytest.raises(UsageError, match="nosuch"):
        FileSink("nosuch://a").committer(JOB)


def test_a_local_folder_needs_no_fsspec():
    code = "import sys, headrace.connectors.files as f; f.FileSink('/a').committer('job'); print('fsspec' in sys.modules)"
    assert printed(code) == "False"


class PutsAnyway:
    """A filesystem that creates what is there."""

    def __init__(self, store: FsspecStore, *, knows: bool) -> None:
        self._filesystem = store._filesystem
        self._knows = knows

    def pipe_file(self, path: str, data: bytes, mode: str) -> None:
        if not self._knows:
            raise TypeError("unexpected keyword argument 'mode'")
        self._filesystem.pipe_file(path, data)

    def __getattr__(self, name):
        return getattr(self._filesystem, name)


@pytest.mark.parametrize("knows", [True, False])
def test_a_store_that_cannot_keep_two_drivers_apart_is_refused_by_its_name(knows):
    pytest.importorskip("fsspec")
    sink = FileSink(f"memory://{uuid4().hex}")
    store = open_store(sink.path, {})
    assert isinstance(store, FsspecStore)
    store._filesystem = PutsAnyway(store, knows=knows)
    with pytest.raises(UsageError, match=r"PutsAnyway.*two drivers of a job cannot be kept apart"):
        committer_of(sink, store).fence()


@pytest.mark.parametrize("opened", [lambda url: open_store(url, {}), lambda url: open_folder(url, {}, None)])
def test_hdfs_without_its_library_is_a_usage_error(opened, monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    def url_to_fs(*_, **__):
        raise OSError("Unable to load libhdfs: ./libhdfs.so: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    with pytest.raises(UsageError, match=r"hdfs://name:9000/in: .*libhdfs.*CLASSPATH"):
        opened("hdfs://name:9000/in")


def test_a_local_filesystem_without_hard_links_is_refused(tmp_path, monkeypatch):
    def link(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(UsageError, match="no hard links"):
        committer_of(FileSink(str(tmp_path))).fence()


@pytest.mark.parametrize("name", ["EINVAL", "ENOTSUP", "EOPNOTSUPP", "ENOSYS", "EBADF"])
def test_a_filesystem_that_cannot_sync_folders_is_written_to(tmp_path, monkeypatch, name):
    """findings: Sinks 23. CIFS and filesystems in user space; the fsync of files is not skipped."""
    synced = syncing_folders_fails(monkeypatch, getattr(errno, name))
    sink = FileSink(str(tmp_path))
    job_committer(sink).commit(0, (prepared(sink, 0, 0, ["a"]),))
    assert visible(sink) == ["a"]
    assert {stat.S_ISDIR(mode) for mode in synced} == {True, False}


@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EDQUOT", "EROFS"])
def test_a_folder_whose_sync_fails_fails_the_write(tmp_path, monkeypatch, name):
    sink = FileSink(str(tmp_path))
    handle = prepared(sink, 0, 0, ["a"])
    syncing_folders_fails(monkeypatch, getattr(errno, name))
    with pytest.raises(PeerError, match=f"Errno {getattr(errno, name)}"):
        prepared(sink, 0, 1, ["b"])
    with pytest.raises(OSError, match=rf"Errno {getattr(errno, name)}\] .*: '{sink.path}"):
        job_committer(sink).commit(0, (handle,))
    assert visible(sink) == []


def test_a_disk_that_is_full_at_the_commit_is_named(tmp_path, monkeypatch):
    sink = FileSink(str(tmp_path))
    committer = job_committer(sink)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device: '{sink.path}/{WORK}"):
        committer.commit(0, ())


def syncing_folders_fails(monkeypatch, code: int) -> list[int]:
    """Returns the modes of what is synced from now on."""
    fsync, synced = os.fsync, []

    def failing(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_mode)
        if stat.S_ISDIR(synced[-1]):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    return synced


# --- writing ------------------------------------------------------------------------------------------------------------
def test_a_task_without_rows_touches_nothing(sink):
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(batch_of([]))
        assert transaction.prepare() is None
    assert published(sink) == left_over(sink) == []


def test_what_is_not_prepared_is_removed(sink):
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(batch_of(ROWS))
        assert len(left_over(sink)) == 1
    assert left_over(sink) == []


@pytest.mark.parametrize("file_format", FileFormat)
def test_after_an_error_a_file_takes_and_gives_no_rows(tmp_path, file_format):
    sink = FileSink(str(tmp_path), file_format)
    transaction = sink.begin(Attempt(JOB, 0, 0, 0))
    transaction.write(batch_of(ROWS))
    with pytest.raises(UsageError, match="started with value string, and now come rows of other int64"):
        transaction.write(pa.RecordBatch.from_pydict({"other": [1]}))
    for act in (transaction.prepare, lambda: transaction.write(batch_of(ROWS))):
        with pytest.raises(UsageError, match="given up after an error"):
            act()
    assert left_over(sink) == []


def test_rows_without_columns_are_objects_without_names_or_refused(tmp_path):
    rows = batch_of(ROWS).select([])
    sink = FileSink(str(tmp_path / "lines"), FileFormat.JSON_LINES)
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(rows)
        handle = transaction.prepare()
    job_committer(sink).commit(0, (handle,))
    assert (tmp_path / "lines" / handle.published).read_text() == "{}\n" * len(ROWS)
    with pytest.raises(UsageError, match="rows without columns cannot be written"):
        FileSink(str(tmp_path / "parquet")).begin(Attempt(JOB, 0, 0, 0)).write(rows)
    assert left_over(FileSink(str(tmp_path / "parquet"))) == []


def test_a_map_with_a_key_twice_is_no_json_object():
    """The object had the name twice, which readers refuse, or take the last of."""
    maps = [[("b", 1)], [("a", 1), ("b", 2)], None, [("b", 1)], [("a", 1), ("a", 2)]]
    rows = pa.record_batch([pa.array(maps, pa.map_(pa.string(), pa.int32()))], names=["m"])
    assert json_lines(rows.slice(1, 3)) == b'{"m":{"a":1,"b":2}}\n{"m":null}\n{"m":{"b":1}}\n'
    with pytest.raises(UsageError, match="a map has a key twice"):
        json_lines(rows.slice(3))


_PAIRS = pa.list_(pa.int32(), 2)


@pytest.mark.parametrize(("kind", "values"), [
    (_PAIRS, [[1, 2], None]), (pa.list_(_PAIRS), [[[1, 2], None], None]),
    (pa.struct([("a", _PAIRS)]), [{"a": [1, 2]}, {"a": None}]),
    (pa.map_(pa.string(), _PAIRS), [[("k", None)], None]), (pa.fixed_shape_tensor(pa.int32(), (2,)), [[1, 2], None]),
], ids=str)  # fmt: skip
def test_nulls_among_lists_of_a_fixed_size_can_be_read(tmp_path, kind, values):
    """pyarrow writes them, and reads none of the file's."""
    stored = pa.array(values, getattr(kind, "storage_type", kind))
    column = pa.ExtensionArray.from_storage(kind, stored) if isinstance(kind, pa.BaseExtensionType) else stored
    sink = FileSink(str(tmp_path))
    with sink.begin(Attempt(JOB, 0, 0, 0)) as transaction:
        transaction.write(pa.record_batch([column], names=["a"]).slice(1))
        transaction.write(pa.record_batch([column], names=["a"]))
        handle = transaction.prepare()
    job_committer(sink).commit(0, (handle,))
    assert pq.read_table(tmp_path / handle.published)["a"].to_pylist() == [values[1], *values]


def test_what_the_filesystem_refuses_names_the_file(tmp_path):
    (tmp_path / WORK).write_text("in the way")
    with pytest.raises(PeerError, match=rf"cannot write {WORK}/job/0\.0\.0\."):
        FileSink(str(tmp_path)).begin(Attempt(JOB, 0, 0, 0)).write(batch_of(ROWS))


# --- committing ---------------------------------------------------------------------------------------------------------
def test_a_commit_publishes_the_files_and_leaves_nothing(sink):
    loser = prepared(sink, 0, 0, ROWS[:2], number=1)
    handles = (prepared(sink, 0, 0, ROWS[:2]), prepared(sink, 0, 1, ROWS[2:]))
    assert visible(sink) == []
    job_committer(sink).commit(0, handles)
    assert visible(sink) == ROWS
    assert published(sink) == sorted(handle.published for handle in handles)
    assert loser.published not in published(sink)
    assert left_over(sink) == []
    assert sink.recorded_epochs() == {JOB: 0}


def test_a_file_that_is_gone_or_partially_committed_fails_the_epoch(sink):
    handles = (prepared(sink, 0, 0, ROWS), prepared(sink, 0, 1, ROWS))
    store = open_store(sink.path, {})
    store.remove(f"{WORK}/{JOB}/{handles[0].temporary}")
    with pytest.raises(PeerError, match=rf"{handles[0].temporary} is not there any more: write the epoch again"):
        committer_of(sink).check(handles)
    with pytest.raises(PeerError, match=r"bytes, not \d+"):
        committer_of(sink).check([FileHandle(handles[1].attempt, handles[1].token, handles[1].format, 4, 1)])


def test_a_listed_file_that_another_process_removed_is_data_loss_and_named(sink):
    handle = prepared(sink, 0, 0, ROWS)
    old = committer_of(sink)
    old.fence()
    old.record(CommitList(0, (handle,)))
    open_store(sink.path, {}).remove(f"{WORK}/{JOB}/{handle.temporary}")
    with pytest.raises(DataLossError, match=rf"{handle.temporary} \(4 rows\)"):
        job_committer(sink).recover()


def test_ending_twice_is_ending_once(sink):
    handle = prepared(sink, 0, 0, ROWS)
    committer = committer_of(sink)
    assert [committer.end(handle), committer.end(handle)] == [Outcome.COMMITTED] * 2
    assert visible(sink) == ROWS


def test_what_is_not_there_under_any_name_is_aborted(sink):
    assert committer_of(sink).end(HANDLE) is Outcome.ABORTED


def test_an_older_driver_is_fenced(sink):
    old, new = committer_of(sink), committer_of(sink)
    assert old.fence() is None
    old.record(CommitList(0, (), completed=True))
    assert new.fence() == CommitList(0, (), completed=True)
    for act in (lambda: old.record(CommitList(1, (), completed=True)), lambda: old.clean_up(())):
        with pytest.raises(FencedError, match="another driver of job 'job' claimed it"):
            act()
    new.record(CommitList(1, (), completed=True))
    new.record(CommitList(2, (), completed=True))  # by now the old driver's next number is free again
    with pytest.raises(FencedError):
        old.record(CommitList(1, (), completed=True))
    assert sink.recorded_epochs() == {JOB: 2}


def test_a_driver_records_nothing_in_an_older_copy_of_its_folder(tmp_path):
    """Its next epoch would hide that those between are not there."""
    sink = FileSink(str(tmp_path / "rows"))
    committer = job_committer(sink)
    committer.commit(0, (prepared(sink, 0, 0, ["0"]),))
    shutil.copytree(sink.path, tmp_path / "backup")
    committer.commit(1, (prepared(sink, 1, 0, ["1"]),))
    shutil.rmtree(sink.path)
    (tmp_path / "backup").rename(sink.path)
    with pytest.raises(StateError, match="an older copy of the folder has taken its place"):
        committer.commit(2, (prepared(sink, 2, 0, ["2"]),))
    assert visible(sink) == ["0"]


def test_a_driver_that_has_not_fenced_records_nothing(sink):
    with pytest.raises(ProtocolViolationError, match="has not fenced"):
        committer_of(sink).record(CommitList(0, ()))


def test_a_stale_epoch_is_refused_and_its_files_are_cleaned_up(sink):
    job_committer(sink).commit(5, (prepared(sink, 5, 0, ROWS),))
    with pytest.raises(StaleEpochError):
        job_committer(sink).commit(4, (prepared(sink, 4, 0, ["stale"]),))
    assert visible(sink) == ROWS
    assert left_over(sink) == []


def test_jobs_do_not_touch_each_other(sink):
    other = sink.begin(Attempt("job-2", 0, 0, 0))
    other.write(batch_of(["other"]))
    handle = other.prepare()
    assert handle is not None
    job_committer(sink).commit(3, (prepared(sink, 3, 0, ROWS),))
    sink.committer("job-2").check([handle])
    assert sink.recorded_epochs() == {JOB: 3}


def test_two_writes_of_one_name_and_number_to_two_folders_both_write(sink):
    """findings: Sinks 1. Lists are in the folder that they are for, so that no name has to tell them apart."""
    other = FileSink(f"{sink.path}-other")
    for epoch in (0, 1, 1):
        for name, to in (("a", sink), ("b", other)):
            batch_writes.written(to, JOB, epoch, batch_of([f"{name}{epoch}"]))
    assert [visible(to) for to in (sink, other)] == [["a0", "a1"], ["b0", "b1"]]


def test_a_forgotten_job_leaves_its_published_files_only(sink):
    committer = job_committer(sink)
    committer.commit(0, (prepared(sink, 0, 0, ROWS),))
    prepared(sink, 1, 0, ROWS)
    committer.forget()
    committer.close()
    assert sink.recorded_epochs() == {}
    assert open_store(sink.path, {}).names(WORK) == []
    assert visible(sink) == ROWS


def test_a_damaged_list_is_refused_and_the_file_is_named(sink):
    job_committer(sink).commit(0, ())
    store = open_store(sink.path, {})
    name = next(name for name in store.names(WORK) if name.endswith(".json"))
    store.remove(f"{WORK}/{name}")
    store.create(f"{WORK}/{name}", b"{", f"{WORK}/x")
    with pytest.raises(StateError, match=rf"{WORK}/{name}: the list of transactions cannot be read: it is not JSON"):
        committer_of(sink).fence()


@pytest.mark.parametrize("data", [b"{", b'{"format": "headrace-commit-list", "version": 99}', None], ids=str)
def test_a_list_of_another_job_that_cannot_be_read_stops_no_query_of_the_folder(sink, caplog, data, monkeypatch):
    """findings: Sinks 11. It is damaged, a newer headrace wrote it, or it may not be read."""
    store = open_store(sink.path, {})
    store.make_folder(WORK)
    name = f"{WORK}/other.000000000007.json"
    store.create(name, data or b"secret", f"{WORK}/scratch")
    if data is None:
        readable = type(store).read

        def read(self, asked):
            if asked == name:
                raise PermissionError(13, "Permission denied", asked)
            return readable(self, asked)

        monkeypatch.setattr(type(store), "read", read)
    job_committer(sink).commit(0, (prepared(sink, 0, 0, ROWS),))
    assert sink.recorded_epochs() == {JOB: 0}
    assert "the list of job 'other' is left alone" in caplog.text
    assert visible(sink) == ROWS
    with pytest.raises((StateError, PermissionError)):  # its own driver
        sink.committer("other").fence()
    assert name.rpartition("/")[2] in store.names(WORK)


def test_the_job_whose_own_list_is_damaged_ends_and_cleans_up_nothing(sink):
    """findings: Sinks 11. Its tasks may write, as they do not know; its driver stops before it touches what they prepared."""
    job_committer(sink).commit(0, (prepared(sink, 0, 0, ROWS),))
    store = open_store(sink.path, {})
    name = next(name for name in store.names(WORK) if name.endswith(".json"))
    store.remove(f"{WORK}/{name}")
    store.create(f"{WORK}/{name}", b"{", f"{WORK}/x")
    assert sink.recorded_epochs() == {}
    handle = prepared(sink, 0, 0, ROWS)
    for act in (job_committer(sink).recover, lambda: job_committer(sink).commit(0, (handle,))):
        with pytest.raises(StateError, match="cannot be read"):
            act()
    assert visible(sink) == ROWS
    assert left_over(sink) == [handle.temporary]


def test_lists_are_written_in_the_common_form(sink):
    committer, handle = committer_of(sink), prepared(sink, 0, 0, ROWS)
    committer.fence()
    committer.record(CommitList(0, (handle,)))
    store = open_store(sink.path, {})
    names = [name for name in store.names(WORK) if name.endswith(".json")]
    assert names == ["job.000000000002.json"]
    found = CommitListSerializer(FileHandleSerializer()).deserialize(store.read(f"{WORK}/{names[0]}"), "here")
    assert found == CommitList(0, (handle,))


# --- drivers that die, and drivers that are replaced ----------------------------------------------------------------------
def write_epoch(sink: FileSink, epoch: int, tasks: int) -> tuple[FileHandle, ...]:
    """The same rows whatever the number of tasks, and an attempt that no process counts."""
    values = [f"{epoch}{value}" for value in ROWS]
    prepared(sink, epoch, 0, values, number=7)
    return tuple(prepared(sink, epoch, task, values[task::tasks]) for task in range(tasks))


def commit_until_done(sink: FileSink, epoch: int, tasks: int) -> None:
    """As an engine does: an epoch that fails is written again by a new driver."""
    for _ in range(3):
        try:
            return job_committer(sink).commit(epoch, write_epoch(sink, epoch, tasks))
        except (PeerError, FencedError):
            continue
    raise AssertionError(f"epoch {epoch} cannot be committed")


def expected(*epochs: int) -> list[str]:
    return sorted(f"{epoch}{value}" for epoch in epochs for value in ROWS)


def folders_like(sink: FileSink, count: int) -> list[FileSink]:
    return [FileSink(f"{sink.path}-{number}") for number in range(count)]


def calls_of_a_commit(sink: FileSink) -> int:
    """How many calls of the filesystem a first commit makes."""
    commit_until_done(sink, 0, 2)
    store = WatchedStore(open_store(sink.path, {}), lambda _: None)
    job_committer(sink, store).commit(1, write_epoch(sink, 1, 2))
    return store.calls


def test_a_driver_killed_before_any_call_of_the_filesystem(sink):
    count = calls_of_a_commit(sink)
    assert count > 20
    for number, folder in enumerate(folders_like(sink, count)):
        commit_until_done(folder, 0, 2)

        def die(call: int, last: int = number) -> None:
            if call == last:
                raise KilledError

        with pytest.raises(KilledError):
            job_committer(folder, WatchedStore(open_store(folder.path, {}), die)).commit(1, write_epoch(folder, 1, 2))
        commit_until_done(folder, 1, 3)
        assert visible(folder) == expected(0, 1), number
        assert left_over(folder) == [], number


def test_a_driver_replaced_before_any_call_of_the_filesystem(sink):
    """The other one commits the same epoch, and the next; then the first continues, and may do no harm."""
    fenced = 0
    count = calls_of_a_commit(sink)
    for number, folder in enumerate(folders_like(sink, count)):
        commit_until_done(folder, 0, 2)

        def let_in(call: int, when: int = number, folder: FileSink = folder) -> None:
            if call == when:
                commit_until_done(folder, 1, 3)
                commit_until_done(folder, 2, 1)

        try:
            job_committer(folder, WatchedStore(open_store(folder.path, {}), let_in)).commit(1, write_epoch(folder, 1, 2))
        except (FencedError, PeerError, StaleEpochError):
            fenced += 1
        commit_until_done(folder, 3, 1)
        assert visible(folder) == expected(0, 1, 2, 3), number
        assert left_over(folder) == [], number
    assert fenced > 10


@pytest.mark.parametrize("step", ["check", "record", "end"])
def test_a_driver_whose_cleans_up_is_replaced_at_any_call(sink, step):
    """The successor's files were prepared before: it has fenced, checked or recorded them when the old clean up continues."""
    for number, folder in enumerate(folders_like(sink, 12)):
        commit_until_done(folder, 0, 1)
        old = WatchedStore(open_store(folder.path, {}), lambda _: None)
        cleaner = committer_of(folder, old)
        cleaner.fence()
        handles, successor = write_epoch(folder, 1, 2), committer_of(folder)
        started_at, refused = old.calls, []

        def let_in(call, when=number, started_at=started_at, handles=handles, successor=successor, refused=refused):
            if call == started_at + when:
                successor.fence()
                try:
                    successor.check(handles)
                except PeerError as error:
                    refused.append(error)
                    return
                if step != "check":
                    successor.record(CommitList(1, handles))
                if step == "end":
                    successor.end(handles[0])

        old._before = let_in
        with suppress(FencedError):
            cleaner.clean_up(())
        if old.calls <= started_at + number:
            assert number > 5
            break  # the clean-up makes no more calls
        if not refused:
            if step == "check":
                successor.record(CommitList(1, handles))
            assert [successor.end(handle) for handle in handles] == [Outcome.COMMITTED] * 2, number
            assert visible(folder) == expected(0, 1), number


CAUGHT = (AssertionError, HeadraceError)


@pytest.mark.parametrize("bug", files.IN_CLEANING_UP, ids=lambda bug: bug.__name__)
@pytest.mark.parametrize("step", ["check", "record"])
def test_a_injected_bug_in_sweeping_is_caught(sink, bug, step):
    with bug(), pytest.raises(CAUGHT):
        test_a_driver_whose_cleans_up_is_replaced_at_any_call(sink, step)


@pytest.mark.parametrize("bug", files.IN_THE_LISTS, ids=lambda bug: bug.__name__)
def test_a_injected_bug_in_the_lists_is_caught(sink, bug):
    with bug(), pytest.raises(CAUGHT):
        test_a_driver_replaced_before_any_call_of_the_filesystem(sink)


@pytest.mark.parametrize(("kind", "value", "text"), [
    (pa.timestamp("us", "UTC"), 1_700_000_000_000_000_000, "55840-11-08T22:13:20.000000Z"),
    (pa.timestamp("s"), -9 * 10**12, "-283229-05-10T08:00:00"), (pa.date32(), 2**31 - 1, "5881580-07-11"),
    (pa.string_view(), "a", "a"),
], ids=str)  # fmt: skip
def test_years_of_more_than_16_bits_and_views_are_written(kind, value, text):
    lines = json_lines(pa.record_batch({"a": pa.array([value, None], kind)}))
    assert lines.decode() == f'{{"a":"{text}"}}\n{{"a":null}}\n'
