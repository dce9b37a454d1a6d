"""`headrace verify`: the comparison, on records in memory, with every fault injected; and partially committed epochs."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.compare import Identity, OrderCheck, RecordFault, RecordField, TopicCounts, identity_hash, parse_origin
from headrace.cli.durable_lists import DurableLists
from headrace.cli.verify import EpochState, unread_lists
from headrace.connectors.kafka.format.decode import HEADERS_TYPE
from headrace.connectors.kafka.log_dump import TransactionStatus
from headrace.connectors.kafka.write.names import EACH_ROWS_TOPIC, digest_of
from headrace.enumerator.errors import UsageError
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import NewRecord
from tests.helpers.command_line import run_command


def batch(values, keys=None, headers=None):
    columns = {
        "value": pa.array(values, pa.binary()),
        "key": pa.array(keys or [None] * len(values), pa.binary()),
        "headers": pa.array(headers or [None] * len(values), HEADERS_TYPE),
    }
    return pa.RecordBatch.from_pydict(columns)


def compared(before, after):
    """The comparison and the findings in the output."""
    counts, identity = TopicCounts(), Identity()
    counts.add_input(identity.hashes(batch(before)))
    return counts, [finding for _, finding in counts.add_output(identity.hashes(batch(after)))]


def test_a_copy_in_any_order_is_clean():
    counts, findings = compared([b"a", b"b", None], [None, b"b", b"a"])
    assert counts.summary(counts.lost) == "3 records in, 3 out, 0 duplicates, 0 lost, 0 foreign"
    assert findings == []


def test_every_fault_is_found():
    counts, findings = compared([b"a", b"b", b"c"], [b"a", b"a", b"x", b"x", b"b"])
    assert counts.summary(counts.lost) == "3 records in, 5 out, 1 duplicates, 1 lost, 2 foreign"
    assert findings == [RecordFault.DUPLICATE, RecordFault.FOREIGN, RecordFault.FOREIGN]


def test_records_that_repeat_are_counted():
    counts, findings = compared([b"a", b"a", b"a"], [b"a", b"a"])
    assert (counts.lost, counts.repeated, findings) == (1, 2, [])
    counts, findings = compared([b"a", b"a"], [b"a", b"a", b"a"])
    assert (counts.lost, findings) == (0, [RecordFault.DUPLICATE])


@given(st.lists(st.sampled_from([b"a", b"b", b"c", None])), st.lists(st.sampled_from([b"a", b"b", b"c", b"d", None])))
def test_the_counts_are_those_of_multisets(before, after):
    counts, findings = compared(before, after)
    wanted, found = Counter(before), Counter(after)
    assert counts.lost == (wanted - found).total()
    assert counts.foreign == sum(count for item, count in found.items() if item not in wanted)
    assert counts.duplicates == (found - wanted).total() - counts.foreign
    assert Counter(findings) == Counter({RecordFault.FOREIGN: counts.foreign, RecordFault.DUPLICATE: counts.duplicates})
    assert (counts.records_in, counts.records_out) == (len(before), len(after))


def test_the_lost_are_named_by_reading_the_input_again():
    counts, _ = compared([b"a", b"b", b"a", b"c"], [b"a"])
    assert list(counts.lost_among(Identity().hashes(batch([b"a", b"b"])))) == [0, 1]
    assert list(counts.lost_among(Identity().hashes(batch([b"a", b"c"])))) == [1]


def header(**values):
    return [{"key": key, "value": value} for key, value in values.items()]


def test_identities():
    both = batch([b"v"], [b"k"], [header(id=b"1", part=b"2")])
    assert list(Identity().parts(both)) == [(b"v",)]
    assert list(Identity(RecordField.KEY).parts(both)) == [(b"k",)]
    assert list(Identity(headers=("part", "id", "none")).parts(both)) == [(b"2", b"1", None)]
    twice = batch([b"v"], headers=[[*header(id=b"old"), *header(id=b"new")]])
    assert list(Identity(headers=("id",)).parts(twice)) == [(b"new",)]
    assert (Identity(RecordField.KEY).columns, Identity(headers=("id",)).columns) == (("key",), ("headers",))


def test_different_identities_have_different_hashes():
    parts = [(b"",), (None,), (b"a",), (b"a", b""), (b"", b"a"), (b"a", None), (b"ab", b"c"), (b"a", b"bc")]
    assert len({identity_hash(item) for item in parts}) == len(parts)
    assert {len(identity_hash(item)) for item in parts} == {16}


def origin(topic, partition, offset):
    return header(t=topic, p=partition, o=offset)


def test_order_is_of_an_input_partition_within_an_output_partition():
    check = OrderCheck(("t", "p", "o"))
    rows = [
        (0, origin(b"in", b"0", b"5"), False),
        (0, origin(b"in", b"1", b"2"), False),  # another input partition
        (1, origin(b"in", b"0", b"3"), False),  # another output partition
        (0, origin(b"in", b"0", b"9"), False),
        (0, origin(b"in", b"0", b"9"), False),  # a duplicate is not a disorder
        (0, origin(b"in", b"0", b"8"), True),
        (0, None, False),
        (0, origin(b"in", b"0", b"x"), False),
        (0, origin(b"in", b"0", b"9" * 5000), False),
    ]
    assert [check.add(partition, headers) for partition, headers, _ in rows] == [falls for *_, falls in rows]
    assert (check.violations, check.unmarked) == (1, 3)


def test_origin_headers_are_three():
    assert parse_origin(None) is None
    assert parse_origin("t, p,o").names == ("t", "p", "o")
    for text in ("t,p", "t,p,o,x", "t,,o"):
        with pytest.raises(UsageError, match="three headers"):
            parse_origin(text)


@pytest.mark.parametrize(
    ("fates", "torn"),
    [
        ({TransactionStatus.COMMITTED: 2}, False),
        ({TransactionStatus.COMMITTED: 1, TransactionStatus.OPEN: 1}, False),
        ({TransactionStatus.ABORTED: 2}, False),
        ({TransactionStatus.COMMITTED: 1, TransactionStatus.ABORTED: 1, TransactionStatus.OPEN: 1}, True),
    ],
)
def test_an_epoch_is_partially_committed_when_a_part_is_committed_and_a_part_aborted(fates, torn):
    assert EpochState("q", 1, fates).is_torn is torn


def test_a_list_of_the_output_that_cannot_be_read_is_unresolved_and_one_of_another_topic_is_not():
    destinations = {"a": "out", "b": EACH_ROWS_TOPIC, "c": "other"}
    keys = {f"headrace.{job}.{digest_of(destination)}": "damaged" for job, destination in destinations.items()}
    assert unread_lists(DurableLists("t", {}, {**keys, "foreign": "damaged"}), "out") == [("a", "damaged"), ("b", "damaged")]


def test_a_list_that_cannot_be_read_is_no_success(monkeypatch, capsys):
    """Regression: it was a note on stderr, and exit status 0."""
    with FakeKafka() as kafka:
        for topic in ("in", "out", "lists"):
            kafka.create_topic(topic)
        kafka.append("lists", NewRecord(b"{damaged", key=f"headrace.job.{digest_of('out')}".encode()))
        options = ["--input", "in", "--output", "out", "--commit-topic", "lists", "--bootstrap", kafka.bootstrap]
        ran = run_command(monkeypatch, capsys, "verify", *options)
    assert (ran.status, "job job: the state of its epoch is unknown" in ran.err) == (1, True)
