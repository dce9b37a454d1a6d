"""Where Flink puts an element, and how it is put elsewhere."""

from __future__ import annotations

from collections import Counter

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from headrace.beam import ReadFromSource
from headrace.runners.beam.coders import Element, ReaderFormat
from headrace.runners.beam.flink_placement import Subtasks, placed
from headrace.testing.memory import MemoryLog, MemorySource
from tests.helpers.beam_rig import Stage

# By Beam's FlinkKeyUtils.encodeKey and Flink's KeyGroupRangeAssignment themselves (2.62, 1.19): of this many bytes,
# byte i is i * 37 + 11, the subtasks of 2, 3, 7 (with 128 key groups) and 100 (with 256).
BY_JAVA = {
    0: (1, 2, 6, 48),
    1: (0, 0, 0, 3),
    5: (0, 1, 2, 69),
    127: (1, 1, 3, 76),
    128: (1, 2, 4, 33),
    300: (0, 0, 1, 14),
    20000: (0, 0, 0, 6),
}


def data(count):
    return bytes((number * 37 + 11) & 255 for number in range(count))


@pytest.mark.parametrize("count", BY_JAVA)
def test_the_subtask_is_the_one_that_java_computes(count):
    jobs = (Subtasks(2, 128), Subtasks(3, 128), Subtasks(7, 128), Subtasks(100, 256))
    assert tuple(job.index_of(data(count)) for job in jobs) == BY_JAVA[count]


@pytest.mark.parametrize(
    ("parallelism", "groups"), [(1, 128), (2, 128), (85, 128), (86, 256), (100, 256), (1000, 2048), (30000, 32768)]
)
def test_the_number_of_key_groups_is_flinks_unless_it_is_given(parallelism, groups):
    assert Subtasks.of(parallelism, -1).max_parallelism == groups
    assert Subtasks.of(parallelism, 40000).max_parallelism == 40000


@pytest.mark.parametrize("parallelism", [1, 2, 7, 64])
def test_white_space_puts_an_element_anywhere(parallelism):
    job = Subtasks.of(parallelism, 0)
    for subtask in range(parallelism):
        element = placed(data(3000), subtask, job)
        assert job.index_of(element) == subtask
        assert element.rstrip(b" ") == data(3000)


def test_readers_are_spread_evenly_and_their_splits_are_what_they_were():
    log = MemoryLog()
    for number in range(100):
        log.create(f"s{number}")
    source = MemorySource(log)
    options = PipelineOptions(["--parallelism=8"]).get_all_options()
    stage = Stage(ReadFromSource(source, discovery_interval_s=1e-9).stages(options)[0])
    job = Subtasks.of(8, 0)
    first = stage.process(stage.begin(Element(b"")))
    works = [output.value.state for output in first.outputs]
    assert sorted(job.index_of(work) for work in works) == list(range(8))
    splits = [split.split_id for work in works for split in ReaderFormat(source).decode(work).reading]
    assert Counter(splits) == Counter(f"s{number}" for number in range(100))
    later = []
    (rest,) = first.residuals
    for number in range(8):  # found one by one, they do not all come to one subtask
        log.create(f"later{number}")
        bundle = stage.process(rest)
        (rest,) = bundle.residuals
        later += [job.index_of(output.value.state) for output in bundle.outputs]
    assert sorted(later) == list(range(8))
    stage.close()
