"""Making, growing and deleting topics, each waiting until every broker that answers shows the effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

from headrace.enumerator.errors import PeerError, RetriableError, UsageError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka.metadata import addresses, ask
from headrace.testing.servers.ports import is_listening

NO_ERROR = 0
UNKNOWN_TOPIC = UnknownTopicOrPartitionError.errno


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, replication: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic; return when every broker names a leader for each partition.

    Raises UsageError when it exists, PeerError when the brokers refuse, DeadlineExceededError after 120 s.
    """
    wanted = {"num_partitions": partitions, "replication_factor": replication, "configs": dict(configs or {})}
    with _admin(bootstrap, f"creating topic {name}") as admin:
        admin.create_topics({name: wanted})
    _wait(bootstrap, name, lambda topic: _has_partitions(topic, partitions), f"topic {name} was not created everywhere")


def add_partitions(bootstrap: str, name: str, total: int) -> None:
    """Grow a topic to `total` partitions; return when every broker names a leader for each.

    Raises PeerError when the brokers refuse, DeadlineExceededError after 120 s.
    """
    with _admin(bootstrap, f"adding partitions to topic {name}") as admin:
        admin.create_partitions({name: total})
    _wait(bootstrap, name, lambda topic: _has_partitions(topic, total), f"topic {name} did not grow everywhere")


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic; return when no broker knows it any more.

    Raises UsageError when there is no such topic, PeerError when the brokers refuse, DeadlineExceededError after 120 s.
    """
    with _admin(bootstrap, f"deleting topic {name}") as admin:
        admin.delete_topics([name])
    _wait(bootstrap, name, _is_gone, f"topic {name} was not deleted everywhere")


@contextmanager
def _admin(bootstrap: str, doing: str) -> Iterator[KafkaAdminClient]:
    # Dead brokers first in the list would make kafka-python back off: give it the living.
    living = [address for address in addresses(bootstrap) if is_listening(address)]
    if not living:
        raise PeerError(f"{doing}: nothing listens at {bootstrap}")
    try:
        client = KafkaAdminClient(bootstrap_servers=living)
        try:
            yield client
        finally:
            client.close()
    except TopicAlreadyExistsError as error:
        raise UsageError(f"{doing}: there is one of this name at {bootstrap}: delete it, or name another") from error
    except UnknownTopicOrPartitionError as error:
        raise UsageError(f"{doing}: there is none of this name at {bootstrap}") from error
    except KafkaError as error:
        raise PeerError(f"{doing}: {error!r}") from error


def _wait(bootstrap: str, name: str, is_so: Callable[[Any], bool], what: str) -> None:
    def check() -> None:
        for address in filter(is_listening, addresses(bootstrap)):
            (topic,) = ask(address, [name]).topics
            if not is_so(topic):
                raise RetriableError(f"the broker at {address} does not show it yet")

    wait_until(check, what)


def _has_partitions(topic: Any, count: int) -> bool:  # noqa: ANN401 - kafka-python generates the class at run time
    leaders = [partition.leader_id for partition in topic.partitions if partition.error_code == NO_ERROR]
    return topic.error_code == NO_ERROR and len(leaders) == count


def _is_gone(topic: Any) -> bool:  # noqa: ANN401 - kafka-python generates the class at run time
    return bool(topic.error_code == UNKNOWN_TOPIC)
