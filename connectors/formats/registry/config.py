"""Where a schema registry is, and who asks: Confluent's property names to one typed value that can be a key, and be pickled."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from headrace.connectors.formats.registry.schemas import SubjectStrategy
from headrace.connectors.security.endpoint import is_web_address
from headrace.connectors.security.references import check_providers, is_provider, resolved
from headrace.connectors.security.tls import TlsConfig, ssl_context, tls_config
from headrace.connectors.security.tokens import ClientCredentials
from headrace.enumerator.errors import UsageError

_BASIC_SOURCE, _BASIC_INFO = "basic.auth.credentials.source", "basic.auth.user.info"
_BEARER_SOURCE, _BEARER_TOKEN = "bearer.auth.credentials.source", "bearer.auth.token"
_BEARER_ENDPOINT, _BEARER_ID, _BEARER_SECRET, _BEARER_SCOPE = (
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
)
_BEARER_CLUSTER, _BEARER_POOL = "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"
_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password")
_STORES: tuple[str, ...] = (
    *("ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.password"),
    *("ssl.keystore.location", "ssl.keystore.type", "ssl.keystore.password"),
)
_STRATEGIES = {each: f"{each}.subject.name.strategy" for each in ("key", "value")}
_JAVA_STRATEGIES = "io.confluent.kafka.serializers.subject."
_PREFIX = "schema.registry."
_KIND = "schema registry property"

PROPERTIES: tuple[str, ...] = (
    *(_BASIC_SOURCE, _BASIC_INFO, _BEARER_SOURCE, _BEARER_TOKEN, _BEARER_CLUSTER, _BEARER_POOL),
    *(_BEARER_ENDPOINT, _BEARER_ID, _BEARER_SECRET, _BEARER_SCOPE),
    *(_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD, *_STORES, *_STRATEGIES.values()),
)
"""Every property, by its name in Confluent's clients; `schema.registry.` may stand before it.

Alongside them there are `config.providers` and what belongs to these: a value may then refer to a secret.
"""


@dataclass(frozen=True, slots=True)
class Access:
    """What a request needs to be let in, with all references replaced. Secret; it is made for a request and kept nowhere."""

    headers: Mapping[str, str] = field(repr=False)
    tls: TlsConfig = field(repr=False)
    key_file: str | None
    """In PEM, where the key does not stand alongside its certificate."""
    tokens: ClientCredentials | None = None
    """Who gives the token, where it is one of an OAuth 2 endpoint."""

    def token(self) -> str | None:
        """That of the endpoint, which the process keeps as long as it is good. Raises AuthenticationError, RetriableError."""
        return None if self.tokens is None else self.tokens.token()


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryConfig:
    """`urls` without user names, in the order in which they are asked. `properties` as they were given, by name.

    What is in the environment or a file is not part of it: `access` reads that, in whatever process a request is made, as
    it reads the files of TLS. So none of it is in a plan, a checkpoint or a job that was pickled.
    """

    urls: tuple[str, ...]
    strategies: tuple[tuple[str, SubjectStrategy], ...] = ()
    """How the subjects of keys and of values are named, where it was said."""
    url_user: str | None = field(default=None, repr=False)
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def shown(self) -> str:
        """For messages."""
        return f"the schema registry {', '.join(self.urls)}"

    def access(self) -> Access:
        """The credentials as they are now, on this machine. Raises UsageError for what is not there or cannot be used."""
        given = {name: value.rstrip("\r\n") for name, value in resolved(dict(self.properties), _KIND).items()}
        return _access(self.url_user, given)

    def tls(self, access: Access) -> ssl.SSLContext:
        """The context of https. Raises UsageError for a file that cannot be used."""
        wanted = access.tls
        try:
            if access.key_file is not None and wanted.keystore_location is not None:
                key, chain = (_pem(each) for each in (access.key_file, wanted.keystore_location))
                wanted = replace(wanted, keystore_location=None, keystore_key=key, keystore_certificate_chain=chain)
            return ssl_context(wanted)
        except (OSError, UsageError) as error:
            raise UsageError(f"{self.shown}: TLS cannot be set up: {error}") from None


def _pem(path: str) -> str:
    """What a file holds besides may be text of any encoding."""
    return Path(path).read_bytes().decode("ascii", errors="ignore")


def registry_config(url: str, properties: Mapping[str, str]) -> RegistryConfig:
    """Read the properties; names in any case, with or without `schema.registry.` before them. Does no I/O, reads no file.

    `url`: one or more, with commas between them. Raises UsageError naming the property that is unknown, missing or
    contradictory; no message shows a value that may be a secret.
    """
    given = {name.lower().removeprefix(_PREFIX): value for name, value in properties.items()}
    own = {name: value for name, value in given.items() if not is_provider(name)}
    unknown = sorted(own.keys() - set(PROPERTIES))
    if unknown:
        raise UsageError(f"{_KIND} '{unknown[0]}' is not known; there are: {', '.join(PROPERTIES)}, config.providers")
    parts = [_address(each.strip()) for each in url.split(",") if each.strip()]
    if not parts:
        raise UsageError("the schema registry's url is empty")
    check_providers(given, _KIND)
    if len(own) < len(given) and "${" in url:
        raise UsageError(f"a schema registry's url takes no reference to a secret: give the user by one in '{_BASIC_INFO}'")
    user = _url_user(parts)
    _access(user, own)  # what contradicts itself is so whatever the references stand for
    return RegistryConfig(
        urls=tuple(_bare(each) for each in parts),
        strategies=tuple((each, _strategy(name, own[name])) for each, name in _STRATEGIES.items() if name in own),
        url_user=user,
        properties=tuple(sorted(given.items())),
    )


def _strategy(name: str, value: str) -> SubjectStrategy:
    """By its own name or that of Confluent's Java class."""
    try:
        return SubjectStrategy(value.strip().removeprefix(_JAVA_STRATEGIES))
    except ValueError:
        raise UsageError(f"{_KIND} '{name}' must be {', '.join(SubjectStrategy)}, not {value!r}") from None


