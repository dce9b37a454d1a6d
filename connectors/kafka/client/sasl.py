"""Who logs in: from the SASL properties of the Java client, and those of librdkafka, to one typed value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from headrace.connectors.base.arguments import text
from headrace.connectors.security.endpoint import Http, shown
from headrace.connectors.security.renewal import Renewal
from headrace.connectors.security.tokens import AZURE_IMDS, ClientCredentials, FileTokens, ManagedIdentity, MskTokens
from headrace.enumerator.errors import UsageError

_WITH_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_WITH_TOKEN = ("OAUTHBEARER", "AWS_MSK_IAM")
_MECHANISMS = (*_WITH_PASSWORD, "GSSAPI", *_WITH_TOKEN)


@dataclass(frozen=True, eq=False, slots=True)
class _Provider:
    """What a token provider is known by that compares by identity: itself, and all copies that are made of it here.

    A process has one cluster for equal configurations, whose connections all of its tasks use: each brings a copy.
    """

    provider: object
    name: str = field(default_factory=lambda: uuid4().hex)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Provider) and (self.provider is other.provider or self.name == other.name)

    def __hash__(self) -> int:
        return hash(type(self.provider).__qualname__)


def _known_by(provider: object) -> object:
    if type(provider).__eq__ is not object.__eq__:
        with suppress(TypeError):  # as a dataclass that is not frozen
            hash(provider)
            return provider
    return _Provider(provider)


@dataclass(frozen=True, kw_only=True, slots=True)
class SaslConfig:
    """Who we are. PLAIN and SCRAM need `username` and `password`; GSSAPI takes its ticket from the environment.

    OAUTHBEARER needs `token_provider`: an object with `token() -> str` and optionally `extensions() -> dict[str, str]`,
    picklable if the configuration is to travel to workers; all copies of it in a process share their connections. AWS_MSK_IAM
    has its own provider, with AWS's default credentials; what goes over the wire is OAUTHBEARER, which MSK's IAM listeners
    take, too.
    """

    mechanism: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    kerberos_service_name: str = "kafka"
    token_provider: Any = field(default=None, repr=False, compare=False)
    _provider: object = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise `UsageError` for an unknown mechanism or missing credentials."""
        if self.mechanism not in _MECHANISMS:
            raise UsageError(f"sasl.mechanism must be one of {', '.join(_MECHANISMS)}, not {self.mechanism!r}")
        for name in ("username", "password"):
            if getattr(self, name) is not None:
                text(name, getattr(self, name))
        text("kerberos_service_name", self.kerberos_service_name)
        if self.mechanism in _WITH_PASSWORD and (not self.username or self.password is None):
            raise UsageError(
                f"sasl.mechanism {self.mechanism} needs a user name and a password, in sasl.jaas.config or in SaslConfig"
            )
        if self.mechanism == "AWS_MSK_IAM" and self.token_provider is None:
            object.__setattr__(self, "token_provider", MskTokens())
        if self.mechanism in _WITH_TOKEN and not callable(getattr(self.token_provider, "token", None)):
            raise UsageError(
                "sasl.mechanism OAUTHBEARER needs the property sasl.oauthbearer.token.endpoint.url (or "
                "sasl.oauthbearer.metadata.authentication.type), or from Python "
                "SaslConfig(token_provider=...), an object with a token() method"
            )
        if self.token_provider is not None:
            object.__setattr__(self, "_provider", _known_by(self.token_provider))

    @property
    def wire_mechanism(self) -> str:
        """As it is called in the handshake with a broker."""
        return "OAUTHBEARER" if self.mechanism in _WITH_TOKEN else self.mechanism


