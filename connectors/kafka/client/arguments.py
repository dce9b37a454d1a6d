"""From the arguments of a source or a sink, and its properties, to the client's configuration: one way for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.connectors.base.arguments import mapping, text
from headrace.connectors.kafka.client.properties import ClientConfig, check_not_ignored
from headrace.connectors.kafka.client.sasl import SASL_PROPERTIES, SaslConfig
from headrace.connectors.security.tls import TLS_PROPERTIES
from headrace.enumerator.errors import UsageError


def client_config(
    bootstrap: str, properties: Mapping[str, str], arguments: Mapping[str, tuple[str, object]], *, sasl: SaslConfig | None
) -> ClientConfig:
    """The configuration that `properties` (the Java client's names, any case) and the arguments make. Does no I/O.

    `arguments`: the argument's name to the property it represents and its value; None where it was not given. `sasl` represents
    all properties that say who logs in. Raises UsageError for a property that says otherwise than an argument, and as
    `ClientConfig.from_properties`.
    """
    login: object = sasl
    if login is not None and not isinstance(login, SaslConfig):
        raise UsageError(f"sasl must be a SaslConfig or None, not {type(login).__name__}")
    text("bootstrap", bootstrap)
    given = _by_name(properties)
    for argument, (name, value) in {"bootstrap": ("bootstrap.servers", bootstrap), **arguments}.items():
        if value is None:
            continue
        if given.get(name, str(value)) != str(value):
            raise UsageError(
                f"{argument}={_shown(value)} contradicts the property {name}={given[name]!r}; give only {argument}"
            )
        given[name] = str(value)
    if sasl is None:
        return ClientConfig.from_properties(given)
    return _with_sasl(given, sasl)


def _by_name(properties: Mapping[str, object]) -> dict[str, str]:
    """The properties by their names in lower case. No message repeats a value, which may be a password."""
    mapping("properties", properties)
    given: dict[str, str] = {}
    for name, value in properties.items():
        if not isinstance(value, str | int | float):
            raise UsageError(f"the property {name} must be a string, a number or a truth value, not {type(value).__name__}")
        written = str(value).lower() if isinstance(value, bool) else str(value).strip()
        if given.setdefault(name.lower(), written) != written:
            raise UsageError(f"the property {name.lower()} is given twice, with another value")
    return given


def _shown(value: object) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)


def _with_sasl(given: dict[str, str], sasl: SaslConfig) -> ClientConfig:
    for name in SASL_PROPERTIES:
        if name in given:
            raise UsageError(f"sasl=SaslConfig(...) contradicts the property {name}; give only sasl")
    if "security.protocol" not in given:
        check_not_ignored(given, TLS_PROPERTIES)
    protocol = given.get("security.protocol", "SASL_PLAINTEXT").upper()
    if not protocol.startswith("SASL_"):
        raise UsageError(f"sasl=SaslConfig(...) needs security.protocol SASL_SSL or SASL_PLAINTEXT, not {protocol!r}")
    # GSSAPI, the default of that protocol, asks for nothing more, and gives way to what was given.
    return replace(ClientConfig.from_properties({**given, "security.protocol": protocol}), sasl=sasl)
