"""Secrets by reference, as the Java client has them: `${env:NAME}`, `${file:/path:name}`, `${directory:/path:file}`.

What is behind a name is said by `config.providers` and `config.providers.<name>.class` (KIP-297, KIP-421, KIP-887); a text
whose provider is not named there is left as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from headrace.connectors.security.java_properties import parse_properties
from headrace.enumerator.errors import UsageError

_PROVIDERS = "config.providers"
_PACKAGE = "org.apache.kafka.common.config.provider."
_REFERENCE = re.compile(r"\$\{([^}:]*):(?:([^}]*?):)?([^}:]*)\}")
_ALLOW_LIST, _ALLOWED = "allowlist.pattern", "allowed.paths"

Lookup = Callable[[str, str, str], str]
"""The value of a key at a path, for the property that is named first. Raises UsageError, which holds no value."""


def resolved(given: Mapping[str, str], kind: str) -> dict[str, str]:
    """Properties (names in lower case) with what their references stand for, and without `config.providers` themselves.

    Reads the environment and the files of this process, now. `kind`: what messages call a property, such as "Kafka option".
    Raises UsageError for a provider that is not known, and for a reference to what is not there; no message holds a secret.
    """
    own = {name: value for name, value in given.items() if is_provider(name)}
    lookups = _lookups(own, kind)
    return {
        name: _REFERENCE.sub(partial(_replaced, f"{kind} '{name}'", lookups), value)
        for name, value in given.items()
        if name not in own
    }


def check_providers(given: Mapping[str, str], kind: str) -> None:
    """That `resolved` knows the providers, as it says; nothing is looked up."""
    _lookups({name: value for name, value in given.items() if is_provider(name)}, kind)


def is_provider(name: str) -> bool:
    """Whether a property (in lower case) names providers, or is one of theirs."""
    return name == _PROVIDERS or name.startswith(f"{_PROVIDERS}.")


def _lookups(given: Mapping[str, str], kind: str) -> dict[str, Lookup]:
    own = dict(given)
    names = [name.strip().lower() for name in own.pop(_PROVIDERS, "").split(",") if name.strip()]
    lookups = {name: _lookup(name, own) for name in names}
    if own:
        raise UsageError(f"{kind} '{min(own)}' is not supported, or its provider is not named in {_PROVIDERS}")
    return lookups


def _lookup(name: str, own: dict[str, str]) -> Lookup:
    """Takes what it understands out of `own`."""
    kind = own.pop(f"{_PROVIDERS}.{name}.class", "")
    params = {each: own.pop(f"{_PROVIDERS}.{name}.param.{each}", None) for each in (_ALLOW_LIST, _ALLOWED)}
    match kind.removeprefix(_PACKAGE):
        case "EnvVarConfigProvider" if params[_ALLOWED] is None:
            return partial(_of_environment, params[_ALLOW_LIST])
        case "FileConfigProvider" if params[_ALLOW_LIST] is None:
            return partial(_of_file, params[_ALLOWED])
        case "DirectoryConfigProvider" if params[_ALLOW_LIST] is None:
            return partial(_of_directory, params[_ALLOWED])
    raise UsageError(
        f"{_PROVIDERS}.{name}.class must be {_PACKAGE}EnvVarConfigProvider (with {_ALLOW_LIST}), or FileConfigProvider or "
        f"DirectoryConfigProvider (with {_ALLOWED}), not {kind!r}"
    )


def _replaced(option: str, lookups: Mapping[str, Lookup], found: re.Match[str]) -> str:
    lookup = lookups.get(found[1].lower())
    return found[0] if lookup is None else lookup(option, found[2] or "", found[3])


def _of_environment(pattern: str | None, option: str, path: str, key: str) -> str:
    if path or (pattern is not None and not re.fullmatch(pattern, key)):
        raise UsageError(f"{option} names the environment variable {key!r} in a way that is not allowed")
    if key not in os.environ:
        raise UsageError(f"{option} names the environment variable {key!r}, which is not set here")
    return os.environ[key]


def _of_file(allowed: str | None, option: str, path: str, key: str) -> str:
    properties = parse_properties(_read(allowed, option, path))
    if key not in properties:
        raise UsageError(f"{option} names {key!r} in the file {path}, which does not hold it")
    return properties[key]


def _of_directory(allowed: str | None, option: str, path: str, key: str) -> str:
    return _read(allowed, option, f"{path}/{key}")


def _read(allowed: str | None, option: str, path: str) -> str:
    places = None if allowed is None else [Path(each.strip()) for each in allowed.split(",")]
    real = Path(path).resolve()
    if places is not None and not any(real.is_relative_to(place.resolve()) for place in places):
        raise UsageError(f"{option} names the file {path}, which {_ALLOWED} does not allow")
    try:
        return real.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} names the file {path}, which cannot be read: {type(error).__name__}") from None
