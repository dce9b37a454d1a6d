"""Client configuration: the Java client's property names turned into one typed value.

`ClientConfig` is frozen, hashable and picklable, so it travels to worker processes. Its repr shows no secret. A property
that cannot be honoured is refused by name with the reason; an unknown one is refused with the nearest known name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from headrace.connectors.kafka.client.sasl import SASL_PROPERTIES, SaslConfig, login
from headrace.connectors.kafka.format.record_batch import CODECS, LEVELS
from headrace.connectors.security.references import resolved
from headrace.connectors.security.tls import TLS_PROPERTIES, TlsConfig, tls_config
from headrace.connectors.security.tokens import MskTokens
from headrace.enumerator.errors import UsageError

__all__ = ["ClientConfig", "DnsLookup", "Isolation", "TlsConfig", "check_not_ignored"]

DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
"""15 minutes, the most that brokers allow by default (`transaction.max.timeout.ms`): it has to outlast an outage of the job."""

_INT32_MAX = 2**31 - 1


class Isolation(StrEnum):
    """`isolation.level`: whether records of open and aborted transactions are seen."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @property
    def wire_value(self) -> int:
        return 1 if self is Isolation.READ_COMMITTED else 0


class DnsLookup(StrEnum):
    """`client.dns.lookup`: what is done with the names of the bootstrap addresses (KIP-235, KIP-302)."""

    USE_ALL_DNS_IPS = "use_all_dns_ips"
    """Connect by the name, to one of its IP addresses after the other."""
    RESOLVE_CANONICAL_BOOTSTRAP_SERVERS_ONLY = "resolve_canonical_bootstrap_servers_only"
    """Put the canonical name of each of its IP addresses in its place: for Kerberos and TLS behind an alias."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConfig:
    """The settings of a Kafka client. Names, units and defaults are the Java client's unless noted.

    `bootstrap` is `host:port`, several separated by commas. TLS is spoken if `tls` is given, SASL if `sasl` is.
    Not the Java defaults: `max_partition_fetch_bytes` None shares a fetch among its partitions; `receive_buffer_bytes` and
    `send_buffer_bytes` None let the operating system tune its buffers; `batch_size` None fills record batches up to 900,000
    bytes and `max_request_size` None produce requests up to 4 MiB. `batch_size` bounds a batch before its compression.
    `connections_max_idle_ms` None, which Java writes as -1, keeps idle connections. `default_api_timeout_ms` is where a job
    gives up during an outage, and None rides it out: a single call then takes 60 s at most, and is made again.
    `compression_level` is the `compression.<type>.level` of the `compression_type`; None is the codec's default.
    `delivery_timeout_ms` None is `default_api_timeout_ms`, if that is set, and else waits as long as it takes (Java: 2
    minutes); one shorter than `request_timeout_ms` is refused.
    `transaction_timeout_ms` is 15 minutes. Raises `UsageError` for a value out of range.
    """

    bootstrap: str
    tls: TlsConfig | None = None
    sasl: SaslConfig | None = None
    client_id: str = "headrace"
    client_rack: str | None = None
    group_id: str | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int | None = None
    socket_connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int | None = 540_000
    client_dns_lookup: DnsLookup = DnsLookup.USE_ALL_DNS_IPS
    exclude_internal_topics: bool = True
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    send_buffer_bytes: int | None = None
    compression_type: str = "none"
    compression_level: int | None = None
    batch_size: int | None = None
    max_request_size: int | None = None
    delivery_timeout_ms: int | None = None
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS

    def __post_init__(self) -> None:
        """Check every value and normalise `isolation`, so that a ClientConfig that exists is one that can be used."""
        if not isinstance(self.bootstrap, str):
            raise UsageError(f"bootstrap must be a string like 'host:9092,other:9092', not {type(self.bootstrap).__name__}")
        _parse_addresses(self.bootstrap)
        if self.isolation not in tuple(Isolation):
            raise UsageError(f"isolation.level must be read_uncommitted or read_committed, not {self.isolation!r}")
        object.__setattr__(self, "isolation", Isolation(self.isolation))
        for name, kind in _NUMBERS.items():
            value, least = getattr(self, name), 0 if name in _MAY_BE_0 else 1
            if value is None and kind == "int | None":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _INT32_MAX:
                raise UsageError(f"{_JAVA_NAME[name]} must be a whole number from {least} to {_INT32_MAX}, not {value!r}")
        if self.delivery_timeout_ms is not None and self.delivery_timeout_ms < self.request_timeout_ms:
            raise UsageError(
                f"delivery.timeout.ms ({self.delivery_timeout_ms}) must not be shorter than request.timeout.ms "
                f"({self.request_timeout_ms}): no request could be answered late and sent again"
            )
        if self.compression_type not in CODECS:
            raise UsageError(f"compression.type must be one of {', '.join(CODECS)}, not {self.compression_type!r}")
        if self.compression_level is not None:
            _check_level(self.compression_type, self.compression_level)
        if self.group_id is not None and not self.group_id:
            raise UsageError("group.id must not be empty")
        if self.sasl is not None and self.tls is None and isinstance(self.sasl.token_provider, MskTokens):
            raise UsageError("to log in to Amazon MSK by IAM security.protocol must be SASL_SSL: tokens are secrets")

    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]:
        return _parse_addresses(self.bootstrap)

    @property
    def longest_delivery_ms(self) -> int | None:
        """How long a record may wait for its acknowledgement: as long as the user has set. None: as long as it takes."""
        if self.delivery_timeout_ms is not None or self.default_api_timeout_ms is None:
            return self.delivery_timeout_ms
        return max(self.default_api_timeout_ms, self.request_timeout_ms)  # no request is cut short

    @property
    def security_protocol(self) -> str:
        """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, as `tls` and `sasl` say."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ClientConfig:
        """The configuration that Java client properties describe (the case of names is ignored).

        Raises `UsageError` naming the property that is missing, unknown, out of range or impossible here.
        """
        given = resolved({name.lower(): str(value).strip() for name, value in properties.items()}, "Kafka option")
        for name, value in given.items():
            _check_honourable(name, value)
        if "bootstrap.servers" not in given:
            raise UsageError("the property bootstrap.servers is missing: host:port, several separated by commas")
        tls, sasl = _security(given)
        plain: dict[str, Any] = {
            field_name: parse(name, given[name]) for name, (field_name, parse) in _CLIENT.items() if name in given
        }
        return cls(tls=tls, sasl=sasl, compression_level=_level(given), **plain)


