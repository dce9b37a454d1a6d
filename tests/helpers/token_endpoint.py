"""What logins need: an OAuth 2 token endpoint in the test's own process, and the providers of secrets by reference."""

import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROVIDERS = {
    "config.providers": "env,file,directory",
    **{
        f"config.providers.{name}.class": f"org.apache.kafka.common.config.provider.{kind}ConfigProvider"
        for name, kind in [("env", "EnvVar"), ("file", "File"), ("directory", "Directory")]
    },
}


class TokenEndpoint:
    """An HTTP server that answers every request alike, and keeps what was asked."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, json.dumps({"access_token": "good", "expires_in": 3600}), {}
        self.asked: list[tuple[dict[str, str], dict[str, str]]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(self.path.partition("?")[2])

            def do_POST(self) -> None:
                self.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

            def answer(self, form: str) -> None:
                endpoint.asked.append((dict(urllib.parse.parse_qsl(form)), dict(self.headers)))
                self.send_response(endpoint.status)
                for name, value in endpoint.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(endpoint.body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