_OAUTH = "sasl.oauthbearer."
_URL = _OAUTH + "token.endpoint.url"
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "clientId": (_OAUTH + "client.credentials.client.id", _OAUTH + "client.id"),  # Java's (KIP-1139), and librdkafka's
    "clientSecret": (_OAUTH + "client.credentials.client.secret", _OAUTH + "client.secret"),
    "scope": (_OAUTH + "scope",),
}
_ENCODED, _EXTENSIONS, _METHOD = _OAUTH + "header.urlencode", _OAUTH + "extensions", _OAUTH + "method"
_METADATA, _CONFIG = _OAUTH + "metadata.authentication.type", _OAUTH + "config"  # librdkafka's
_CA = "https.ca.location"  # librdkafka's
_RETRIEVER = _OAUTH + "jwt.retriever.class"
_KAFKAS_RETRIEVERS = frozenset(
    f"org.apache.kafka.common.security.oauthbearer.{name}JwtRetriever" for name in ("Default", "ClientCredentials", "File")
)
_HANDLERS = ("sasl.client.callback.handler.class", "sasl.login.callback.handler.class")
_KAFKAS_HANDLERS = frozenset(
    f"org.apache.kafka.common.security.oauthbearer.{name}"
    for name in (
        *("OAuthBearerLoginCallbackHandler", "secured.OAuthBearerLoginCallbackHandler"),
        "internals.OAuthBearerSaslClientCallbackHandler",
    )
)
_MSK_HANDLERS = frozenset(
    f"software.amazon.msk.auth.iam.{name}" for name in ("IAMClientCallbackHandler", "IAMOAuthBearerLoginCallbackHandler")
)

_NUMBERS: Mapping[str, tuple[float, float, float]] = {
    "sasl.login.refresh.window.factor": (0.5, 1.0, 1.0),
    "sasl.login.refresh.window.jitter": (0.0, 0.25, 1.0),
    "sasl.login.refresh.min.period.seconds": (0, 900, 1.0),
    "sasl.login.refresh.buffer.seconds": (0, 3600, 1.0),
    "sasl.login.connect.timeout.ms": (1, 2**31 - 1, 1000.0),
    "sasl.login.read.timeout.ms": (1, 2**31 - 1, 1000.0),
}
"""Least, most, and how many of the unit are a second or the whole."""

SASL_PROPERTIES: tuple[str, ...] = tuple(
    sorted(
        {
            *("sasl.mechanism", "sasl.jaas.config", "sasl.kerberos.service.name"),
            *(_URL, _ENCODED, _EXTENSIONS, _METHOD, _METADATA, _CONFIG, _CA, _RETRIEVER, *_HANDLERS, *_NUMBERS),
            *(name for names in _SPELLINGS.values() for name in names),
        }
    )
)
"""The properties, in lower case, that `login` reads."""


def login(given: Mapping[str, str]) -> SaslConfig:
    """Who logs in, as these properties (names in lower case) say. Does no I/O.

    Raises `UsageError` naming the property that is missing, unknown or impossible here; no message holds a secret.
    """
    mechanism = given.get("sasl.mechanism", "GSSAPI").upper()
    options = parse_jaas(given["sasl.jaas.config"], mechanism) if "sasl.jaas.config" in given else {}
    is_msk = _is_msk(given, mechanism)
    for name in options.keys() & (_CLIENT_OPTIONS if is_msk else _AWS_OPTIONS):
        whose = "a token endpoint" if is_msk else f"Amazon MSK, with {_HANDLERS[0]}={min(_MSK_HANDLERS)}"
        raise UsageError(f"the option {name} in sasl.jaas.config is for {whose}")
    provider: Any = None
    if is_msk:
        provider = _msk_tokens(given, options)
    elif mechanism == "OAUTHBEARER":
        provider = _token_provider(given, options)
    return SaslConfig(
        mechanism=mechanism,
        username=options.get("username"),
        password=options.get("password"),
        kerberos_service_name=options.get("serviceName") or given.get("sasl.kerberos.service.name", "kafka"),
        token_provider=provider,
    )


