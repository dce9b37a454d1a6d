"""Kafka's protocol request by request, by kafka-python's message classes and a socket: what clients would smooth over."""

import socket
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer

from headrace.testing.fake_kafka.state.logs.batches import BatchShape, NewRecord, record_batch

TIMEOUT_S = 40.0
TIME_MS = 1_700_000_000_000
TRANSACTIONAL = 0x10


class RawKafka:
    """A connection to one broker; requests by their names: `raw("Metadata", 12, topics=[...])`."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._number = 0

    def __enter__(self) -> "RawKafka":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def __call__(self, api: str, version: int, **fields: Any) -> Any:
        self.send(api, version, **fields)
        return self.receive(api, version)

    def send(self, api: str, version: int, **fields: Any) -> None:
        request = built(f"{api}Request", fields)
        request.API_VERSION = version
        self._number += 1
        request.with_header(correlation_id=self._number, client_id="raw")
        self._socket.sendall(request.encode(header=True, framed=True))

    def receive(self, api: str, version: int) -> Any:
        frame = self._read(int.from_bytes(self._read(4), "big"))
        return message(f"{api}Response").decode(frame, version=version, header=True)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            data += part
        return bytes(data)


def message(name: str) -> Any:
    for module in (admin, consumer, metadata, producer):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


def built(name: str, fields: dict[str, Any]) -> Any:
    kind = message(name)
    return kind(**{field: _value(kind, field, value) for field, value in fields.items()})


def _value(kind: Any, name: str, value: Any) -> Any:
    field = kind.fields[name]
    if value is None or not (field.is_struct() or field.is_struct_array()):
        return value
    inner = field.data_class
    if field.is_struct():
        return inner(**{key: _value(inner, key, each) for key, each in value.items()})
    return [inner(**{key: _value(inner, key, each) for key, each in item.items()}) for item in value]


def batch(*values: bytes, time_ms: int = TIME_MS, **shape: int) -> bytes:
    """One record batch of these values, a millisecond apart; `shape` is BatchShape's."""
    records = [NewRecord(value, key=b"k", timestamp_ms=time_ms + at) for at, value in enumerate(values)]
    return bytes(record_batch(records, time_ms, BatchShape(**shape)))
