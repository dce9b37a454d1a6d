"""A leader that is isolated from the other brokers, which have elected another one, and that all that is heard still names."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headrace.connectors.kafka.write.sink import KafkaSink, _commit_log
from headrace.testing import FakeKafka
from headrace.testing.fake_kafka import Before, Rewrite


class Isolated:
    """The leader of a topic, by default of the lists, which believes it is one still."""

    def __init__(self, kafka: FakeKafka, topic: str = "commits", api: str = "Produce") -> None:
        """All others believe it, too, until it gets a request of that `api`."""
        self._kafka, self._topic, self._api = kafka, topic, api
        self._leader, self._epoch = kafka.leader(topic)
        self.is_found_out: bool = False

    def cut_off(self, *others: str) -> None:
        """The others elect another one. It has led none of these topics for long."""
        for each in others:
            self._kafka.move_leader(each, to=self._leader % 3 + 1)
        self._kafka.isolate_broker(self._leader)
        assert self._kafka.leader(self._topic)[0] not in (self._leader, -1)

    @contextmanager
    def heard_by(self, sink: KafkaSink) -> Iterator[KafkaSink]:
        """The sink in a new process."""
        heard = self._kafka.fault("Metadata", Rewrite(self._as_it_was), times=None, when=self._is_believed)
        self._kafka.fault(self._api, Before(self._find_out), broker=self._leader, times=None).optional()
        _commit_log.cache_clear()
        yield replace(sink, properties={**sink.properties, "client.id": "restarted"})
        assert heard.fired

    def _as_it_was(self, response: Any) -> None:
        if self._leader not in {broker.node_id for broker in response.brokers}:
            host, _, port = self._kafka.address(self._leader).partition(":")
            response.brokers.append(type(response.brokers[0])(node_id=self._leader, host=host, port=int(port), rack=None))
        for topic in response.topics:
            if topic.name == self._topic:
                topic.partitions[0].leader_id, topic.partitions[0].leader_epoch = self._leader, self._epoch

    def _is_believed(self, request: Any) -> bool:
        return not self.is_found_out and any(topic.name == self._topic for topic in request.topics or ())

    def _find_out(self) -> None:
        self.is_found_out = True