def _is_msk(given: Mapping[str, str], mechanism: str) -> bool:
    """Whether tokens are AWS's. Raises UsageError for a callback handler that is not known, or does not fit."""
    named = {given[name]: name for name in _HANDLERS if name in given}
    for handler, name in named.items():
        if handler not in _KAFKAS_HANDLERS | _MSK_HANDLERS:
            raise UsageError(
                f"Kafka option '{name}' names a Java class, and no Java runs here; what is done by {handler} can be done by "
                "sasl=SaslConfig(mechanism='OAUTHBEARER', token_provider=...) from Python"
            )
        if mechanism not in _WITH_TOKEN:
            raise UsageError(f"Kafka option '{name}' does not fit sasl.mechanism {mechanism}")
    if given.get(_METHOD, "oidc") != "oidc":
        raise UsageError(f"Kafka option '{_METHOD}' may only be oidc, not {given[_METHOD]!r}")
    return mechanism == "AWS_MSK_IAM" or bool(_MSK_HANDLERS & named.keys())


_MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", re.IGNORECASE)


def _msk_tokens(given: Mapping[str, str], options: Mapping[str, str]) -> MskTokens:
    region = _MSK_HOST.search(given.get("bootstrap.servers", ""))
    session = {"session_name": options["awsRoleSessionName"]} if "awsRoleSessionName" in options else {}
    return MskTokens(
        region=region[1].lower() if region else None,
        profile=options.get("awsProfileName"),
        role_arn=options.get("awsRoleArn"),
        renewal=_renewal(given),
        **session,
    )


def _token_provider(given: Mapping[str, str], options: Mapping[str, str]) -> Any:  # noqa: ANN401 - one of several
    """The provider of tokens that the properties name; None if they name none."""
    _check_retriever(given)
    kind = given.get(_METADATA, "none")
    if kind not in ("none", "azure_imds"):
        raise UsageError(f"Kafka option '{_METADATA}' may be none or azure_imds, not {kind!r}")
    if kind == "azure_imds":
        _refuse_credentials(given, options, "this machine's identity needs none")
        return _managed_identity(given, options)
    if _CONFIG in given:
        raise UsageError(f"Kafka option '{_CONFIG}' needs {_METADATA}=azure_imds")
    if _URL not in given:
        return None
    if given[_URL].lower().startswith("file:"):
        _refuse_credentials(given, options, "a token in a file needs none")
        return FileTokens(path=_local_path(given[_URL]), sasl_extensions=_extensions(given, options))
    return _client_credentials(given, options)


def _refuse_credentials(given: Mapping[str, str], options: Mapping[str, str], why: str) -> None:
    """Credentials that nothing would use, of the login module and of properties, are refused."""
    for name in sorted(options.keys() & _CLIENT_OPTIONS):
        raise UsageError(f"the option {name} in sasl.jaas.config is for a token endpoint: {why}")
    for name in sorted(name for names in _SPELLINGS.values() for name in names if name in given):
        raise UsageError(f"Kafka option '{name}' is for a token endpoint: {why}")


def _check_retriever(given: Mapping[str, str]) -> None:
    if given.get(_RETRIEVER, "") not in {"", *_KAFKAS_RETRIEVERS}:
        raise UsageError(
            f"Kafka option '{_RETRIEVER}' names a Java class, and no Java runs here; of Kafka's own these are understood: "
            f"{', '.join(sorted(_KAFKAS_RETRIEVERS))}"
        )


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UsageError(f"{_URL} must be like file:///path/of/the/token, not {shown(url)!r}")
    return unquote(parts.path)


def _managed_identity(given: Mapping[str, str], options: Mapping[str, str]) -> ManagedIdentity:
    config = _pairs(given.get(_CONFIG, ""), _CONFIG)
    if config.keys() - {"query"}:
        raise UsageError(f"Kafka option '{_CONFIG}' may hold query=..., and nothing else")
    if "query" not in config and _URL not in given:
        raise UsageError(f"{_METADATA}=azure_imds needs {_CONFIG}=query=api-version=2018-02-01&resource=...")
    return ManagedIdentity(
        query=config.get("query", ""),
        url=given.get(_URL, AZURE_IMDS),
        sasl_extensions=_extensions(given, options),
        http=_http(given, options),
        renewal=_renewal(given),
    )


