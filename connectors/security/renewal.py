"""When a token is renewed, and the tokens that a process keeps: of each provider one, for all of its connections."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.enumerator.errors import AuthenticationError, RetriableError

log = logging.getLogger(__name__)

_AGAIN_S = 10.0
"""After a renewal that has failed, while the previous token is good: as the Java client waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewal:
    """The Java client's `sasl.login.refresh.*` (KIP-255), with its defaults.

    A token is renewed after `window_factor` of its lifetime, and up to `window_jitter` of it later, so that not all processes
    come at once; no less than `buffer_s` before its end, and no sooner than `min_period_s`. These two are left out of account
    where the lifetime is shorter than both.
    """

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_s: float = 60.0
    buffer_s: float = 300.0

    def after_s(self, lifetime_s: float, chance: float) -> float:
        """Seconds from the token's beginning to its renewal. `chance` is drawn from 0 to 1."""
        planned = lifetime_s * (self.window_factor + self.window_jitter * chance)
        if lifetime_s <= self.buffer_s + self.min_period_s:
            return planned
        return max(self.min_period_s, min(planned, lifetime_s - self.buffer_s))


class _Token(NamedTuple):
    """Times are `time.monotonic`'s."""

    text: str
    renewed_from: float
    ends: float


class KeptTokens:
    """Tokens by who provides them. Thread-safe; of each provider one is asked for at a time."""

    def __init__(self) -> None:
        """None yet."""
        self.start_afresh()

    def start_afresh(self) -> None:
        """In a forked child: a thread of the parent may have held a lock."""
        self._lock = threading.Lock()
        self._asking: defaultdict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._tokens: dict[Hashable, _Token] = {}

    def get(self, provider: Hashable, renewal: Renewal, ask: Callable[[], tuple[str, float]]) -> str:
        """The token, asked for where there is none or it is to be renewed. `ask` gives the token and its lifetime in seconds.

        Where a renewal fails the previous token is given as long as it is good, with a warning. Raises what `ask` raises.
        """
        with self._lock:
            asking = self._asking[provider]
        with asking:
            held, started_at = self._tokens.get(provider), time.monotonic()
            if held is not None and started_at < held.renewed_from:
                return held.text
            try:
                text, lifetime_s = ask()
            except (RetriableError, AuthenticationError) as error:
                now = time.monotonic()
                if held is None or now >= held.ends:
                    raise
                log.warning("a token was not renewed, and the previous one is used for %.0f s more: %s", held.ends - now, error)
                self._tokens[provider] = held._replace(renewed_from=min(now + _AGAIN_S, held.ends))
                return held.text
            after_s = renewal.after_s(lifetime_s, random.random())  # noqa: S311 - no secret
            self._tokens[provider] = _Token(text, started_at + after_s, started_at + lifetime_s)
            return text

    def refused(self, text: str) -> None:
        """A broker does not take this token, whatever its lifetime: it is not handed out again."""
        with self._lock:
            for provider in [each for each, held in list(self._tokens.items()) if held.text == text]:
                self._tokens.pop(provider, None)


kept: KeptTokens = KeptTokens()
os.register_at_fork(after_in_child=kept.start_afresh)
