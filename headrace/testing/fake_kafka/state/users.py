"""SASL users (KIP-43, KIP-84, KIP-255): PLAIN, the server's side of SCRAM (RFC 5802) with SHA-256 and SHA-512, OAUTHBEARER."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError

_SCRAM = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS = 4096


@dataclass(frozen=True, slots=True)
class Users:
    """Who may log in: passwords by name, and names by bearer token. With any of either, everyone has to."""

    passwords: Mapping[str, str]
    tokens: Mapping[str, str]

    @property
    def must_log_in(self) -> bool:
        return bool(self.passwords or self.tokens)

    @property
    def mechanisms(self) -> list[str]:
        return ["PLAIN", *_SCRAM, *(["OAUTHBEARER"] if self.tokens else [])]


class SaslExchange:
    """One client's authentication, message by message; `user` is set once it is through."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self.users = users
        self.user: str | None = None

    def answer(self, message: bytes) -> bytes:
        """What the server says to a client's message. Raises SASL_AUTHENTICATION_FAILED."""
        raise NotImplementedError

    def refuse(self) -> RefusedError:
        """The error for whatever is wrong: a client must not learn which."""
        return RefusedError(ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed: Invalid username or password")


class _Plain(SaslExchange):
    def answer(self, message: bytes) -> bytes:
        parts = message.split(b"\0")
        if len(parts) != 3:  # RFC 4616: whom to act as, user, password
            raise self.refuse()
        user, password = parts[1].decode(), parts[2].decode()
        if user not in self.users or not hmac.compare_digest(self.users[user].encode(), password.encode()):
            raise self.refuse()
        self.user = user
        return b""


class _Scram(SaslExchange):
    def __init__(self, users: Mapping[str, str], digest: str) -> None:
        super().__init__(users)
        self._digest = digest
        self._salt = secrets.token_bytes(16)
        self._name = ""
        self._dialogue: list[bytes] = []

    def answer(self, message: bytes) -> bytes:
        return self._final(message) if self._dialogue else self._first(message)

    def _first(self, message: bytes) -> bytes:
        bare = message.split(b",", 2)[2]
        fields = _fields(bare)
        self._name = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if self._name not in self.users:
            raise self.refuse()
        nonce = fields["r"] + secrets.token_urlsafe(18)
        reply = f"r={nonce},s={base64.b64encode(self._salt).decode()},i={_ITERATIONS}".encode()
        self._dialogue = [bare, reply]
        return reply

    def _final(self, message: bytes) -> bytes:
        without_proof, _, proof = message.rpartition(b",p=")
        if _fields(without_proof)["r"] != _fields(self._dialogue[1])["r"]:
            raise self.refuse()
        spoken = b",".join([*self._dialogue, without_proof])
        salted = hashlib.pbkdf2_hmac(self._digest, self.users[self._name].encode(), self._salt, _ITERATIONS)
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._digest, client_key).digest(), spoken)
        expected = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        if not hmac.compare_digest(expected, base64.b64decode(proof)):
            raise self.refuse()
        self.user = self._name
        return b"v=" + base64.b64encode(self._hmac(self._hmac(salted, b"Server Key"), spoken))

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._digest).digest()


class _Bearer(SaslExchange):
    """RFC 7628, as Kafka's server speaks it: it says what is wrong, and refuses when the client has taken note."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        super().__init__({})
        self._tokens = tokens
        self._has_said_why = False

    def answer(self, message: bytes) -> bytes:
        if self._has_said_why:
            raise RefusedError(ErrorCode.SASL_AUTHENTICATION_FAILED, '{"status":"invalid_token"}')
        fields = dict(part.split("=", 1) for part in message.decode().split("\x01") if "=" in part)
        self.user = self._tokens.get(fields["auth"].removeprefix("Bearer "))
        self._has_said_why = self.user is None
        return b'{"status":"invalid_token"}' if self._has_said_why else b""


def _fields(text: bytes) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.decode().split(",") if "=" in part)


def begin_exchange(mechanism: str, users: Users) -> SaslExchange:
    """Raises UNSUPPORTED_SASL_MECHANISM."""
    if mechanism not in users.mechanisms:
        raise RefusedError(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    if mechanism == "OAUTHBEARER":
        return _Bearer(users.tokens)
    return _Plain(users.passwords) if mechanism == "PLAIN" else _Scram(users.passwords, _SCRAM[mechanism])
