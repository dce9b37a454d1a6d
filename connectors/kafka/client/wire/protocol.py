"""kafka-python's classes for requests and responses, which encode and decode every version of Kafka's protocol.

They are not its public API. Nothing else in headrace imports them from kafka-python.
"""

from __future__ import annotations

from typing import Any

from kafka.errors import IncompatibleBrokerVersion
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    IncrementalAlterConfigsRequest,
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
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)

__all__ = [
    "AddPartitionsToTxnRequest",
    "ApiVersionsRequest",
    "CreatePartitionsRequest",
    "CreateTopicsRequest",
    "DeleteRecordsRequest",
    "DeleteTopicsRequest",
    "DescribeClusterRequest",
    "DescribeConfigsRequest",
    "DescribeProducersRequest",
    "DescribeTransactionsRequest",
    "EndTxnRequest",
    "FetchRequest",
    "FindCoordinatorRequest",
    "IncompatibleBrokerVersion",
    "IncrementalAlterConfigsRequest",
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
    "or_none",
]


Message = Any
"""A request or response of kafka-python's protocol classes, which have no types."""


def or_none(value: int) -> int | None:
    """A number that the protocol writes as -1 when it is unknown."""
    return None if value < 0 else value