def _client_credentials(given: Mapping[str, str], options: Mapping[str, str]) -> ClientCredentials:
    found: dict[str, str] = {}
    for option, names in _SPELLINGS.items():
        spelt = [options[option]] if option in options else []
        spelt += [given[name] for name in names if name in given]
        if len(set(spelt)) > 1:
            raise UsageError(f"{option} in sasl.jaas.config and the properties {' and '.join(names)} contradict each other")
        found[option] = spelt[0] if spelt else ""
    encoded = given.get(_ENCODED, "false").lower()
    if encoded not in ("true", "false"):
        raise UsageError(f"{_ENCODED} must be true or false, not {given[_ENCODED]!r}")
    return ClientCredentials(
        url=given[_URL],
        client_id=found["clientId"],
        client_secret=found["clientSecret"],
        scope=found["scope"] or None,
        sasl_extensions=_extensions(given, options),
        sends_encoded=encoded == "true",
        http=_http(given, options),
        renewal=_renewal(given),
    )


def _extensions(given: Mapping[str, str], options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    prefix = "extension_"
    of_module = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    return tuple(sorted((of_module | _pairs(given.get(_EXTENSIONS, ""), _EXTENSIONS)).items()))


def _number(given: Mapping[str, str], name: str, default: float) -> float:
    if name not in given:
        return default
    least, most, unit = _NUMBERS[name]
    try:
        found = float(given[name])
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        raise UsageError(f"{name} must be a number from {least:g} to {most:g}, not {given[name]!r}")
    return found / unit


def _renewal(given: Mapping[str, str]) -> Renewal:
    default = Renewal()
    return Renewal(
        window_factor=_number(given, "sasl.login.refresh.window.factor", default.window_factor),
        window_jitter=_number(given, "sasl.login.refresh.window.jitter", default.window_jitter),
        min_period_s=_number(given, "sasl.login.refresh.min.period.seconds", default.min_period_s),
        buffer_s=_number(given, "sasl.login.refresh.buffer.seconds", default.buffer_s),
    )


def _http(given: Mapping[str, str], options: Mapping[str, str]) -> Http:
    """How the endpoint is asked; its certificates by the login module's options, as in Java, or by librdkafka's property."""
    if options.get(_STORE_TYPE, "PEM").upper() != "PEM":
        raise UsageError(f"the option {_STORE_TYPE} in sasl.jaas.config may only be PEM: convert the store to it")
    default = Http()
    return Http(
        connect_timeout_s=_number(given, "sasl.login.connect.timeout.ms", default.connect_timeout_s),
        read_timeout_s=_number(given, "sasl.login.read.timeout.ms", default.read_timeout_s),
        ca_file=options.get(_STORE) or given.get(_CA) or None,
    )


_STORE, _STORE_TYPE = "ssl.truststore.location", "ssl.truststore.type"


def _pairs(text: str, option: str) -> dict[str, str]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if not all(name and equals for name, equals, _ in pairs):
        raise UsageError(f"{option} must be name=value, several separated by commas")
    return {name: value for name, _, value in pairs}


# --- sasl.jaas.config -------------------------------------------------------------------------------------------------------

_QUOTED = r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'"
_JAAS = re.compile(
    rf"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)(?P<options>(?:\s+[\w.$-]+\s*=\s*(?:{_QUOTED}|[^\s;\"']+))*)\s*;\s*", re.DOTALL
)
_JAAS_OPTION = re.compile(rf"([\w.$-]+)\s*=\s*({_QUOTED}|[^\s;\"']+)", re.DOTALL)
_LOGIN_MODULES: dict[str, tuple[str, ...]] = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
    "com.sun.security.auth.module.Krb5LoginModule": ("GSSAPI",),
    "software.amazon.msk.auth.iam.IAMLoginModule": ("AWS_MSK_IAM",),
}


