"""kafka-python's classes for requests and responses, which encode and decode every version of Kafka's protocol.

They are not its public API. Nothing else in headrace imports them from kafka-python.
"""

from __future__ import annotations

from typing import Any

from kafka.errors import IncompatibleBrokerVersion
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    UpdateFeaturesRequest,
)
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest

from headrace.connectors.kafka.client.api_versions import API_VERSIONS, Versions
from headrace.connectors.kafka.format.fetch_protocol import or_none

__all__ = [
    "AddPartitionsToTxnRequest",
    "ApiVersionsRequest",
    "CreateTopicsRequest",
    "DeleteRecordsRequest",
    "DescribeConfigsRequest",
    "DescribeTransactionsRequest",
    "EndTxnRequest",
    "FetchRequest",
    "FindCoordinatorRequest",
    "IncompatibleBrokerVersion",
    "InitProducerIdRequest",
    "ListOffsetsRequest",
    "ListTransactionsRequest",
    "Message",
    "MetadataRequest",
    "OffsetCommitRequest",
    "OffsetFetchRequest",
    "OffsetForLeaderEpochRequest",
    "ProduceRequest",
    "UpdateFeaturesRequest",
    "compile_codecs",
    "or_none",
    "versions_of",
]


Message = Any
"""A request or response of kafka-python's protocol classes, which have no types."""


_OF_QUERIES = (
    *(ApiVersionsRequest, MetadataRequest, FindCoordinatorRequest, DescribeConfigsRequest, ListOffsetsRequest, FetchRequest),
    *(InitProducerIdRequest, ProduceRequest, EndTxnRequest, DescribeTransactionsRequest, ListTransactionsRequest),
)


def compile_codecs() -> None:
    """Have kafka-python compile what encodes and decodes the newest versions of a query's messages now.

    It does so with the first message of each kind, in every process: some milliseconds each. For a process that others are
    forked from, before it has a thread. Does no I/O.
    """
    for kind in _OF_QUERIES:
        request = kind()
        version = request.API_VERSION = versions_of(kind).highest
        request.with_header(correlation_id=0, client_id="")
        response, is_flexible = request.header.get_response_class(), kind.flexible_version_q(version)
        kind._struct.compiled_encode_into(version, compact=is_flexible, tagged=is_flexible)
        if kind is not FetchRequest:  # whose responses we read ourselves
            response._struct.compiled_decode_from(version, compact=is_flexible, tagged=is_flexible, data_class=response[None])


def versions_of(request: Message) -> Versions:
    """The versions that we speak of a request (class or instance); all that kafka-python has of an API only tests use."""
    name = str(request.name).removesuffix("Request")
    return API_VERSIONS.get(name) or Versions(request.min_version, request.max_version, "")