_NUMBERS = {
    item.name: str(item.type)
    for item in fields(ClientConfig)
    if item.type in ("int", "int | None") and item.name != "compression_level"
}
_MAY_BE_0 = {
    *("connections_max_idle_ms", "reconnect_backoff_ms", "reconnect_backoff_max_ms", "retry_backoff_ms"),
    *("retry_backoff_max_ms", "metadata_max_age_ms", "fetch_min_bytes", "fetch_max_wait_ms", "batch_size"),
}

Parser = Callable[[str, str], object]


def _text(_name: str, value: str) -> str:
    return value


def _text_or_none(_name: str, value: str) -> str | None:
    return value or None


def _integer(name: str, value: str) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,19}", value):  # as Java reads it; Python takes 1_000, too
        raise UsageError(f"{name} must be a whole number, not {value!r}")
    return int(value)


def _unless_minus_one(name: str, value: str) -> int | None:
    return None if value == "-1" else _integer(name, value)  # Kafka writes "let the system decide" and "never" as -1


def _truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise UsageError(f"{name} must be true or false, not {value!r}")
    return value.lower() == "true"


def _dns_lookup(name: str, value: str) -> DnsLookup:
    try:
        return DnsLookup(value)
    except ValueError:
        raise UsageError(f"{name} must be one of {', '.join(DnsLookup)}, not {value!r}") from None


def _level(given: Mapping[str, str]) -> int | None:
    """The level of the compression type that is given. As in Java, those of other types may be given and must be valid."""
    levels = {name: _integer(name, given[name]) for name in _LEVEL_NAMES if name in given}
    for name, level in levels.items():
        if (name, level) != _GZIP_DEFAULT:
            _check_level(name.split(".")[1], level)
    chosen = f"compression.{given.get('compression.type', 'none')}.level"
    return None if (chosen, levels.get(chosen)) == _GZIP_DEFAULT else levels.get(chosen)


