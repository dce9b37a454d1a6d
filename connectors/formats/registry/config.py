"""Where a schema registry is, and who asks: Confluent's property names to one typed value that can be a key, and be pickled."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from headrace.enumerator.errors import UsageError

__all__ = ["PROPERTIES", "RegistryConfig", "registry_config"]

_BASIC_SOURCE, _BASIC_INFO = "basic.auth.credentials.source", "basic.auth.user.info"
_BEARER_SOURCE, _BEARER_TOKEN = "bearer.auth.credentials.source", "bearer.auth.token"
_BEARER_CLUSTER, _BEARER_POOL = "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"
_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
)
_TRUSTSTORE, _TRUSTSTORE_TYPE, _KEYSTORE, _KEYSTORE_TYPE = (
    f"ssl.{store}.{what}" for store in ("truststore", "keystore") for what in ("location", "type")
)
_PREFIX = "schema.registry."

PROPERTIES: tuple[str, ...] = (
    *(_BASIC_SOURCE, _BASIC_INFO, _BEARER_SOURCE, _BEARER_TOKEN, _BEARER_CLUSTER, _BEARER_POOL),
    *(_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD, _TRUSTSTORE, _TRUSTSTORE_TYPE, _KEYSTORE, _KEYSTORE_TYPE),
)
"""Every property, by its name in Confluent's clients; `schema.registry.` may stand before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryConfig:
    """`urls` without user names, in the order in which they are asked. `headers` hold the credentials, and are never shown.

    Files of TLS are in PEM; they are read where a connection is made, in whatever process.
    """

    urls: tuple[str, ...]
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """For messages."""
        return f"the schema registry {', '.join(self.urls)}"

    def tls(self) -> ssl.SSLContext:
        """The context of https. Raises UsageError for a file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                # without a password OpenSSL would ask for one at the terminal
                context.load_cert_chain(self.certificate_file, self.key_file, self.key_password or "")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = [name for name in (self.ca_file, self.certificate_file, self.key_file) if name is not None]
            raise UsageError(f"{self.shown}: TLS cannot be set up with {', '.join(files) or 'the system'}: {error}") from error
        return context


def registry_config(url: str, properties: Mapping[str, str]) -> RegistryConfig:
    """Read the properties; names in any case, with or without `schema.registry.` before them. Contacts nobody.

    `url`: one or more, with commas between them. Raises UsageError naming the property that is unknown, missing or
    contradictory; no message shows a value that may be a secret.
    """
    given = {name.lower().removeprefix(_PREFIX): value for name, value in properties.items()}
    unknown = sorted(given.keys() - set(PROPERTIES))
    if unknown:
        raise UsageError(f"schema registry property '{unknown[0]}' is not known; there are: {', '.join(PROPERTIES)}")
    parts = [_address(each.strip()) for each in url.split(",") if each.strip()]
    if not parts:
        raise UsageError("the schema registry's url is empty")
    certificate, key = given.get(_CERTIFICATE), given.get(_KEY)
    certificate = _pem(given, _KEYSTORE, _KEYSTORE_TYPE) or certificate
    if (key is not None or _KEY_PASSWORD in given) and certificate is None:
        raise UsageError(f"schema registry property '{_KEY}' needs '{_CERTIFICATE}'")
    return RegistryConfig(
        urls=tuple(_bare(each) for each in parts),
        headers=(*_authorization(given, parts), *_routing(given)),
        ca_file=_pem(given, _TRUSTSTORE, _TRUSTSTORE_TYPE) or given.get(_CA),
        certificate_file=certificate,
        key_file=key,
        key_password=given.get(_KEY_PASSWORD),
    )


def _address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, a port that is none
        usable = False
    if (
        not usable or parts.query or parts.fragment or "@" in parts.path
    ):  # what it says is not shown: it may be a password's end
        raise UsageError(
            "a schema registry's url must be like https://host:8081, several with commas between them, and one is not; in a "
            "user name or a password ',' must be written %2C, '/' %2F, '?' %3F, '#' %23 and '@' %40"
        )
    return parts


def _bare(parts: SplitResult) -> str:
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def _authorization(given: Mapping[str, str], parts: list[SplitResult]) -> tuple[tuple[str, str], ...]:
    info, source = _user_info(given, parts), given.get(_BEARER_SOURCE)
    token = given.get(_BEARER_TOKEN)
    if source not in (None, "STATIC_TOKEN"):
        raise UsageError(f"schema registry property '{_BEARER_SOURCE}' may only be STATIC_TOKEN, not {source!r}")
    if source is not None and token is None:
        raise UsageError(f"schema registry property '{_BEARER_TOKEN}' is missing, which {_BEARER_SOURCE}={source} needs")
    if token is not None and info is not None:
        raise UsageError(f"give '{_BEARER_TOKEN}', or a user name and a password for the schema registry, not both")
    if token is not None:
        return (("Authorization", f"Bearer {_one_line(_BEARER_TOKEN, token)}"),)
    if info is not None:
        return (("Authorization", "Basic " + base64.b64encode(info.encode()).decode()),)
    return ()


def _one_line(name: str, value: str) -> str:
    if not value.strip() or not value.isprintable() or not value.isascii():
        raise UsageError(f"schema registry property '{name}' must be one line of ASCII text")
    return value.strip()


def _routing(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Headers by which Confluent Cloud finds the registry that a token is for."""
    names = {_BEARER_CLUSTER: "target-sr-cluster", _BEARER_POOL: "Confluent-Identity-Pool-Id"}
    return tuple((header, _one_line(name, given[name])) for name, header in names.items() if name in given)


def _user_info(given: Mapping[str, str], parts: list[SplitResult]) -> str | None:
    """`user:password`, of the property or of the urls."""
    source = given.get(_BASIC_SOURCE, "USER_INFO" if _BASIC_INFO in given else "URL").upper()
    in_urls = {f"{unquote(each.username)}:{unquote(each.password or '')}" for each in parts if each.username}
    match source:
        case "USER_INFO":
            if ":" not in given.get(_BASIC_INFO, ""):
                raise UsageError(f"schema registry property '{_BASIC_INFO}' must be like user:password")
            if in_urls:
                raise UsageError(f"give the schema registry's user in '{_BASIC_INFO}' or in the url, not in both")
            return given[_BASIC_INFO]
        case "URL":
            if _BASIC_INFO in given:
                raise UsageError(f"schema registry property '{_BASIC_INFO}' needs {_BASIC_SOURCE}=USER_INFO")
            if len(in_urls) > 1:
                raise UsageError("the schema registry's urls have different users; there can be one")
            return next(iter(in_urls), None)
        case _:
            raise UsageError(f"schema registry property '{_BASIC_SOURCE}' may be USER_INFO or URL, not {source!r}")


def _pem(given: Mapping[str, str], location: str, kind: str) -> str | None:
    """A store's file, by the Java client's names."""
    if location not in given:
        return None
    if given.get(kind, "JKS").upper() != "PEM":
        raise UsageError(
            f"schema registry property '{location}' needs {kind}=PEM; or give the files in '{_CA}' and '{_CERTIFICATE}'"
        )
    return given[location]
