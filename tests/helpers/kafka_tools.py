"""For tests with real brokers: an independent producer, and a proxy that can cut, freeze and count."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from headrace.testing.servers.kafka import create_topic

_DELETE = AlterConfigOpType.DELETE
IDEMPOTENT = {"enable.idempotence": True, "topic.metadata.refresh.interval.ms": 10}
"""Of a librdkafka producer. It gets its producer id when it looks at its brokers again, by default half a second later."""

AT_THE_END = {"fetch.wait.max.ms": 10}
"""Of a librdkafka consumer that reads to the end. A broker that has no more answers after so long, by default half a second."""


def created(bootstrap: str, topic: Callable[[], str], partitions: int = 1, **shape: Any) -> str:
    """A new topic's name, which `topic` gives. `shape`: as of `create_topic`."""
    name = topic()
    create_topic(bootstrap, name, partitions, **shape)
    return name


def set_config(bootstrap: str, kind: str, name: str, **settings: str | None) -> None:
    """Set them of a "topic" or a "broker", `__` for a dot; None: back to the default."""
    entries = [
        ConfigEntry(key.replace("__", "."), value, incremental_operation=_DELETE if value is None else AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(30)


def produce(bootstrap: str, topic: str, values: Mapping[int, list[bytes]], **settings: str | int) -> None:
    """Write values to partitions, in order; return when all are acknowledged by all replicas."""
    producer = Producer({"bootstrap.servers": bootstrap, **IDEMPOTENT, "linger.ms": 5, **settings})
    errors: list[str] = []

    def acknowledged(error: object, _message: object) -> None:
        if error is not None:
            errors.append(str(error))

    for partition, items in values.items():
        for item in items:
            while True:
                try:
                    producer.produce(topic, item, partition=partition, on_delivery=acknowledged)
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(60) == 0
    assert not errors, errors[0]


class Proxy:
    """Forwards TCP connections to one address. It can cut one after some bytes from the server, freeze, and count them."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.cuts = 0
        self.swallowed = 0
        self._cut_after: int | None = None
        self._frozen = False
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut_after(self, count: int) -> None:
        """Cut the connection that delivers the `count`-th byte from now on, once."""
        self._cut_after = count

    def freeze(self) -> None:
        """From now on swallow what the server sends: connections look alive and say nothing."""
        self._frozen = True

    def thaw(self) -> None:
        """Deliver again; connections that were frozen stay so, as they missed bytes."""
        self._frozen = False

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._pump, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pump(self, client: socket.socket) -> None:
        silent = False
        with client, socket.create_connection(self._target) as server, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select(0.1):
                    source = key.fileobj
                    try:
                        data = source.recv(65536)  # type: ignore[union-attr]
                    except OSError:
                        return
                    if not data:
                        return
                    if source is server:
                        silent = silent or self._frozen
                        if silent:
                            self.swallowed += len(data)
                            continue
                        if self._cuts(len(data)):
                            client.sendall(data[: len(data) // 2])
                            return
                    with contextlib.suppress(OSError):
                        (client if source is server else server).sendall(data)

    def _cuts(self, count: int) -> bool:
        if self._cut_after is None:
            return False
        self._cut_after -= count
        if self._cut_after > 0:
            return False
        self._cut_after = None
        self.cuts += 1
        return True


@contextlib.contextmanager
def proxy_to(address: str) -> Iterator[Proxy]:
    host, _, port = address.rpartition(":")
    proxy = Proxy(host, int(port))
    try:
        yield proxy
    finally:
        proxy.close()