def _access(url_user: str | None, given: Mapping[str, str]) -> Access:
    headers = _authorization(given, url_user) | _routing(given)
    return Access(headers, _tls(given), given.get(_KEY), _tokens(given, url_user))


def _tls(given: Mapping[str, str]) -> TlsConfig:
    """Of Python's names, which are files in PEM, or of Java's, which are stores."""
    java = {name: given[name] for name in (*_STORES, _KEY_PASSWORD) if name in given}
    for own, store in ((_CA, "truststore"), (_CERTIFICATE, "keystore")):
        if own in given and f"ssl.{store}.location" in given:
            raise UsageError(f"give {_KIND} '{own}' or 'ssl.{store}.location', not both")
        if own in given:
            java |= {f"ssl.{store}.location": given[own], f"ssl.{store}.type": "PEM"}
        orphans = [name for name in java if name.startswith(f"ssl.{store}.") and f"ssl.{store}.location" not in java]
        if orphans:
            raise UsageError(f"{_KIND} '{orphans[0]}' needs 'ssl.{store}.location'")
    if _KEY in given and _CERTIFICATE not in given:
        raise UsageError(f"{_KIND} '{_KEY}' needs '{_CERTIFICATE}'")
    if _KEY_PASSWORD in given and "ssl.keystore.location" not in java:
        raise UsageError(f"{_KIND} '{_KEY_PASSWORD}' needs '{_CERTIFICATE}' or 'ssl.keystore.location'")
    return tls_config(java)


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


