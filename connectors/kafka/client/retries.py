"""The retry policy, that of the Java client: exponential backoff with jitter, up to `default.api.timeout.ms`.

Its default, 60 s, bounds a call and not a job: `OutageError` is retriable, and a caller that can wait retries. Where none
can (`EnduringCluster`), a call rides out an outage of any length, if the cluster has ever answered; a first contact is
bounded. A limit that the user has set holds everywhere: `DeadlineExceededError`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import tenacity

from headrace.connectors.kafka.client.error_codes import ErrorCode
from headrace.connectors.kafka.client.errors import HiddenCoordinatorError, NoCoordinatorError, UnknownTopicError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.topology import Contact
from headrace.enumerator.errors import DeadlineExceededError, OutageError, PeerError, is_retriable

log = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_CALL_S = 60.0
_BUSY_BACKOFF_MS = 20  # Java's TransactionManager.ADD_PARTITIONS_RETRY_BACKOFF_MS
_LEAST_VOUCHED_S = 900.0  # a first contact that another process has vouched for; an outage may start before a process does
_SILENCE_S = 10.0  # what waits longer is reported
_UNKNOWN_TOPIC_GRACE_S = 3.0  # a topic just created is not known to every broker at once
_NO_OUTAGE = (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.LISTENER_NOT_FOUND)

_is_enough: ContextVar[Callable[[], bool] | None] = ContextVar("headrace_is_enough", default=None)


@contextmanager
def giving_up_when(is_enough: Callable[[], bool]) -> Iterator[None]:
    """In this thread, and as long as this lasts, nothing is tried again once it answers True: the last error is raised."""
    token = _is_enough.set(is_enough)
    try:
        yield
    finally:
        _is_enough.reset(token)


class _Streak:
    """How long errors of one kind have come without a break. Whatever comes in between, an unreachable broker too, starts it
    again.
    """

    def __init__(self, longest_s: float, is_one: Callable[[BaseException | None], bool]) -> None:
        self._longest_s, self._is_one = longest_s, is_one
        self._since: float | None = None

    def ends_with(self, error: BaseException | None) -> bool:
        """Whether this error, the last so far, is one of them, and they have come for too long."""
        now = time.monotonic()
        if not self._is_one(error):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since > self._longest_s


class Refusals(_Streak):
    """How long, up to 60 s, a broker has answered what is not an outage: it is there, and a wait may have no end."""

    def __init__(self) -> None:
        super().__init__(_LONGEST_CALL_S, lambda error: getattr(error, "code", None) in _NO_OUTAGE)


class _Fruitless:
    """Answers that a call which rides out outages is not to wait for without end: each kind without a break, for so long.

    its own time, not the call's: one such answer after an outage of hours says nothing. There may have been coordinators
    where that is not known: those are waited for as a cluster is that another process has reached.
    """

    def __init__(self, longest_hidden_s: float) -> None:
        self._kinds: tuple[_Streak, ...] = (
            Refusals(),
            _Streak(_LONGEST_CALL_S, lambda error: isinstance(error, NoCoordinatorError)),
            _Streak(longest_hidden_s, lambda error: isinstance(error, HiddenCoordinatorError)),
        )

    def ends_with(self, error: BaseException | None) -> bool:
        ends = [kind.ends_with(error) for kind in self._kinds]  # every one has to hear of it
        return any(ends)


class Outage:
    """What has waited for more than 10 s: the log says so once, however many wait, and once when the last continues.

    Thread-safe. A `waiter` is any object that represents one who waits.
    """

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """In a forked child: it does not wait for what its parent waits for, and a thread may have held the lock."""
        self._lock = threading.Lock()
        self._since: dict[object, float] = {}
        self._began = 0.0

    def goes_on(self, waiter: object, what: str, since: float, error: BaseException | None, hint: str = "") -> None:
        """It waits since then, by `time.monotonic`, and has failed again. `hint`: why it may be no outage."""
        waited = time.monotonic() - since
        if waited < _SILENCE_S:
            return
        with self._lock:
            is_first = not self._since
            self._since.setdefault(waiter, since)
            self._began = since if is_first else min(self._began, since)
        if is_first:
            log.warning("%s: waiting for %.0f s, and trying on%s. The last error was: %s", what, waited, hint, error)

    def over(self, waiter: object) -> None:
        if self._leave(waiter):
            log.warning("the brokers answer again, after %.0f s", time.monotonic() - self._began)

    def given_up(self, waiter: object) -> None:
        """It waits no more: its caller gets an error."""
        self._leave(waiter)

    def _leave(self, waiter: object) -> bool:
        """Whether it was the last one of those that the log has reported."""
        with self._lock:
            return self._since.pop(waiter, None) is not None and not self._since


class Retries:
    """Runs operations until they raise no retriable error. Thread-safe; after `close` nothing is tried again."""

    def __init__(self, config: ClientConfig, contact: Callable[[], Contact] | None) -> None:
        """`retry.backoff.ms`, `retry.backoff.max.ms` and `default.api.timeout.ms` are taken from the configuration.

        Where the last is not set, a call is tried for 60 s. If `contact` is given, it is asked at each try: once the cluster
        has answered, a call is tried for as long as it takes; while it is vouched for, for `transaction.timeout.ms`, and 15
        minutes at least.
        """
        self._config = config
        self._contact = contact
        self._closed = threading.Event()
        self.outage = Outage()

    def close(self) -> None:
        """Wake every thread that waits between two tries; its operation then fails with the last error."""
        self._closed.set()

    def start_afresh(self) -> None:
        """In a forked child: a thread of the parent may have held the event's lock."""
        self._closed = threading.Event()
        self.outage.start_afresh()

    def run(self, what: str, operation: Callable[[], T]) -> T:
        """See `KafkaCluster.retrying`."""
        started, waiter, fruitless = time.monotonic(), object(), _Fruitless(self._longest_vouched_s())
        unknown = _Streak(_UNKNOWN_TOPIC_GRACE_S, lambda error: isinstance(error, UnknownTopicError))

        def worth_another_try(error: BaseException) -> bool:
            if isinstance(error, OutageError):  # a call within this one has tried for as long as a call may
                return False
            return not unknown.ends_with(error) and is_retriable(error) and not self._is_stopped()

        def tell(state: tenacity.RetryCallState) -> None:
            if self._contact is not None and self._contact() is not Contact.NONE and state.outcome is not None:
                self.outage.goes_on(waiter, what, started, state.outcome.exception(), self._hint())

        def give_up(state: tenacity.RetryCallState) -> T:
            assert state.outcome is not None
            error = state.outcome.exception()
            waited = time.monotonic() - started
            tried = f"{what}: gave up after {state.attempt_number} tries in {waited:.1f} s"
            raise self._kind()(f"{tried}{self._hint()}; the last error was: {error}") from error

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(worth_another_try),
            stop=lambda state: self._is_over(state, fruitless),
            wait=lambda state: self._backoff_s(
                state.attempt_number, None if state.outcome is None else state.outcome.exception()
            ),
            sleep=self._pause,
            before_sleep=tell,
            retry_error_callback=give_up,
        )
        try:
            found = tries(operation)
        except BaseException:
            self.outage.given_up(waiter)
            raise
        self.outage.over(waiter)
        return found

    def _is_stopped(self) -> bool:
        is_enough = _is_enough.get()
        return self._closed.is_set() or (is_enough is not None and is_enough())

    def _is_over(self, state: tenacity.RetryCallState, fruitless: _Fruitless) -> bool:
        limit_ms = self._config.default_api_timeout_ms
        error = None if state.outcome is None else state.outcome.exception()
        is_enough = fruitless.ends_with(error) and limit_ms is None
        longest_s = self._longest_s() if limit_ms is None else limit_ms / 1000
        return is_enough or (longest_s is not None and tenacity.stop_before_delay(longest_s)(state))

    def _longest_s(self) -> float | None:
        """How long a call is tried if the user has set no limit; None: as long as it takes."""
        if self._contact is None:
            return _LONGEST_CALL_S
        match self._contact():
            case Contact.NONE:
                return _LONGEST_CALL_S
            case Contact.VOUCHED:
                return self._longest_vouched_s()
            case Contact.ANSWERED:
                return None

    def _longest_vouched_s(self) -> float:
        return max(_LEAST_VOUCHED_S, self._config.transaction_timeout_ms / 1000)

    def _kind(self) -> type[PeerError]:
        is_limited = self._config.default_api_timeout_ms is not None
        return DeadlineExceededError if is_limited or self._contact is not None else OutageError

    def _hint(self) -> str:
        contact, address = Contact.ANSWERED if self._contact is None else self._contact(), self._config.bootstrap
        match contact:
            case Contact.NONE:
                return f"; this process has not reached the cluster once: is {address} its address, and does it run?"
            case Contact.VOUCHED:
                return (
                    f"; the brokers of {address} have answered the process that started this one, a driver as a rule, and "
                    "never this one: is there a firewall between, or do advertised.listeners name what only that one can reach?"
                )
            case Contact.ANSWERED:
                return ""

    def back_off(self, attempt: int, error: BaseException | None = None) -> None:
        """See `KafkaCluster.back_off`."""
        self._pause(self._backoff_s(attempt, error))

    def _backoff_s(self, attempt: int, error: BaseException | None) -> float:
        """A transaction that is being ended takes milliseconds until its markers are written, so its coordinator is asked
        sooner: each restart and each commit comes upon one.
        """
        is_busy = getattr(error, "code", None) == ErrorCode.CONCURRENT_TRANSACTIONS
        first = min(self._config.retry_backoff_ms, _BUSY_BACKOFF_MS) if is_busy else self._config.retry_backoff_ms
        longest = max(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        milliseconds = min(first * 2 ** min(attempt - 1, 30), longest)
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - as Java's (KIP-580); it is not a secret
        return float(milliseconds / 1000 * jitter)

    def _pause(self, seconds: float) -> None:
        self._closed.wait(seconds)
