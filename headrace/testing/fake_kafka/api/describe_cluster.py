"""API key 60, DescribeCluster: KIP-700."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Api, Call
from headrace.testing.fake_kafka.codes import ErrorCode
from headrace.testing.fake_kafka.protocol import DescribeClusterResponse, Message
from headrace.testing.fake_kafka.state.brokers import HOST


def handle(call: Call) -> Message:
    call.admit()
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=call.state.id,
        controller_id=call.state.controller,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(broker_id=broker.id, host=HOST, port=broker.port, rack=None)
            for broker in call.state.brokers_at(call.broker)
        ],
    )


API = Api(60, "DescribeCluster", 0, 2, DescribeClusterResponse, handle)
