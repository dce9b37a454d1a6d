"""What the errors of sockets, of OpenSSL and of kafka-python's handshake mean, in headrace's error tree."""

from __future__ import annotations

import ssl

import kafka.errors as kafka_python_errors

from headrace.connectors.kafka.client.errors import ConnectionLostError, TlsError
from headrace.enumerator.errors import AuthenticationError, CorruptDataError, HeadraceError, PeerError, UsageError

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""The longest response taken. Any four bytes of HTTP or of a TLS alert, read as a length, are more."""


def explain_handshake(error: BaseException, address: str) -> HeadraceError:
    """As `explain`; a lost connection may mean the wrong security protocol here, and the message says so."""
    explained = explain(error, address)
    if isinstance(explained, ConnectionLostError):
        return ConnectionLostError(f"{explained}, during the handshake; if it always ends so, check security.protocol")
    return explained


def explain(error: BaseException, address: str) -> HeadraceError:
    """The error of headrace's tree for one of a socket, of OpenSSL or of kafka-python; headrace's own are returned as is."""
    if isinstance(error, HeadraceError):
        return error
    tls_error = _find_tls_error(error)
    if tls_error is not None:
        return _explain_tls(tls_error, address)
    if isinstance(error, kafka_python_errors.UnsupportedSaslMechanismError):
        return AuthenticationError(f"{address}: the broker does not offer this sasl.mechanism ({error})")
    if isinstance(error, kafka_python_errors.IllegalSaslStateError):
        return AuthenticationError(f"{address}: the listener at this port expects no SASL; check security.protocol")
    if isinstance(error, (kafka_python_errors.SaslAuthenticationFailedError, kafka_python_errors.AuthorizationError)):
        return AuthenticationError(f"{address}: the broker refused our credentials ({first_line(error)})")
    if isinstance(error, kafka_python_errors.InvalidReceiveError):
        size = int("".join(c for c in str(error.args[0]).rsplit(":", 1)[-1] if c.isdigit() or c == "-") or 0)
        return CorruptDataError(f"{address}: {not_a_frame(size)}")
    if isinstance(error, TimeoutError):
        return ConnectionLostError(f"{address}: no byte came from the broker within the request timeout")
    if isinstance(error, (OSError, kafka_python_errors.RetriableError)):
        return ConnectionLostError(f"{address}: {first_line(error)}")
    if isinstance(error, kafka_python_errors.KafkaProtocolError):
        return CorruptDataError(f"{address}: an answer to the handshake cannot be read: {first_line(error)}")
    if isinstance(error, kafka_python_errors.IncompatibleBrokerVersion):
        return PeerError(f"{address}: {first_line(error)}; is it the port of a controller instead of a broker's?")
    if isinstance(error, (ImportError, kafka_python_errors.KafkaConfigurationError)):
        return UsageError(f"{address}: this sasl.mechanism cannot be used here: {first_line(error)}")
    return AuthenticationError(f"{address}: the handshake failed: {type(error).__name__}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 300 characters, or its type's name."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def _find_tls_error(error: BaseException | None) -> ssl.SSLError | None:
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, ssl.SSLError):
            return error
        inner = next((item for item in error.args if isinstance(item, BaseException)), None)
        error, seen = inner or error.__cause__, seen + 1
    return None


def _explain_tls(error: ssl.SSLError, address: str) -> HeadraceError:
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return ConnectionLostError(f"{address}: the broker closed the TLS connection ({error.reason or 'EOF'})")
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        what = error.verify_message or reason
        if "ostname" in what or "IP address" in what:
            hint = "connect by a name that it holds, or set ssl.endpoint.identification.algorithm to empty"
        else:
            hint = "give the authority that signed it in ssl.truststore.location (or ssl.truststore.certificates)"
        return TlsError(f"{address}: the broker's certificate is not trusted ({what}); {hint}")
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason or "RECORD_LAYER" in reason:
        return TlsError(f"{address}: no TLS is spoken at this port ({reason}); check security.protocol")
    if "CERTIFICATE" in reason.upper() or "HANDSHAKE_FAILURE" in reason.upper():
        hint = "the broker asks for a client certificate it trusts: check ssl.keystore.location"
        return TlsError(f"{address}: the broker refused the TLS handshake ({reason}); {hint}")
    return TlsError(f"{address}: TLS failed ({reason})")


def not_a_frame(size: int) -> str:
    """What probably answers at a port whose first four bytes, read as a frame's length, gave `size`."""
    head = (size & 0xFFFFFFFF).to_bytes(4, "big")
    if head[:2] == b"\x15\x03":
        return "TLS is spoken at this port; set security.protocol to SSL or SASL_SSL"
    if head == b"HTTP":
        return "this is the port of an HTTP server, not of a Kafka broker"
    return f"the response claims a length of {size} bytes, which no Kafka response has; is this a Kafka broker's port?"