def parse_jaas(text: str, mechanism: str) -> dict[str, str]:
    """The options of the one login module in a `sasl.jaas.config`, checked to belong to `mechanism`.

    Raises `UsageError` for text that is not JAAS, an unknown login module or one for another mechanism. No message repeats
    the text, since it holds the password.
    """
    match = _JAAS.fullmatch(text)
    if match is None:
        raise UsageError(
            'sasl.jaas.config must look like: org.apache.kafka.common.security.plain.PlainLoginModule required username="..." '
            'password="..."; (one login module, ended by a semicolon; the text given is not shown, as it may hold a password)'
        )
    module = match["module"].removeprefix("kafkashaded.").removeprefix("shadeddatabricks.")
    if module not in _LOGIN_MODULES:
        raise UsageError(
            f"the login module {module} in sasl.jaas.config is not supported; supported are {', '.join(_LOGIN_MODULES)}"
        )
    if mechanism not in _LOGIN_MODULES[module]:
        raise UsageError(f"the login module {module} in sasl.jaas.config does not fit sasl.mechanism {mechanism}")
    options = {key: _unquote(value) for key, value in _JAAS_OPTION.findall(match["options"])}
    for name in options:
        _check_login_option(name, mechanism)
    if options.get("tokenauth", "false").lower() == "true":
        raise UsageError("delegation tokens (tokenauth=true in sasl.jaas.config) are not supported")
    return options


# Options of Java's login modules. What names credentials that are not taken from there is refused, so that no others are used.
_PASSWORD_OPTIONS = frozenset({"username", "password", "tokenauth"})
_CLIENT_OPTIONS = frozenset({"clientId", "clientSecret", "scope", _STORE, _STORE_TYPE})
_AWS_OPTIONS = frozenset({"awsProfileName", "awsRoleArn", "awsRoleSessionName"})
_LOGIN_OPTIONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_WITH_PASSWORD, _PASSWORD_OPTIONS),
    "GSSAPI": frozenset({"serviceName"}),
    "OAUTHBEARER": _CLIENT_OPTIONS | _AWS_OPTIONS,
    "AWS_MSK_IAM": _AWS_OPTIONS,
}
_LOGIN_HARMLESS = frozenset(
    {
        *("useKeyTab", "storeKey", "useTicketCache", "renewTGT", "doNotPrompt", "refreshKrb5Config", "isInitiator", "debug"),
        *("awsDebugCreds", "awsMaxRetries", "awsMaxBackOffTimeMs"),
    }
)
_LOGIN_INSTEAD = {
    "keyTab": "run kinit -k -t, or set KRB5_CLIENT_KTNAME",
    "principal": "run kinit for this principal",
    "ticketCache": "set KRB5CCNAME",
    "awsStsRegion": "set AWS_REGION",
}
_UNSECURED = "unsecuredLogin"


def _check_login_option(name: str, mechanism: str) -> None:
    if mechanism == "OAUTHBEARER" and name.startswith("extension_"):
        return
    if name not in _LOGIN_OPTIONS.get(mechanism, frozenset()) | _LOGIN_HARMLESS:
        instead = _LOGIN_INSTEAD.get(name, "leave it out")
        if name.startswith(_UNSECURED):
            instead = "it makes tokens that nothing signs; put one into a file, and name it as file:///path in " + _URL
        elif name.startswith("ssl."):
            instead = f"for the token endpoint's certificate there are {_STORE} and {_STORE_TYPE}=PEM"
        raise UsageError(f"the option {name} in sasl.jaas.config is not supported: {instead}")


def _unquote(value: str) -> str:
    if value[:1] not in ('"', "'"):
        return value
    return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