def _check_level(codec: str, level: int) -> None:
    if codec not in LEVELS:
        raise UsageError(f"compression.type {codec} has no levels: leave compression_level out")
    least, most = LEVELS[codec]
    if isinstance(level, bool) or not isinstance(level, int) or not least <= level <= most:
        raise UsageError(f"compression.{codec}.level must be a whole number from {least} to {most}, not {level!r}")


_LEVEL_NAMES = tuple(f"compression.{codec}.level" for codec in LEVELS)
_GZIP_DEFAULT = ("compression.gzip.level", -1)


def _isolation(name: str, value: str) -> Isolation:
    try:
        return Isolation(value)
    except ValueError:
        raise UsageError(f"{name} must be read_uncommitted or read_committed, not {value!r}") from None


_CLIENT: dict[str, tuple[str, Parser]] = {
    "bootstrap.servers": ("bootstrap", _text),
    "client.id": ("client_id", _text),
    "client.rack": ("client_rack", _text_or_none),
    "group.id": ("group_id", _text),
    "isolation.level": ("isolation", _isolation),
    "client.dns.lookup": ("client_dns_lookup", _dns_lookup),
    "exclude.internal.topics": ("exclude_internal_topics", _truth),
    "compression.type": ("compression_type", _text),
    **{name.replace("_", "."): (name, _integer) for name in _NUMBERS},
    "connections.max.idle.ms": ("connections_max_idle_ms", _unless_minus_one),
    "receive.buffer.bytes": ("receive_buffer_bytes", _unless_minus_one),
    "send.buffer.bytes": ("send_buffer_bytes", _unless_minus_one),
}
_JAVA_NAME = {field_name: name for name, (field_name, _) in _CLIENT.items()}

_SECURITY = ("security.protocol", *SASL_PROPERTIES)

# Accepted and without effect, for the reason that is above each group; none changes what is read or written.
_HARMLESS_NAMES = {
    "no group is joined, and nothing is committed but at checkpoints": """
        max.poll.interval.ms session.timeout.ms heartbeat.interval.ms partition.assignment.strategy group.instance.id
        auto.commit.interval.ms internal.leave.group.on.close""",
    "the engine decides how many records it takes at a time": "max.poll.records",
    "there are no such metrics": """
        metrics.num.samples metrics.recording.level metrics.sample.window.ms auto.include.jmx.reporter enable.metrics.push""",
    "the bootstrap addresses are always tried after the known brokers; what a topic costs in memory is small": """
        metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms metadata.max.idle.ms""",
    "socket.connection.setup.timeout.ms holds for every try": "socket.connection.setup.timeout.max.ms",
    "they choose among implementations in Java; here OpenSSL does this work": """
        ssl.trustmanager.algorithm ssl.keymanager.algorithm ssl.secure.random.implementation""",
    "a token endpoint that is away is asked again as a broker is, with retry.backoff.ms": """
        sasl.login.retry.backoff.ms sasl.login.retry.backoff.max.ms""",
    "nothing looks into tokens here, and tickets are kept fresh outside": """
        sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.jwt.validator.class
        sasl.oauthbearer.clock.skew.seconds sasl.kerberos.min.time.before.relogin
        sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor""",
    "a batch is sent when it is full or the writer flushes, and a writer waits while 5 requests are in flight": """
        linger.ms buffer.memory max.block.ms max.in.flight.requests.per.connection""",
    "records are sent again, in order and once, until delivery.timeout.ms": "retries",
    "records without a key go round robin, a batch at a time": """
        partitioner.availability.timeout.ms partitioner.adaptive.partitioning.enable""",
}
_HARMLESS = frozenset(name for names in _HARMLESS_NAMES.values() for name in names.split())

# Honoured for these values only, which are what is always done here.
_ONLY: dict[str, tuple[frozenset[str], str]] = {
    "acks": (frozenset({"all", "-1"}), "records are always acknowledged by all in-sync replicas"),
    "allow.auto.create.topics": (frozenset({"false"}), "no topic is created by being asked for; create it beforehand"),
    "check.crcs": (frozenset({"true"}), "the CRC of every batch is always checked, which costs little alongside decoding it"),
    "ssl.protocol": (frozenset({"tls", "tlsv1.3"}), "ssl.enabled.protocols states which versions may be negotiated"),
    "enable.idempotence": (frozenset({"true"}), "writing is always idempotent"),
    "group.protocol": (frozenset({"classic", "consumer"}), "no group is joined"),
}

