"""What each broker of a cluster, asked itself, says about the cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.protocol.metadata import MetadataRequest
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from headrace.enumerator.errors import DeadlineExceededError, RetriableError

POLL_SECONDS = 0.05
ANSWER_SECONDS = 5.0
WAIT_SECONDS = 120.0


def addresses(bootstrap: str) -> list[str]:
    """The single `host:port` of a comma-separated list."""
    return [address.strip() for address in bootstrap.split(",")]


def is_listening(address: str) -> bool:
    """Whether anything accepts connections at `host:port`: cheaper to ask than a client that backs off."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def ask(address: str, topics: Iterable[str]) -> Any:  # noqa: ANN401 - kafka-python generates the class at run time
    """The Metadata response of the broker at `host:port`, about `topics`.

    Raises RetriableError when it does not answer within 5 s.
    """
    if not is_listening(address):
        raise RetriableError(f"nothing listens at {address}")
    milliseconds = int(ANSWER_SECONDS * 1000)
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


def wait_until(check: Callable[[], None], what: str) -> None:
    """Call `check` every 50 ms until it no longer raises RetriableError.

    Raises DeadlineExceededError after 120 s, and at once whatever else `check` raises.
    """
    attempts = Retrying(
        retry=retry_if_exception_type(RetriableError),
        stop=stop_after_delay(WAIT_SECONDS),
        wait=wait_fixed(POLL_SECONDS),
    )
    try:
        attempts(check)
    except RetryError as error:
        last = error.last_attempt.exception()
        raise DeadlineExceededError(f"{what}: not within {WAIT_SECONDS:.0f} s; last seen: {last}") from last
