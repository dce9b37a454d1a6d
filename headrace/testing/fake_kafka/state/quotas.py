"""Client quotas (KIP-13, KIP-546): bytes a second for a client id or user; a client that takes more has to wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError

PRODUCER_RATE = "producer_byte_rate"
CONSUMER_RATE = "consumer_byte_rate"
KEYS = frozenset({PRODUCER_RATE, CONSUMER_RATE, "request_percentage", "controller_mutation_rate", "connection_creation_rate"})
ENTITY_TYPES = frozenset({"user", "client-id", "ip"})

Entity = frozenset[tuple[str, str | None]]
"""What a quota is for: pairs of entity type (`user`, `client-id`) and name; None is the default for that type."""


@dataclass(slots=True)
class _Usage:
    owed_until_ms: float = 0.0


@dataclass(slots=True)
class Quotas:
    """The quotas that are set, and what clients have used of them."""

    values: dict[Entity, dict[str, float]] = field(default_factory=dict)
    _usages: dict[tuple[str, str, str], _Usage] = field(default_factory=dict)

    def alter(self, entity: Entity, changes: Iterable[tuple[str, float | None]]) -> None:
        """Set quotas, or with None remove them. Raises INVALID_REQUEST for a key or entity that there is not."""
        if not entity or any(kind not in ENTITY_TYPES for kind, _ in entity):
            raise RefusedError(ErrorCode.INVALID_REQUEST, "Invalid client quota entity type")
        for key, value in changes:
            if key not in KEYS or (value is not None and value <= 0):
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"Invalid quota key or value: {key} {value}")
            if value is None:
                self.values.get(entity, {}).pop(key, None)
            else:
                self.values.setdefault(entity, {})[key] = value
        if entity in self.values and not self.values[entity]:
            del self.values[entity]

    def rate(self, key: str, user: str, client_id: str) -> float | None:
        """The quota in force, the most particular first; None without any."""
        for entity in _by_precedence(user, client_id):
            found = self.values.get(entity, {}).get(key)
            if found is not None:
                return found
        return None

    def throttle_ms(self, key: str, user: str, client_id: str, size: int, now_ms: int) -> int:
        """Note `size` bytes, and say how long their client is to wait until its rate is back within its quota."""
        rate = self.rate(key, user, client_id)
        if rate is None or not size:
            return 0
        usage = self._usages.setdefault((key, user, client_id), _Usage())
        usage.owed_until_ms = max(usage.owed_until_ms, float(now_ms)) + size * 1000 / rate
        return max(0, round(usage.owed_until_ms - now_ms - _WINDOW_MS))


_WINDOW_MS = 1000  # what may be taken at once


def _by_precedence(user: str, client_id: str) -> Iterable[Entity]:
    users: tuple[str | None, ...] = (user, None)
    clients: tuple[str | None, ...] = (client_id, None)
    yield from (frozenset({("user", name), ("client-id", client)}) for name in users for client in clients)
    yield from (frozenset({("user", name)}) for name in users)
    yield from (frozenset({("client-id", client)}) for client in clients)