_CLASS = "it names a Java class, and no Java runs here"
_BYTES = "keys and values are bytes here: convert them before writing, or after reading"
_REFUSED: dict[str, str] = {
    "auto.offset.reset": "say where reading starts by the source's own argument, `start`",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "enable.auto.commit": "positions are committed to the source's `group` when a checkpoint completes",
    "interceptor.classes": _CLASS,
    "transactional.id": "the exactly-once sink chooses transactional ids itself",
    "metric.reporters": _CLASS,
    "security.providers": _CLASS,
    "ssl.engine.factory.class": _CLASS,
    "ssl.provider": "it names a security provider of Java, and no Java runs here: TLS is the system's OpenSSL",
    "sasl.login.class": _CLASS,
    "partitioner.class": _CLASS + "; give a partition column instead",
    "partitioner.ignore.keys": "give a partition column instead",
    "group.remote.assignor": "no group is joined",
    "ssl.cipher.suites": "suite names are Java's; the system's OpenSSL policy decides",
    "sasl.kerberos.kinit.cmd": "run kinit, or keep the ticket fresh with k5start, outside",
    **dict.fromkeys(
        [
            *("sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            *("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
            *("sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer"),
        ],
        "it is for brokers, which check tokens",
    ),
    **dict.fromkeys(
        [
            f"sasl.oauthbearer.assertion.{name}"
            for name in (
                *("algorithm", "claim.aud", "claim.exp.seconds", "claim.iss", "claim.jti.include", "claim.nbf.seconds"),
                *("claim.sub", "file", "private.key.file", "private.key.passphrase", "template.file"),
            )
        ],
        "tokens are asked for with a client secret, are in a file, or are the machine's; for others there is token_provider",
    ),
}

_KNOWN = frozenset({*_CLIENT, *_LEVEL_NAMES, *TLS_PROPERTIES, *_SECURITY, *_HARMLESS, *_ONLY, *_REFUSED})


def _check_honourable(name: str, value: str) -> None:
    if name in _REFUSED:
        raise UsageError(f"Kafka option '{name}' is not supported: {_REFUSED[name]}")
    if name in _ONLY:
        allowed, reason = _ONLY[name]
        if value.lower() not in allowed:
            raise UsageError(f"Kafka option '{name}' may only be {' or '.join(sorted(allowed))}, not {value!r}: {reason}")
    elif name not in _KNOWN:
        near = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.6)
        raise UsageError(f"Kafka option '{name}' is not known" + (f"; did you mean '{near[0]}'?" if near else ""))


def check_not_ignored(given: Collection[str], names: Collection[str]) -> None:
    """Raise `UsageError` for one of these properties that no `security.protocol` goes with: it is plain text by default."""
    for name in names:
        if name in given:
            protocols = "SASL_SSL or SASL_PLAINTEXT" if name in SASL_PROPERTIES else "SSL or SASL_SSL"
            raise UsageError(f"Kafka option '{name}' has no effect without security.protocol: set that to {protocols}")


def _security(given: Mapping[str, str]) -> tuple[TlsConfig | None, SaslConfig | None]:
    if "security.protocol" not in given:
        check_not_ignored(given, (*SASL_PROPERTIES, *TLS_PROPERTIES))
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise UsageError(f"security.protocol must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL, not {protocol!r}")
    tls = tls_config(given) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return tls, None
    return tls, login(given)


_ADDRESS = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9_]*://)?(?:\[(?P<v6>[0-9A-Fa-f:%.\w]+)\]|(?P<host>[^\s:/,\[\]]+)):(?P<port>\d{1,5})"
)


def _parse_addresses(bootstrap: str) -> tuple[tuple[str, int], ...]:
    addresses = []
    for part in (piece.strip() for piece in bootstrap.split(",")):
        if not part:
            continue
        match = _ADDRESS.fullmatch(part)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise UsageError(f"bootstrap.servers must be host:port, several separated by commas; {part!r} is not")
        host = match["v6"] or match["host"]
        try:
            host.encode("idna")
        except UnicodeError:
            raise UsageError(
                f"bootstrap.servers: {host!r} cannot be the name of a host: a part of it is empty or too long"
            ) from None
        addresses.append((host, int(match["port"])))
    if not addresses:
        raise UsageError("bootstrap.servers must name at least one host:port")
    return tuple(addresses)
