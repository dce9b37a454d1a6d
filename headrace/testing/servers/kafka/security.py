"""TLS and SASL for test clusters: throwaway certificates, and users known to every SASL mechanism."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.enumerator.errors import UsageError
from headrace.testing.servers.ports import HOST

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS)
LIFETIME = datetime.timedelta(days=7)
_AUTHORITY = "headrace test CA"


@dataclass(frozen=True)
class Certificates:
    """PEM files made for one cluster. `server` and `client` hold a key and then its chain up to `ca`."""

    ca: Path
    server: Path
    client: Path


@dataclass(frozen=True)
class Security:
    """The listeners alongside PLAINTEXT, the users of the SASL ones, and the certificates of the SSL ones."""

    protocols: tuple[str, ...]
    users: Mapping[str, str]
    certificates: Certificates | None

    def properties(self, listeners: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for listener in listeners:
            if listener.startswith("SASL_"):
                found |= self._sasl(f"listener.name.{listener.lower()}")
        if self.certificates is not None:
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.certificates.server),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.certificates.ca),
                "ssl.client.auth": "requested",
            }
        return found

    def format_arguments(self) -> list[str]:
        """What makes Kafka's StorageTool create the SCRAM users, before the broker first starts."""
        if not any(protocol.startswith("SASL_") for protocol in self.protocols):
            return []
        return [
            argument
            for name, password in self.users.items()
            for mechanism in SCRAM_MECHANISMS
            for argument in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
        ]

    def _sasl(self, prefix: str) -> dict[str, str]:
        package = "org.apache.kafka.common.security"
        users = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        scram = f"{package}.scram.ScramLoginModule required;"
        return {
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{prefix}.plain.sasl.jaas.config": f"{package}.plain.PlainLoginModule required {users};",
            **{f"{prefix}.{mechanism.lower()}.sasl.jaas.config": scram for mechanism in SCRAM_MECHANISMS},
        }


def make_security(protocols: Collection[str], users: Mapping[str, str], directory: Path) -> Security:
    """Check the asked listeners and make what they need in `directory`.

    Raises UsageError for an unknown protocol, for SASL without users, for a user name or password that Kafka's own
    syntax cannot carry, and for SSL without the package cryptography.
    """
    unknown = sorted(set(protocols) - set(PROTOCOLS))
    if unknown:
        raise UsageError(f"unknown security protocols {unknown}: choose among {list(PROTOCOLS)}, alongside PLAINTEXT")
    if not users and any(protocol.startswith("SASL_") for protocol in protocols):
        raise UsageError('a SASL listener needs users: users={"alice": "a password"}')
    for name, password in users.items():
        if not name.isalnum() or set(password) & set('"\\,[]=\n'):
            raise UsageError(f'user {name!r}: the name must be letters and digits, the password free of " \\ , [ ] =')
    chosen = tuple(protocol for protocol in PROTOCOLS if protocol in protocols)
    certificates = make_certificates(directory) if {"SSL", "SASL_SSL"} & set(chosen) else None
    return Security(chosen, dict(users), certificates)


def make_certificates(directory: Path) -> Certificates:
    """Make a certificate authority, a server certificate for 127.0.0.1 and localhost, and a client certificate.

    They are valid for 7 days. Raises UsageError without the package cryptography.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise UsageError("SSL listeners need the package cryptography: pip install cryptography") from error
    directory.mkdir(exist_ok=True)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate(_AUTHORITY, ca_key, ca_key).public_bytes(pem)
    files = Certificates(directory / "ca.pem", directory / "server.pem", directory / "client.pem")
    files.ca.write_bytes(ca)
    for path, name in ((files.server, "localhost"), (files.client, "headrace-client")):
        key = ec.generate_private_key(ec.SECP256R1())
        made = _certificate(name, key, ca_key).public_bytes(pem)
        path.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()) + made + ca)
    return files


def _certificate(name: str, key: EllipticCurvePrivateKey, issuer_key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    is_authority = name == _AUTHORITY
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, _AUTHORITY))
    alternatives = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # a clock that is set back does not matter
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if is_authority:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)  # noqa: FBT003 - its only form
        builder = builder.add_extension(usage, critical=True)
    else:
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
