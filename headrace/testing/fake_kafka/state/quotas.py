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


_WINDOW_MS = 1000  # what may be taken at once


@dataclass(slots=True)
class Quotas:
    """The quotas that are set, and what clients have used of them."""

    values: dict[Entity, dict[str, float]] = field(default_factory=dict)
    _owed_until_ms: dict[tuple[str, str, str], float] = field(default_factory=dict)

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
        found = (self.values.get(entity, {}).get(key) for entity in _by_precedence(user, client_id))
        return next((rate for rate in found if rate is not None), None)

    def throttle_ms(self, key: str, user: str, client_id: str, size: int, now_ms: int) -> int:
        """Note `size` bytes, and say how long their client is to wait until its rate is back within its quota."""
        rate = self.rate(key, user, client_id)
        if rate is None or not size:
            return 0
        client = (key, user, client_id)
        self._owed_until_ms[client] = max(self._owed_until_ms.get(client, 0.0), float(now_ms)) + size * 1000 / rate
        return max(0, round(self._owed_until_ms[client] - now_ms - _WINDOW_MS))


def _by_precedence(user: str, client_id: str) -> Iterable[Entity]:
    users: tuple[str | None, ...] = (user, None)
    clients: tuple[str | None, ...] = (client_id, None)
    yield from (frozenset({("user", name), ("client-id", client)}) for name in users for client in clients)
    yield from (frozenset({("user", name)}) for name in users)
    yield from (frozenset({("client-id", client)}) for client in clients)
