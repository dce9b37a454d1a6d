import pickle
from collections.abc import Iterator
from contextlib import suppress

import pytest
from kafka.errors import kafka_errors

from headrace.connectors.kafka.client.error_codes import ErrorCode, error_name
from headrace.connectors.kafka.client.errors import (
    BrokerError,
    GroupInUseError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnknownPartitionError,
    UnknownTopicError,
    broker_error,
)
from headrace.enumerator.errors import (
    AuthenticationError,
    CorruptDataError,
    DataLossError,
    FencedError,
    HeadraceError,
    RetriableError,
    UsageError,
    is_retriable,
)

RENAMED = {  # kafka-python keeps some names that Kafka has changed since
    -1: "UNKNOWN", 6: "NOT_LEADER_FOR_PARTITION", 10: "MESSAGE_SIZE_TOO_LARGE", 17: "INVALID_TOPIC",
}  # fmt: skip


@pytest.mark.parametrize("code", sorted(code for code in kafka_errors if code is not None and code > 0))
def test_names_agree_with_another_client(code):
    other, ours = kafka_errors[code].message, error_name(code)
    if other and code not in RENAMED:
        assert set(ours.split("_")) & set(other.split("_")), (code, ours, other)


@pytest.mark.parametrize(
    ("code", "name"),
    [(1, "OFFSET_OUT_OF_RANGE"), (47, "INVALID_PRODUCER_EPOCH"), (78, "OFFSET_NOT_AVAILABLE"), (90, "PRODUCER_FENCED"),
     (100, "UNKNOWN_TOPIC_ID"), (103, "INCONSISTENT_TOPIC_ID"), (127, "VOTER_NOT_FOUND")],
)  # fmt: skip
def test_names_are_at_their_numbers(code, name):
    assert (error_name(code), ErrorCode[name]) == (name, code)


def test_a_number_without_a_name_is_named_by_itself():
    assert error_name(200) == "ERROR_200"
    assert "ERROR_200 (200)" in str(broker_error(200, "doing it"))
    assert "NOT_COORDINATOR (16)" in str(broker_error(ErrorCode.NOT_COORDINATOR, "doing it"))


@pytest.mark.parametrize(("codes", "kind"), [
    ((-1, 3, 5, 6, 7, 13, 14, 15, 16, 51, 56, 74, 75, 78, 88, 100, 103), RetriableError),
    ((29, 30, 31, 33, 34, 53, 58), AuthenticationError), ((47, 90), FencedError), ((2,), CorruptDataError),
    ((17, 24, 40, 50), UsageError), ((22, 25, 27), GroupInUseError),
])  # fmt: skip
def test_what_a_code_means(codes, kind):
    for code in codes:
        error = broker_error(code, "doing it")
        assert isinstance(error, kind), code
        assert isinstance(error, BrokerError)
        assert is_retriable(error) == (kind is RetriableError)
        assert error_name(code) in str(error)
        assert str(error).startswith("doing it")


@pytest.mark.parametrize("code", [1, 48, 128, 999])
def test_a_code_of_unknown_meaning_is_not_retried_and_keeps_its_number(code):
    error = broker_error(code, "doing it")
    assert (type(error), error.code, is_retriable(error)) == (BrokerError, code, False)


@pytest.mark.parametrize("error", [
    broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "here"),
    broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "there", "a hint"), UnknownTopicError(frozenset({"t"})),
    UnknownPartitionError("t", 1),
    OffsetOutOfRangeError("t", 1, 5, 10, 20), LogTruncatedError("t", 1, 5, 3), LogTruncatedError("t", 1, 5, 3, epoch=2),
    LogTruncatedError("t", 1, 5, 5, epoch=2), TopicRecreatedError("t", "a", "b"), TopicRecreatedError("t", "a", None),
])  # fmt: skip
def test_errors_travel_between_processes_with_their_notes(error):
    error.add_note("what to do")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy), copy.__notes__) == (str(error), vars(error), ["what to do"])


def subclasses(of: type[Exception]) -> Iterator[type[Exception]]:
    for each in of.__subclasses__():
        yield from (each, *subclasses(each))


def test_errors_made_again_by_their_text_keep_it_or_refuse():
    """Beam adds the name of the step to an error's text, and takes a RuntimeError where the type refuses that."""
    texts = {}
    for kind in set(subclasses(HeadraceError)):
        with suppress(TypeError):
            texts[kind] = str(kind("what happened [while running 'Write']"))
    assert set(texts.values()) == {"what happened [while running 'Write']"}
    assert UnknownTopicError not in texts


def test_data_loss_names_what_is_lost():
    error = OffsetOutOfRangeError("orders", 3, 5, 10, 20)
    assert isinstance(error, DataLossError)
    assert "orders-3: offset 5 is out of range, available are 10 to 20" in str(error)
    assert "offsets 5 to 9 were deleted" in str(error)
    assert "shorter" in str(OffsetOutOfRangeError("orders", 3, 25, 10, 20))
