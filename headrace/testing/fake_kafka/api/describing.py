"""What several answers say of brokers."""

from __future__ import annotations

from headrace.testing.fake_kafka.calls import Call
from headrace.testing.fake_kafka.protocol import Message
from headrace.testing.fake_kafka.state.brokers import HOST

__all__ = ["node_endpoints"]


def node_endpoints(call: Call, response: Message) -> list[Message]:
    """KIP-951: with the news of another leader comes where to find it."""
    brokers = call.state.brokers_at(call.broker)
    return [response.NodeEndpoint(node_id=broker.id, host=HOST, port=broker.port, rack=None) for broker in brokers]
