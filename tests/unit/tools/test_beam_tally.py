"""What the benchmark of Beam reads is judged by: every record counted exactly once, however it came."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.beam_parts import CountBatches, CountRecords, bundles, counted_once

VALUE = b"four"


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8) for number in numbers]


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": keys(*numbers), "value": [VALUE] * len(numbers)})


def run(counts: CountRecords | CountBatches, *elements_of_bundles: list[object]) -> None:
    """As a worker does: the stage arrives pickled."""
    arrived = pickle.loads(pickle.dumps(counts))
    arrived.setup()
    for elements in elements_of_bundles:
        arrived.start_bundle()
        for element in elements:
            arrived.process(element)
        arrived.finish_bundle()


def records(*numbers: int) -> list[object]:
    return [(key, VALUE) for key in keys(*numbers)]


def test_records_of_several_bundles_and_instances_are_counted_once(tmp_path: Path) -> None:
    run(CountRecords(tmp_path), records(3, 0), [], records(1))
    run(CountRecords(tmp_path), records(2, 4))
    assert counted_once(tmp_path, 5) == 5
    found = bundles(tmp_path)
    assert sorted((bundle.records, bundle.value_bytes, bundle.first_records) for bundle in found) == [
        (1, 4, 1), (2, 8, 1), (2, 8, 1),
    ]  # fmt: skip
    assert all(bundle.first_s <= bundle.last_s for bundle in found)


def test_batches_are_counted_by_their_rows_those_that_are_parts_of_others_too(tmp_path: Path) -> None:
    run(CountBatches(tmp_path), [batch(0, 1, 2), batch(9, 3, 4, 9).slice(1, 2)])
    assert counted_once(tmp_path, 5) == 5
    (bundle,) = bundles(tmp_path)
    assert (bundle.records, bundle.value_bytes, bundle.first_records) == (5, 20, 3)


@pytest.mark.parametrize("wrong", [
    pytest.param((0, 1, 2), id="one is lost"), pytest.param((0, 1, 2, 3, 3), id="one comes twice"),
    pytest.param((0, 1, 2, 2), id="one comes twice and another is lost"),
    pytest.param((0, 1, 2, 4), id="one is of another topic"), pytest.param((), id="nothing was read"),
])  # fmt: skip
def test_what_is_not_each_record_once_is_seen(tmp_path: Path, wrong: tuple[int, ...]) -> None:
    run(CountRecords(tmp_path), records(*wrong))
    assert counted_once(tmp_path, 4) == -1
