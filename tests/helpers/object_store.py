"""A local S3, with Glue alongside it: moto's server in its own process, which can be instructed to fail.

    python -m tests.helpers.object_store

It serves until its input ends. Faults are real to its client: a connection that is closed without an answer, or "503 Slow
Down".
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import parse_qs, urlencode
from urllib.request import urlopen

Fault = Literal["refused", "closed", "lost"]
"""Of a request: answered by 503, or not at all; or done, and not answered."""

_FAIL, _FAILED = "/-/fail", "/-/failed"


class ObjectStore:
    """The server, seen from a test. Not thread-safe."""

    def __init__(self) -> None:
        """Starts it. Buckets and catalogs are empty."""
        command = [sys.executable, "-m", "tests.helpers.object_store"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "moto's server did not start"

    def close(self) -> None:
        self._process.communicate()

    def fail(self, what: Fault, times: int, method: str = "", text: str = "") -> None:
        """The next `times` requests with this method and this text in their path or headers fail, any if not said."""
        given = {"what": what, "times": str(times), "method": method, "text": text}
        self._asked(f"{_FAIL}?{urlencode(given)}")

    def failed(self) -> int:
        """How many requests have failed since the last `fail`."""
        return int(self._asked(_FAILED))

    def delta_options(self) -> dict[str, str]:
        """For `DeltaSink` and `deltalake`. Its own retries are over soon, so that ours are tried."""
        return {
            "AWS_ENDPOINT_URL": self.address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true", "max_retries": "1", "backoff_config.init_backoff": "1ms",
        }  # fmt: skip

    def glue_options(self) -> dict[str, Any]:
        """Of a catalog in Glue. PyIceberg takes its number of retries as a number only."""
        return {
            "type": "glue", "glue.endpoint": self.address, "glue.region": "us-east-1", "glue.access-key-id": "key",
            "glue.secret-access-key": "secret", "glue.max-retries": 1, "s3.endpoint": self.address, "s3.access-key-id": "key",
            "s3.secret-access-key": "secret", "s3.region": "us-east-1",
        }  # fmt: skip

    def client(self) -> Any:
        import boto3

        named = {"endpoint_url": self.address, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        return boto3.client("s3", region_name="us-east-1", **named)

    def _asked(self, path: str) -> str:
        with urlopen(self.address + path, timeout=60) as answer:
            return str(answer.read().decode())


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    made = ObjectStore()
    try:
        yield made
    finally:
        made.close()


# --- in its process -----------------------------------------------------------------------------------------------------
class _Faults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left, self._what, self._method, self._text = 0, "", "", ""
        self._failed = 0

    def plan(self, query: str) -> None:
        given = {name: values[0] for name, values in parse_qs(query).items()}
        with self._lock:
            self._left, self._failed = int(given["times"]), 0
            self._what, self._method, self._text = given["what"], given.get("method", ""), given.get("text", "")

    def of(self, method: str, request: str) -> str:
        """What becomes of this request: empty if nothing."""
        with self._lock:
            if not self._left or self._method not in ("", method) or self._text not in request:
                return ""
            self._left -= 1
            self._failed += 1
            return self._what

    @property
    def failed(self) -> int:
        with self._lock:
            return self._failed


def _serve() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    faults = _Faults()

    class Handler(WSGIRequestHandler):
        def run_wsgi(self) -> None:
            path, _, query = self.path.partition("?")
            if path in (_FAIL, _FAILED):
                if path == _FAIL:
                    faults.plan(query)
                self._answer(200, str(faults.failed).encode())
                return
            match faults.of(self.command, f"{self.path} {self.headers}"):
                case "":
                    super().run_wsgi()
                case "refused":
                    self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
                case "lost":
                    wfile, self.wfile = self.wfile, _Nowhere()
                    super().run_wsgi()
                    self.wfile = wfile
            self.close_connection = True

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, *_: Any) -> None:
            """Nothing."""

    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None:
        """Nothing."""


if __name__ == "__main__":
    _serve()
