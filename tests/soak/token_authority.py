"""Who issues bearer tokens in tests: a token endpoint, and the keys (JWKS) by which a broker's own validator checks them."""

import base64
import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "kafka"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
LISTENER = "listener.name.sasl_plaintext"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


ENV_PROVIDER = {
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}
"""Properties of a client that knows its secret by an environment variable."""


class TokenAuthority:
    """POST /token with credentials, GET /jwks. `tokens`: all issued. `lifetime_s`: of the next. While `away` it answers 503."""

    def __init__(self, client_id: str, client_secret: str, lifetime_s: float) -> None:
        self.lifetime_s, self.away = lifetime_s, False
        self.tokens: list[str] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._expected = "Basic " + base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say(200, authority.keys())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Authorization"] != authority._expected:
                    self._say(401, {"error": "invalid_client"})
                elif authority.away:
                    self._say(503, {})
                else:
                    self._say(200, {"access_token": authority.issue(), "expires_in": authority.lifetime_s})

            def _say(self, status: int, answer: Mapping[str, object]) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def issue(self) -> str:
        """A JWT by RS256, from now on."""
        now = time.time()
        claims = {"sub": "alice", "aud": AUDIENCE, "iat": int(now), "exp": int(now + self.lifetime_s), "scope": "kafka"}
        parts = [_text(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1", "typ": "JWT"}, claims)]
        signed = ".".join(parts)
        token = f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"
        self.tokens.append(token)
        return token

    def keys(self) -> dict[str, object]:
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", "n": _number(numbers.n), "e": _number(numbers.e)}
        return {"keys": [key]}

    def broker_config(self) -> dict[str, str]:
        """Settings with which Kafka's own validator takes these tokens at SASL_PLAINTEXT, and no process without."""
        mechanism = f"{LISTENER}.oauthbearer"
        return {
            "sasl.enabled.mechanisms": "OAUTHBEARER", f"{LISTENER}.sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{mechanism}.sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required;",
            f"{mechanism}.sasl.server.callback.handler.class": f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
            f"{mechanism}.sasl.oauthbearer.jwks.endpoint.url": f"{self.url}/jwks",
            f"{mechanism}.sasl.oauthbearer.expected.audience": AUDIENCE, f"{mechanism}.connections.max.reauth.ms": "3600000",
            "connections.max.reauth.ms": "3600000",
        }  # fmt: skip

    def jvm_options(self) -> tuple[str, ...]:
        """Kafka fetches keys from no address that it was not reported (KIP-1147)."""
        return ("-Xmx512m", f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.url}/jwks")

    def properties(self, module_options: str) -> dict[str, str]:
        """Of a client; `module_options` are those of the login module."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"{self.url}/token",
            "sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required {module_options};",
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
