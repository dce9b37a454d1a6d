"""A schema registry over HTTP in the test's own process: what of Confluent's REST API our client and theirs ask.

`tests/unit/formats/test_registry.py` holds it to Confluent's own client and serializers, which
register here what we read, and read what we write.
"""

import base64
import json
import re
import ssl
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from headrace.connectors.formats.protobuf.compiler import descriptor_set
from headrace.testing.servers.kafka.security import Certificates

JAVAS_INT = 2**31 - 1
NO_SUCH_PATH = {"error_code": 404, "message": "HTTP 404 Not Found"}
"""What JAX-RS reports about a path that there is not, and of one with a number that is not a `int` of Java's."""

NOT_FOUND = {40401: "Subject not found.", 40402: "Version not found.", 40403: "Schema not found"}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # Protobuf
        return text


def _context(subject: str) -> str:
    return subject.split(":")[1] if subject.startswith(":.") else ""


class FakeRegistry(AbstractContextManager["FakeRegistry"]):
    """With certificates by https, and it asks for the client's, too. `asked`: the requests so far, as method and path."""

    def __init__(self, *, user: str | None = None, token: str | None = None, certificates: Certificates | None = None) -> None:
        self.asked: list[str] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        """Faults: given in place of the next answers."""
        self._schemas: dict[tuple[str, int], dict[str, Any]] = {}
        self._subjects: dict[str, dict[int, int]] = {}
        self._wanted = None
        if user is not None:
            self._wanted = "Basic " + base64.b64encode(user.encode()).decode()
        if token is not None:
            self._wanted = f"Bearer {token}"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._scheme = "http" if certificates is None else "https"
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates.server)
            context.load_verify_locations(certificates.ca)
            context.verify_mode = ssl.CERT_REQUIRED
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def register(
        self, subject: str, schema: Any, references: list[dict[str, Any]] | None = None, kind: str = "AVRO",
        rules: dict[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """A new version of the subject; the id of the same schema elsewhere in its context, or the next."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        rules = rules or self._newest_rules(subject)
        entry = {"schema": text, "schemaType": kind, "references": references or [], **({"ruleSet": rules} if rules else {})}
        context = _context(subject)
        here = {number: each for (where, number), each in self._schemas.items() if where == context}
        known = (number for number, each in here.items() if {k: v for k, v in each.items() if k != "guid"} == entry)
        schema_id = next(known, 1 + len(here))
        self._schemas[context, schema_id] = {**entry, "guid": str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(entry)))}
        versions = self._subjects.setdefault(subject, {})
        if schema_id not in versions.values():
            versions[max(versions, default=0) + 1] = schema_id
        return schema_id

    def _newest_rules(self, subject: str) -> dict[str, Any] | None:
        """A version that comes without rules has those of the previous one."""
        versions = self._subjects.get(subject)
        return self._schemas[_context(subject), versions[max(versions)]].get("ruleSet") if versions else None

    def start_over(self) -> None:
        """Lose everything: ids start at 1 again."""
        self._schemas.clear()
        self._subjects.clear()

    def guid(self, schema_id: int) -> uuid.UUID:
        return uuid.UUID(self._schemas["", schema_id]["guid"])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    # --- the API
    def _answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        path, _, query = path.partition("?")
        self._as_descriptors = "format=serialized" in query
        context = _context(dict(parse_qsl(query)).get("subject", ""))
        routes: list[tuple[str, str, Callable[..., tuple[int, Any]]]] = [
            ("GET", r"/schemas/ids/(\d+)", lambda number: self._by_id(context, int(number))),
            ("GET", r"/schemas/guids/([0-9a-f-]+)", self._by_guid),
            ("GET", r"/subjects", lambda: (200, sorted(self._subjects))),
            ("GET", r"/subjects/([^/]+)/versions", self._versions),
            ("GET", r"/subjects/([^/]+)/versions/(latest|\d+)", self._version),
            ("POST", r"/subjects/([^/]+)/versions", lambda subject: self._register(subject, body)),
            ("POST", r"/subjects/([^/]+)", lambda subject: self._lookup(subject, body)),
        ]
        for verb, pattern, answer in routes:
            match = re.fullmatch(pattern, path)
            if verb == method and match is not None:
                if any(each.isdigit() and int(each) > JAVAS_INT for each in match.groups()):
                    continue
                return answer(*map(unquote, match.groups()))
        return 404, NO_SUCH_PATH

    def _by_id(self, context: str, number: int) -> tuple[int, Any]:
        found = self._schemas.get((context, number))
        return (200, self._shown(found)) if found is not None else self._missing(40403)

    def _by_guid(self, guid: str) -> tuple[int, Any]:
        return next(((200, self._shown(each)) for each in self._schemas.values() if each["guid"] == guid), self._missing(40403))

    def _versions(self, subject: str) -> tuple[int, Any]:
        return (200, sorted(self._subjects[subject])) if subject in self._subjects else self._missing(40401)

    def _version(self, subject: str, wanted: str) -> tuple[int, Any]:
        versions = self._subjects.get(subject, {})
        number = max(versions, default=0) if wanted == "latest" else int(wanted)
        if number not in versions:
            return self._missing(40402 if versions else 40401)
        schema_id = versions[number]
        return 200, {
            "subject": subject, "version": number, "id": schema_id, **self._shown(self._schemas[_context(subject), schema_id]),
        }  # fmt: skip

    def _register(self, subject: str, body: Any) -> tuple[int, Any]:
        for each in body.get("references") or []:
            if each["version"] not in self._subjects.get(each["subject"], {}):
                return 422, {"error_code": 42201, "message": f"Invalid schema: reference {each['name']} not found"}
        number = self.register(subject, body["schema"], body.get("references"), body.get("schemaType", "AVRO"))
        return self._with_id(subject, number)

    def _lookup(self, subject: str, body: Any) -> tuple[int, Any]:
        if subject not in self._subjects:
            return self._missing(40401)
        for schema_id in self._subjects[subject].values():
            entry = self._schemas[_context(subject), schema_id]
            same = _parsed(entry["schema"]) == _parsed(body["schema"]) and entry["references"] == (body.get("references") or [])
            if same:
                return self._with_id(subject, schema_id)
        return self._missing(40403)

    def _with_id(self, subject: str, schema_id: int) -> tuple[int, Any]:
        version = next(number for number, each in self._subjects[subject].items() if each == schema_id)
        return 200, {
            "subject": subject, "version": version, "id": schema_id, **self._shown(self._schemas[_context(subject), schema_id]),
        }  # fmt: skip

    def _shown(self, entry: dict[str, Any]) -> dict[str, Any]:
        """As the real one: Avro is not said, and no references are left out."""
        left_out = {"schemaType"} if entry["schemaType"] == "AVRO" else set()
        if entry["schemaType"] == "PROTOBUF" and self._as_descriptors:
            entry = {**entry, "schema": self._descriptors(entry)}
        return {key: value for key, value in entry.items() if key not in left_out and value != []}

    def _descriptors(self, entry: dict[str, Any]) -> str:
        """As the real one has it for `?format=serialized`: what Python's clients ask for."""
        versions = {each["name"]: (each["subject"], str(each["version"])) for each in entry["references"]}
        texts = {name: self._version(*each)[1]["schema"] for name, each in versions.items()}
        files = FileDescriptorSet.FromString(descriptor_set(entry["schema"], texts))
        return base64.b64encode(files.file[-1].SerializeToString()).decode()

    def _missing(self, code: int) -> tuple[int, Any]:
        return 404, {"error_code": code, "message": NOT_FOUND[code]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                parts = urlsplit(self.path)
                in_context = f"?{unquote(parts.query)}" if "subject=%3A" in parts.query else ""
                registry.asked.append(f"{self.command} {parts.path}{in_context}")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, answer = 401, {}, b'{"error_code": 401, "message": "Unauthorized"}'
                if registry.answers:
                    status, headers, answer = registry.answers.pop(0)
                elif registry._wanted in (None, self.headers.get("Authorization")):
                    status, document = registry._answer(self.command, self.path, json.loads(body) if body else None)
                    answer = json.dumps(document).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(answer)), "Connection": "close"}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = _serve  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                pass

        return Handler
