"""Incremental fetch sessions (KIP-227): the broker remembers what a client fetches, and answers with what has changed."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.testing.fake_kafka.codes import ErrorCode, RefusedError

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_NO_ID = 0
_MOST_EPOCH = 0x7FFFFFFF


class WantedKey(NamedTuple):
    """A partition as a client names it: by the topic's id from version 13 on, by its name before."""

    topic: str
    topic_id: uuid.UUID | None
    partition: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client wants of one partition."""

    offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int


@dataclass(slots=True)
class _Remembered:
    wanted: Wanted
    high_watermark: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class KnownSession:
    """One session; `epoch` is what the client's next request must have. The first answer is full."""

    id: int
    used_ms: int
    epoch: int = 1
    partitions: dict[WantedKey, _Remembered] = field(default_factory=dict)

    def want(self, key: WantedKey, wanted: Wanted) -> None:
        known = self.partitions.get(key)
        if known is None:
            self.partitions[key] = _Remembered(wanted)
        else:
            known.wanted = wanted

    def has_news(self, key: WantedKey, high_watermark: int, log_start_offset: int) -> bool:
        """Whether a partition without records and errors belongs into an incremental answer."""
        known = self.partitions[key]
        return (known.high_watermark, known.log_start_offset) != (high_watermark, log_start_offset)

    def reported(self, key: WantedKey, high_watermark: int, log_start_offset: int) -> None:
        """Remember the answer to the client; it moves to the end, so that every partition gets its turn."""
        known = self.partitions.pop(key)
        known.high_watermark, known.log_start_offset = high_watermark, log_start_offset
        self.partitions[key] = known


class FetchSessions:
    """A broker's sessions; the one unused for longest gives way when there are too many."""

    def __init__(self) -> None:
        self._sessions: dict[int, KnownSession] = {}
        self._random = random.Random(0)  # noqa: S311  ids need to be different, not secret

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int, epoch: int, now_ms: int) -> KnownSession:
        """The session that an incremental request continues with. Raises error 70 or 71."""
        session = self._sessions.get(session_id)
        if session is None:
            raise RefusedError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise RefusedError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.used_ms, session.epoch = now_ms, 1 if epoch == _MOST_EPOCH else epoch + 1
        return session

    def create(self, slots: int, now_ms: int) -> KnownSession | None:
        """A new session; None without slots, which clients must take as well."""
        if slots < 1:
            return None
        while len(self._sessions) >= slots:
            del self._sessions[min(self._sessions.values(), key=lambda session: session.used_ms).id]
        number = _NO_ID
        while number == _NO_ID or number in self._sessions:
            number = self._random.randrange(1, _MOST_EPOCH)
        self._sessions[number] = KnownSession(number, now_ms)
        return self._sessions[number]

    def close(self, session_id: int) -> None:
        """Harmless for one that there is not."""
        self._sessions.pop(session_id, None)
