"""What each broker of a cluster, asked itself, says about the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.protocol.metadata import MetadataRequest

from headrace.enumerator.errors import RetriableError
from headrace.testing.servers.ports import is_listening

ANSWER_S = 5.0


def addresses(bootstrap: str) -> list[str]:
    """The single `host:port` of a comma-separated list."""
    return [address.strip() for address in bootstrap.split(",")]


def ask(address: str, topics: Iterable[str]) -> Any:  # noqa: ANN401 - kafka-python generates the class at run time
    """The Metadata response of the broker at `host:port`, about `topics`.

    Raises RetriableError when it does not answer within 5 s.
    """
    if not is_listening(address):
        raise RetriableError(f"nothing listens at {address}")
    milliseconds = int(ANSWER_S * 1000)
    client = KafkaNetClient(bootstrap_servers=[address], request_timeout_ms=milliseconds, client_id="headrace-broker")
    try:
        client.check_version(timeout_ms=milliseconds)
        brokers = {f"{broker.host}:{broker.port}": broker.node_id for broker in client.cluster.brokers()}
        # Under an address that none of them advertises (another name, a load balancer) any of them may answer.
        node = brokers.get(address, next(iter(brokers.values())))
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        return client.send_and_receive(node, request, timeout_ms=milliseconds)
    except (KafkaError, OSError, StopIteration) as error:
        raise RetriableError(f"the broker at {address} does not answer: {error!r}") from error
    finally:
        client.close()