def _authorization(given: Mapping[str, str], url_user: str | None) -> dict[str, str]:
    info, source = _user_info(given, url_user), given.get(_BEARER_SOURCE)
    token = given.get(_BEARER_TOKEN)
    if source not in (None, "STATIC_TOKEN", "OAUTHBEARER"):
        raise UsageError(f"{_KIND} '{_BEARER_SOURCE}' may be STATIC_TOKEN or OAUTHBEARER, not {source!r}")
    if source == "STATIC_TOKEN" and token is None:
        raise UsageError(f"{_KIND} '{_BEARER_TOKEN}' is missing, which {_BEARER_SOURCE}={source} needs")
    if token is not None and info is not None:
        raise UsageError(f"give '{_BEARER_TOKEN}', or a user name and a password for the schema registry, not both")
    if token is not None:
        return {"Authorization": f"Bearer {_one_line(_BEARER_TOKEN, token)}"}
    if info is not None:
        return {"Authorization": "Basic " + base64.b64encode(info.encode()).decode()}
    return {}


def _tokens(given: Mapping[str, str], url_user: str | None) -> ClientCredentials | None:
    """Of an OAuth 2 endpoint, by the grant "client credentials"."""
    own = [name for name in (_BEARER_ENDPOINT, _BEARER_ID, _BEARER_SECRET, _BEARER_SCOPE) if name in given]
    if given.get(_BEARER_SOURCE) != "OAUTHBEARER":
        if own:
            raise UsageError(f"{_KIND} '{own[0]}' needs {_BEARER_SOURCE}=OAUTHBEARER")
        return None
    others = [name for name in (_BEARER_TOKEN, _BASIC_INFO) if name in given]
    if others or url_user is not None:
        raise UsageError(f"give {_BEARER_SOURCE}=OAUTHBEARER, or {others[0] if others else 'a user in the url'}, not both")
    missing = [name for name in (_BEARER_ENDPOINT, _BEARER_ID, _BEARER_SECRET) if not given.get(name)]
    if missing:
        raise UsageError(f"{_KIND} '{missing[0]}' is missing, which {_BEARER_SOURCE}=OAUTHBEARER needs")
    if not is_web_address(given[_BEARER_ENDPOINT]):  # what it says is not shown: it may have a password in it
        raise UsageError(f"{_KIND} '{_BEARER_ENDPOINT}' must be like https://host/path")
    return ClientCredentials(
        url=given[_BEARER_ENDPOINT],
        client_id=given[_BEARER_ID],
        client_secret=given[_BEARER_SECRET],
        scope=given.get(_BEARER_SCOPE),
    )


def _one_line(name: str, value: str) -> str:
    if not value.strip() or not value.isprintable() or not value.isascii():
        raise UsageError(f"{_KIND} '{name}' must be one line of ASCII text")
    return value.strip()


def _routing(given: Mapping[str, str]) -> dict[str, str]:
    """Headers by which Confluent Cloud finds the registry that a token is for."""
    names = {_BEARER_CLUSTER: "target-sr-cluster", _BEARER_POOL: "Confluent-Identity-Pool-Id"}
    return {header: _one_line(name, given[name]) for name, header in names.items() if name in given}


def _url_user(parts: list[SplitResult]) -> str | None:
    """`user:password` of the urls."""
    users = {f"{unquote(each.username)}:{unquote(each.password or '')}" for each in parts if each.username}
    if len(users) > 1:
        raise UsageError("the schema registry's urls have different users; there can be one")
    return next(iter(users), None)


def _user_info(given: Mapping[str, str], url_user: str | None) -> str | None:
    """`user:password`, of the property or of the urls."""
    source = given.get(_BASIC_SOURCE, "USER_INFO" if _BASIC_INFO in given else "URL").upper()
    match source:
        case "USER_INFO":
            if ":" not in given.get(_BASIC_INFO, ""):
                raise UsageError(f"{_KIND} '{_BASIC_INFO}' must be like user:password")
            if url_user is not None:
                raise UsageError(f"give the schema registry's user in '{_BASIC_INFO}' or in the url, not in both")
            return given[_BASIC_INFO]
        case "URL":
            if _BASIC_INFO in given:
                raise UsageError(f"{_KIND} '{_BASIC_INFO}' needs {_BASIC_SOURCE}=USER_INFO")
            return url_user
        case _:
            raise UsageError(f"{_KIND} '{_BASIC_SOURCE}' may be USER_INFO or URL, not {source!r}")
