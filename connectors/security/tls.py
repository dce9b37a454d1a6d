"""How to speak TLS, by the names of Java's clients; and Python's `ssl.SSLContext` for it.

PEM natively, PKCS12 through the `cryptography` package, JKS refused.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.enumerator.errors import UsageError

log = logging.getLogger(__name__)

_STORE_TYPES = ("PEM", "PKCS12", "JKS")
_PROTOCOLS = ("TLSv1.2", "TLSv1.3")

_PEM_BLOCK = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----)([A-Za-z0-9+/=\s]+)(-----END [A-Z0-9 ]+-----)")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsConfig:
    """How to speak TLS. With no trust store the system's certificate authorities are trusted.

    A store is a file (`*_location`) or PEM text (`truststore_certificates`, `keystore_key` with `keystore_certificate_chain`;
    KIP-651). Files are read for each connection, on the machine that makes it, so that renewed ones are used. A type of None is
    found out from the file.
    """

    truststore_location: str | None = None
    truststore_type: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = field(default=None, repr=False)
    keystore_location: str | None = None
    keystore_type: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    keystore_key: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    enabled_protocols: tuple[str, ...] = _PROTOCOLS

    def __post_init__(self) -> None:
        """Raise `UsageError` for stores that contradict each other; reads no file."""
        for kind, store_type in (("truststore", self.truststore_type), ("keystore", self.keystore_type)):
            if store_type is not None and store_type not in _STORE_TYPES:
                raise UsageError(f"ssl.{kind}.type must be one of {', '.join(_STORE_TYPES)}, not {store_type!r}")
        if self.truststore_location and self.truststore_certificates:
            raise UsageError("give ssl.truststore.location or ssl.truststore.certificates, not both")
        if self.keystore_location and self.keystore_key:
            raise UsageError("give ssl.keystore.location or ssl.keystore.key, not both")
        if (self.keystore_key is None) != (self.keystore_certificate_chain is None):
            raise UsageError("ssl.keystore.key and ssl.keystore.certificate.chain go together: give both or neither")
        unknown = set(self.enabled_protocols) - set(_PROTOCOLS)
        if unknown or not self.enabled_protocols:
            raise UsageError(f"ssl.enabled.protocols may hold {' and '.join(_PROTOCOLS)}, not {sorted(unknown) or 'nothing'}")


def _text(_name: str, value: str) -> str:
    return value


def _text_or_none(_name: str, value: str) -> str | None:
    return value or None


def _upper(_name: str, value: str) -> str:
    return value.upper()


def _endpoint_check(name: str, value: str) -> bool:
    if value.lower() not in ("", "https"):
        raise UsageError(f"{name} must be https, or empty to skip the check of the host name, not {value!r}")
    return value != ""


def _protocols(_name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


_PARSERS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "ssl.truststore.location": ("truststore_location", _text_or_none),
    "ssl.truststore.type": ("truststore_type", _upper),
    "ssl.truststore.password": ("truststore_password", _text),
    "ssl.truststore.certificates": ("truststore_certificates", _text_or_none),
    "ssl.keystore.location": ("keystore_location", _text_or_none),
    "ssl.keystore.type": ("keystore_type", _upper),
    "ssl.keystore.password": ("keystore_password", _text),
    "ssl.keystore.key": ("keystore_key", _text_or_none),
    "ssl.keystore.certificate.chain": ("keystore_certificate_chain", _text_or_none),
    "ssl.key.password": ("key_password", _text),
    "ssl.endpoint.identification.algorithm": ("check_hostname", _endpoint_check),
    "ssl.enabled.protocols": ("enabled_protocols", _protocols),
}

TLS_PROPERTIES = tuple(_PARSERS)
"""The properties that `tls_config` reads."""


def tls_config(given: Mapping[str, str]) -> TlsConfig:
    """What properties of Java's clients say, those of TLS_PROPERTIES; others are not looked at. Raises `UsageError`."""
    options: dict[str, Any] = {key: parse(name, given[name]) for name, (key, parse) in _PARSERS.items() if name in given}
    return TlsConfig(**options)


def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """The context for client connections, safe to share between threads: the same one, as long as its files hold the same.

    Where files are renewed, and cannot be used yet, the previous context is given, with a warning. Raises `UsageError` when a
    store cannot be read, is a JKS, has another password, or needs `cryptography`, not installed.
    """
    held = _contexts.get(tls)
    try:
        stores = _read_store("truststore", tls.truststore_location), _read_store("keystore", tls.keystore_location)
        if held is not None and held[0] == stores:
            return held[1]
        context = _context(tls, *stores)
    except UsageError as error:
        if held is None:
            raise
        log.warning("TLS uses the files as they were before: %s", error)
        return held[1]
    _contexts[tls] = stores, context
    return context


