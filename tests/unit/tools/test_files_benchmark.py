"""The benchmark of files: every system reads what was written, and what is not read is noticed."""

import pytest

pytest.importorskip("psutil")

from benchmarks import files_systems
from benchmarks.files_data import Files
from benchmarks.files_systems import (
    LISTING_SYSTEMS,
    LOCAL_FILE_SYSTEMS,
    STATE_SYSTEMS,
    Found,
    Listing,
    find_new,
    local_files,
    state_size,
)
from benchmarks.harness import Context


def context(system, base):
    return Context(system, str(base), str(base))


@pytest.mark.parametrize("system", LOCAL_FILE_SYSTEMS)
@pytest.mark.parametrize("files", [
    Files("parquet", 100, 3),
    Files("parquet", 100, 3, wanted=2),
    Files("jsonl", 100, 3),
    Files("csv", 100, 3),
], ids=str)  # fmt: skip
def test_each_system_reads_all_records(tmp_path, system, files):
    files.write(str(tmp_path))
    measured = local_files(context(system, tmp_path), files)
    assert measured.records == measured.expected == 100


@pytest.mark.parametrize("system", LOCAL_FILE_SYSTEMS)
def test_a_missing_record_makes_a_run_invalid(tmp_path, system):
    files = Files("csv", 100, 2)
    files.write(str(tmp_path))
    file = next(files.folder(str(tmp_path)).glob("part-*"))
    file.write_text("\n".join(file.read_text().splitlines()[:-1]) + "\n")
    measured = local_files(context(system, tmp_path), files)
    assert measured.records != measured.expected


def test_each_format_has_the_same_rows(tmp_path):
    rows = []
    for kind in ("parquet", "jsonl", "csv"):
        files = Files(kind, 40, 1, fields=10)
        files.write(str(tmp_path))
        batches = files_systems._headrace(files, str(files.folder(str(tmp_path))))
        rows.append([row for batch in batches for row in batch.to_pylist()])
    assert rows[0] == rows[1] == rows[2]
    assert [row["f0"] for row in rows[0]] == list(range(40))


@pytest.mark.parametrize("system", LISTING_SYSTEMS)
def test_a_search_finds_what_is_new(tmp_path, system):
    listing = Listing(30, new=3, looks=2)
    listing.write(str(tmp_path))
    assert find_new(context(system, tmp_path), listing).records == 6
    assert len(list(listing.folder(str(tmp_path)).iterdir())) == 30


@pytest.mark.parametrize("system", STATE_SYSTEMS)
def test_a_checkpoint_is_measured_behind_all_files(tmp_path, system):
    measured = state_size(context(system, tmp_path), Found(60, looks=3))
    assert measured.records == 60
    assert measured.value > 0
