"""Fetch responses of every version, and the batch headers in them. The first byte is the version."""

from kafka.protocol.consumer import FetchResponse

from headrace.connectors.kafka.client.api_versions import API_VERSIONS
from headrace.connectors.kafka.format.fetch_protocol import parse_fetch_response, span_of_batches
from headrace.connectors.kafka.format.record_batch import stored_batches
from headrace.enumerator.errors import CorruptDataError
from tests.fuzz.batches import seeds as batches
from tests.fuzz.target import Target

MIN_VERSION = API_VERSIONS["Fetch"].lowest
_VERSIONS = API_VERSIONS["Fetch"].highest - MIN_VERSION + 1


def _check(data: bytes) -> None:
    try:
        answer = parse_fetch_response(memoryview(data)[1:], MIN_VERSION + data[0] % _VERSIONS)
    except CorruptDataError:
        return
    assert sum(len(partition.records) for partition in answer.partitions) <= len(data)
    for partition in answer.partitions:
        _check_records(partition.records)


def _check_records(records: memoryview) -> None:
    try:
        span = span_of_batches(records)
        whole = sum(len(batch.data) for batch in stored_batches(records))
    except CorruptDataError:
        return
    assert span is None or 0 < span.complete_bytes <= len(records)
    assert whole <= (0 if span is None else span.complete_bytes)


def _seeds() -> dict[str, bytes]:
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData
    found = {}
    for version, (name, records) in enumerate(batches().items(), MIN_VERSION):
        settings = partition(
            partition_index=1, error_code=0, high_watermark=100, last_stable_offset=90, log_start_offset=10,
            aborted_transactions=[partition.AbortedTransaction(producer_id=5, first_offset=6)], preferred_read_replica=-1,
            diverging_epoch=partition.EpochEndOffset(epoch=4, end_offset=55),
            current_leader=partition.LeaderIdAndEpoch(leader_id=2, leader_epoch=9), records=records,
        )  # fmt: skip
        responses = [topic(topic="t", topic_id=None, partitions=[settings])]
        response = FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=responses)
        number = version % _VERSIONS
        found[f"v{MIN_VERSION + number}-{name}"] = bytes([number]) + bytes(response.encode(version=MIN_VERSION + number))
    return found


TARGET = Target(
    "fetch_protocol", _check, _seeds,
    ("headrace.connectors.kafka.format.fetch_protocol", "headrace.connectors.kafka.format.record_batch"),
    (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 9 + b"\x01", b"\x80" * 6),
)  # fmt: skip
