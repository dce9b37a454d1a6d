"""Connecting: kafka-python's connection layer negotiates API versions and does TLS and SASL, then its socket is taken over.

The one module that uses that layer, which is not kafka-python's public API.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from typing import Any

from kafka.net.connection import KafkaConnection
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from headrace.connectors.kafka.client.errors import ConnectionLostError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire.failures import MAX_FRAME_BYTES, explain_handshake, first_line
from headrace.connectors.kafka.client.wire.protocol import Message
from headrace.connectors.security.renewal import kept
from headrace.connectors.security.tls import ssl_context
from headrace.enumerator.errors import AuthenticationError

_REPLACED_AT = 0.85  # of the lifetime of a SASL session (KIP-368), as the Java client does


class Adopted:
    """What is taken over from kafka-python after its handshake: the socket, the API versions, the end of the SASL session.

    `expires_at`, on `time.monotonic`'s clock, is when to replace the connection; None: never.
    """

    def __init__(self, transport: Message, connection: Message, net: Message) -> None:
        """Take the socket: kafka-python's tasks that read and write it end here."""
        for task in (transport._read_task, transport._write_task):
            if task is not None:
                net.cancel(task)
        self.socket, transport._sock = transport._sock, None
        self.versions = connection.broker_version_data
        session = connection._reauth
        session.cancel()
        self.expires_at = None
        if session.session_lifetime_ms:
            self.expires_at = session.authenticated_at + session.session_lifetime_ms / 1000 * _REPLACED_AT


def shake_hands(host: str, port: int, config: ClientConfig) -> Adopted:
    """Connect, negotiate API versions, do TLS and SASL, as `config` says. Blocks the calling thread; raises as `Connection`.

    A bearer token that is refused may be a previous one: its signer's keys were changed, or this machine slept through its end.
    So the provider is asked again, and what it has then is tried, if it is another one.
    """
    provider = None if config.sasl is None else config.sasl.token_provider
    tokens = None if provider is None else _Tokens(provider)
    try:
        return _shake_hands(host, port, config, tokens)
    except AuthenticationError:
        if tokens is None or tokens.given is None:
            raise
        kept.refused(tokens.given)
        another = _Tokens(provider)
        if another.token() == tokens.given:
            raise
    return _shake_hands(host, port, config, another)


def _shake_hands(host: str, port: int, config: ClientConfig, tokens: _Tokens | None) -> Adopted:
    context = ssl_context(config.tls) if config.tls else None
    try:
        raw = _open_socket(host, port, config)
    except (OSError, UnicodeError) as error:  # the latter for a host that cannot be a name
        raise ConnectionLostError(f"{host}:{port}: no connection: {first_line(error)}") from error
    net = NetworkSelector(client_id=config.client_id, slow_task_threshold_secs=0)
    _quiet.here = True
    try:
        future = net.call_soon_with_future(_introduce, net, raw, host, _settings(config, tokens), context)
        net.poll(timeout_ms=config.request_timeout_ms, future=future)
        if not future.is_done:
            raise ConnectionLostError(
                f"{host}:{port}: connected, but no answer to the handshake in {config.request_timeout_ms} ms"
            )
        if future.exception is not None:
            raise explain_handshake(future.exception, f"{host}:{port}") from future.exception
        adopted: Adopted = future.value
        return adopted
    except BaseException:
        raw.close()
        raise
    finally:
        net.close()
        _quiet.here = False


class _KeepsLastBytes:
    """Keeps the answer of a broker that answers and closes at once: kafka-python drops the bytes that come with the end.

    That answer is why we were refused; without it, wrong credentials would look like a lost connection and be tried again.
    """

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        data, error = super()._sock_recv()  # type: ignore[misc] # of kafka-python's transports
        return (data, None) if data else (data, error)


class _TcpTransport(_KeepsLastBytes, KafkaTCPTransport):  # type: ignore[misc]
    pass


class _TlsTransport(_KeepsLastBytes, KafkaSSLTransport):  # type: ignore[misc]
    pass


def _open_socket(host: str, port: int, config: ClientConfig) -> socket.socket:
    """A TCP connection to the first address of `host` that answers, not blocking, as kafka-python wants it."""
    failure: OSError = ConnectionError("the name has no address")
    for tree, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        opened = socket.socket(tree, kind, protocol)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if config.receive_buffer_bytes is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
            if config.send_buffer_bytes is not None:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
            opened.settimeout(config.socket_connection_setup_timeout_ms / 1000)
            opened.connect(address)
        except OSError as error:
            opened.close()
            failure = error
        else:
            opened.settimeout(0)
            return opened
    raise failure


async def _introduce(
    net: Message, raw: socket.socket, host: str, settings: dict[str, Any], context: ssl.SSLContext | None
) -> Adopted:
    if context is None:
        transport = _TcpTransport(net, raw, host=host)
    else:
        transport = _TlsTransport(net, raw, host=host, ssl_context=context)
    try:
        await transport.handshake()
        connection = KafkaConnection(net, node_id=host, **settings)
        connection.connection_made(transport)
        await connection.initialize(timeout_at=time.monotonic() + settings["request_timeout_ms"] / 1000)
        await connection
        return Adopted(transport, connection, net)
    except BaseException:
        transport.abort()
        raise


def _settings(config: ClientConfig, tokens: _Tokens | None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "client_id": config.client_id,
        "client_software_name": "headrace",
        "client_software_version": "0",
        "receive_message_max_bytes": MAX_FRAME_BYTES,
        "request_timeout_ms": config.request_timeout_ms,
        "security_protocol": config.security_protocol,
    }
    if config.sasl is not None:
        settings |= {
            "sasl_mechanism": config.sasl.wire_mechanism,
            "sasl_plain_username": config.sasl.username,
            "sasl_plain_password": config.sasl.password,
            "sasl_kerberos_service_name": config.sasl.kerberos_service_name,
        }
        if tokens is not None:
            settings["sasl_oauth_token_provider"] = tokens
    return settings


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Any object with `token()` as kafka-python's abstract class: for one handshake, which is `given` the token."""

    def __init__(self, provider: Message) -> None:
        super().__init__()
        self._provider = provider
        self.given: str | None = None

    def token(self) -> str:
        if self.given is None:
            self.given = str(self._provider.token())
        return self.given

    def extensions(self) -> dict[str, str]:
        extensions = getattr(self._provider, "extensions", None)
        return dict(extensions()) if callable(extensions) else {}


class _Quiet(threading.local):
    """True in `here` while this thread shakes hands."""

    here = False


_quiet = _Quiet()


class _NotOurHandshake(logging.Filter):
    """Drops kafka-python's log records of our handshakes: at DEBUG they hold passwords, and failures are raised anyway.

    Records of other threads, such as those of an application's own kafka-python clients, pass.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not _quiet.here


for _name in ("net.connection", "net.transport", "net.selector", "net.compat", "net.sasl.plain", "net.sasl.scram",
              "net.sasl.oauth", "net.sasl.gssapi", "net.sasl.msk", "protocol.parser", "protocol", "future"):  # fmt: skip
    logging.getLogger(f"kafka.{_name}").addFilter(_NotOurHandshake())
