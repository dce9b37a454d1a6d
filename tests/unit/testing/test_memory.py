"""What the conformance kit does not show of the log in memory: its offsets for engines that plan by themselves."""

import gc
import pickle

import pytest

from headrace.enumerator.errors import DataLossError, StateError, UsageError
from headrace.runners.spark.log_read import LogOffsets
from headrace.testing.memory import MemoryLog, MemorySource, MemorySplit
from tests.helpers.memory_offsets import MemoryOffsets


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("a")
    log.append("a", ["one", "two", "three"])
    return log


def test_offsets_come_back_from_json_as_they_were():
    offsets = LogOffsets({"a": MemorySplit("a", 2), "b": MemorySplit("b", 0, 9)}, {"a": 0, "b": 0}, initial=True)
    text = MemoryOffsets().to_json(offsets)
    assert MemoryOffsets().from_json(text) == offsets
    assert MemoryOffsets().to_json(MemoryOffsets().from_json(text)) == text


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"splits":[7],"began":{},"initial":false}'])
def test_other_text_is_refused(text):
    with pytest.raises(StateError):
        MemoryOffsets().from_json(text)


def test_ends_are_those_of_now_or_the_splits_own(log):
    splits = [MemorySplit("a", 1), MemorySplit("a", 1, 2)]
    assert [MemorySource(log).end_offsets([split])["a"] for split in splits] == [3, 2]


def test_an_end_behind_the_position_is_data_loss(log):
    with pytest.raises(DataLossError):
        MemorySource(log).end_offsets([MemorySplit("a", 4)])


def test_latest_is_for_the_splits_there_are_at_first(log):
    discovery = MemorySource(log, start="latest").create_discovery()
    assert discovery.initial().added == [MemorySplit("a", 3)]
    log.create("b")
    log.append("b", ["four"])
    assert discovery.later({"a": MemorySplit("a", 3)}).added == [MemorySplit("b", 0)]


def test_only_the_columns_asked_for_are_built(log):
    reader = MemorySource(log).with_columns(["value", "offset"]).create_reader()
    reader.add_splits([MemorySplit("a", 0)])
    assert reader.poll(0.0).records.to_pylist() == [{"value": "one", "offset": 0}, {"value": "two", "offset": 1}]


def test_a_pickled_log_is_the_same_log(log):
    assert pickle.loads(pickle.dumps(log)) is log


def test_a_log_that_is_gone_is_named_as_the_reason():
    data = pickle.dumps(MemoryLog())
    gc.collect()
    with pytest.raises(UsageError, match="another process"):
        pickle.loads(data)


@pytest.mark.parametrize("options", [{"start": "middle"}, {"batch_size": 0}])
def test_settings_that_make_no_sense_are_refused(log, options):
    with pytest.raises(UsageError):
        MemorySource(log, **options)
