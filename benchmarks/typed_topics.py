"""Topics of typed values in a schema registry's wire format, the schemas that they have, and the registry."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Literal

import fastavro

SCHEMA_ID = 1
HEADER = b"\0" + SCHEMA_ID.to_bytes(4, "big")
POOL = 10_000
"""Distinct values of a topic, which come again and again."""

KINDS: tuple[tuple[Any, str, Callable[[int], Any]], ...] = (
    ("long", "bigint", lambda row: row * 1_000_003),
    ("string", "string", lambda row: f"item {row % 997}"),
    (["null", "int"], "int", lambda row: None if row % 5 == 0 else row % 65_536),
    ("double", "double", lambda row: row / 7),
    ("boolean", "boolean", lambda row: row % 2 == 0),
)
"""The fields' types, which take turns: in Avro, in Spark's SQL, and their values by row."""


@dataclass(frozen=True)
class TypedShape:
    """A topic's contents. `wanted`: how many of the fields are asked for, the first of them a long; None: all."""

    format: Literal["avro", "json"]
    fields: int
    records: int
    wanted: int | None = None
    codec: str = "none"
    partitions: int = 8
    batch_kib: int = 128

    @property
    def topic(self) -> str:
        """The topic's name: equal contents are one topic, whatever is asked for."""
        return f"bench-{self.format}-{self.records}x{self.fields}-{self.partitions}p"

    @property
    def numbers(self) -> range:
        """The fields that are asked for, which lie as far apart as they can."""
        return range(0, self.fields, 1 if self.wanted is None else self.fields // self.wanted)

    @property
    def writer(self) -> str:
        """The Avro schema of the values."""
        return _avro(range(self.fields))

    @property
    def reader(self) -> str:
        """The Avro schema of what is asked for."""
        return _avro(self.numbers)

    @property
    def names(self) -> list[str] | None:
        """The fields that are asked for; None: all."""
        return None if self.wanted is None else [f"f{number}" for number in self.numbers]

    @property
    def struct(self) -> str:
        """What is asked for, as Spark's SQL has it."""
        return f"struct<{', '.join(f'f{number} {_kind(number)[1]}' for number in self.numbers)}>"

    @property
    def sum(self) -> int:
        """Of the field f0 of all records."""
        return sum(int(KINDS[0][2](number % POOL)) for number in range(self.records))

    def values(self) -> list[bytes]:
        """POOL distinct values, as they are in the topic."""
        rows = [{f"f{n}": _kind(n)[2](row + n) for n in range(self.fields)} for row in range(POOL)]
        if self.format == "json":
            return [json.dumps(row, separators=(",", ":")).encode() for row in rows]
        parsed = fastavro.parse_schema(json.loads(self.writer))
        return [_encoded(parsed, row) for row in rows]

    def __str__(self) -> str:
        """For people."""
        some = "" if self.wanted is None else f"{self.wanted} of "
        return f"{self.format.capitalize() if self.format == 'avro' else 'JSON'}, {some}{self.fields} fields"


def _kind(number: int) -> tuple[Any, str, Callable[[int], Any]]:
    return KINDS[number % len(KINDS)]


def _avro(numbers: range) -> str:
    return json.dumps({"type": "record", "name": "Row", "fields": [{"name": f"f{n}", "type": _kind(n)[0]} for n in numbers]})


def _encoded(parsed: Any, row: Mapping[str, Any]) -> bytes:  # noqa: ANN401 - of fastavro
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, row)
    return HEADER + out.getvalue()


@dataclass(frozen=True)
class Registry:
    """A schema registry that knows one schema: what every client asks of it."""

    schema: str

    @cached_property
    def answers(self) -> Mapping[str, Any]:
        """By the ends of paths."""
        version = {"subject": "bench", "version": 1, "id": SCHEMA_ID, "schema": self.schema}
        known = {"/versions": [1], "/versions/1": version, "/versions/latest": version}
        return {**known, f"/schemas/ids/{SCHEMA_ID}": {"schema": self.schema}}

    def answer(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        plain = path.partition("?")[0]
        found = next((each for end, each in self.answers.items() if plain.endswith(end)), None)
        return (404, b'{"error_code": 40403}') if found is None else (200, json.dumps(found).encode())


@contextmanager
def registry(schema: str) -> Iterator[str]:
    """The address of a registry in this process that has the schema, under every subject."""
    known = Registry(schema)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = known.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
