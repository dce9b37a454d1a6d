import pickle

import pytest

from headrace.connectors.kafka.client.positions import At, Committed, Earliest, Latest, Timestamp
from headrace.enumerator.errors import UsageError


@pytest.mark.parametrize("offset", [0, 1, 2**63 - 1])
def test_an_offset_from_zero_up_is_valid(offset):
    assert At(offset).offset == offset


@pytest.mark.parametrize("value", [-1, -2, 2**63, 1.0, "5", True, None])
@pytest.mark.parametrize("kind", [At, Timestamp])
def test_what_is_no_offset_or_time_is_refused(kind, value):
    with pytest.raises(UsageError):
        kind(value)


@pytest.mark.parametrize("group", ["", 5])
def test_a_group_must_have_a_name(group):
    with pytest.raises(UsageError):
        Committed(group)


def test_committed_falls_back_to_earliest_which_loses_nothing():
    assert Committed().fallback == Earliest()


def test_committed_cannot_fall_back_to_committed():
    with pytest.raises(UsageError):
        Committed("g", fallback=Committed("h"))  # type: ignore[arg-type]


def test_positions_are_values():
    positions = {Earliest(), Latest(), At(0), At(1), Timestamp(0), Committed("g"), Committed("g", Latest())}
    assert len(positions) == 7
    assert pickle.loads(pickle.dumps(positions)) == positions
    assert At(0) != Timestamp(0)