_Stores = tuple[bytes | None, bytes | None]
_contexts: dict[TlsConfig, tuple[_Stores, ssl.SSLContext]] = {}
"""What the files of trust and key held, and what was made of it: one for each configuration of this process."""


def _context(tls: TlsConfig, trust: bytes | None, key: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [_VERSIONS[name] for name in tls.enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.check_hostname = tls.check_hostname
    _trust(context, tls, trust)
    _identify(context, tls, key)
    return context


def _trust(context: ssl.SSLContext, tls: TlsConfig, data: bytes | None) -> None:
    if tls.truststore_certificates is not None:
        pem = _wrapped(tls.truststore_certificates)
    elif data is None:
        context.load_default_certs()
        return
    elif _store_type("truststore", tls.truststore_type, data) == "PEM":
        pem = data.decode("ascii", errors="ignore")
    else:
        pem = _pkcs12("truststore", data, tls.truststore_password)[1]
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"the trust store holds no usable PEM certificate: {error}") from None


def _identify(context: ssl.SSLContext, tls: TlsConfig, data: bytes | None) -> None:
    password = tls.key_password
    if tls.keystore_key is not None and tls.keystore_certificate_chain is not None:
        pem = _wrapped(tls.keystore_key) + "\n" + _wrapped(tls.keystore_certificate_chain)
    elif data is None:
        return
    elif _store_type("keystore", tls.keystore_type, data) == "PEM":
        pem = data.decode("ascii", errors="ignore")
    else:
        pem, password = "".join(_pkcs12("keystore", data, tls.keystore_password)), None
    _load_identity(context, pem, password)


def _load_identity(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    # Python loads a certificate chain from a file only. The file is ours alone (mode 0600) and gone before we return.
    descriptor, path = tempfile.mkstemp(prefix="headrace-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(pem)
        context.load_cert_chain(path, password=password if password is not None else "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(
            f"the key store cannot be used ({reason}): it must hold a private key and its certificate, and ssl.key.password "
            "must be the key's password"
        ) from None
    finally:
        Path(path).unlink()


def _wrapped(pem: str) -> str:
    """PEM with the line breaks that OpenSSL wants and that a value in a properties file need not have (KIP-651)."""
    return _PEM_BLOCK.sub(_wrap_block, pem)


def _wrap_block(block: re.Match[str]) -> str:
    body = "".join(block[2].split())
    lines = [body[start : start + 64] for start in range(0, len(body), 64)]
    return "\n".join((block[1], *lines, block[3], ""))


def _read_store(kind: str, location: str | None) -> bytes | None:
    if location is None:
        return None
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise UsageError(f"ssl.{kind}.location: {location} cannot be read on this machine: {error.strerror}") from None


def _store_type(kind: str, declared: str | None, data: bytes) -> str:
    actual = "PEM"
    if data[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
        actual = "JKS"
    elif data[:1] == b"\x30" and b"-----BEGIN" not in data:
        actual = "PKCS12"
    if actual == "JKS":
        raise UsageError(
            f"the {kind} is a JKS file, which only Java can read; convert it once with: keytool -importkeystore "
            f"-srckeystore {kind}.jks -destkeystore {kind}.p12 -deststoretype PKCS12, and set ssl.{kind}.type=PKCS12"
        )
    if declared in ("PEM", "PKCS12") and declared != actual:
        raise UsageError(f"ssl.{kind}.type says {declared}, but the file is {actual}")
    return actual


def _pkcs12(kind: str, data: bytes, password: str | None) -> tuple[str, str]:
    """Private key (or nothing) and certificates, own one first, of a PKCS12 store, as PEM."""
    pkcs12, serialization = _cryptography(kind)
    try:
        store: Any = pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError:
        raise UsageError(f"the {kind} cannot be opened: not PKCS12, or ssl.{kind}.password is wrong") from None
    certificates = ([store.cert] if store.cert else []) + list(store.additional_certs)
    chain = "".join(item.certificate.public_bytes(serialization.Encoding.PEM).decode() for item in certificates)
    if store.key is None:
        return "", chain
    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return key, chain


def _cryptography(kind: str) -> tuple[ModuleType, ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise UsageError(
            f"the {kind} is PKCS12, and reading it needs the package cryptography: pip install cryptography, or convert "
            f"it to PEM with: openssl pkcs12 -in {kind}.p12 -out {kind}.pem"
        ) from None
    return pkcs12, serialization
