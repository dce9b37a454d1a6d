"""From a request's bytes to an answer's: the handlers, the script of faults, and the waiting. Shared by all connections.

One condition guards the cluster's whole state; a thread that waits for something to change (a Fetch without data, a
JoinGroup) waits on it in its connection's own thread, as a real broker serves one request of a connection at a time.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.testing.fake_kafka import faults as actions
from headrace.testing.fake_kafka.api import APIS
from headrace.testing.fake_kafka.api.api_versions import unsupported
from headrace.testing.fake_kafka.calls import Api, Call, Later, Peer, Refusal
from headrace.testing.fake_kafka.codes import RefusedError
from headrace.testing.fake_kafka.protocol import Header, Message, decode_request, encode_response, parse_header
from headrace.testing.fake_kafka.state.brokers import BrokerState
from headrace.testing.fake_kafka.state.cluster import ClusterState

_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 17, 18, 36
_UNAUTHENTICATED = frozenset({_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE})
_CHANGE_NOTHING = frozenset({1, 2, 3, 9, 10, 15, 16, _API_VERSIONS, 23, 32, 48, 60, 61, 65, 66})
_SHORTEST_WAIT_S = 0.001


class HangUpError(Exception):
    """The connection ends here: bytes that are not request, a version that was not offered, or a fault."""


class Lifetime(Protocol):
    """One run of a broker, from its start to its stop."""

    @property
    def is_over(self) -> bool:
        """The process that waits gives up then."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What goes back to a client. After the first half of `data` each of `between` is called; then comes the rest."""

    data: bytes | bytearray
    between: tuple[Callable[[], object], ...] = ()
    mute_ms: int = 0


class Dispatcher:
    """Answers requests for the brokers of one cluster. Called by every connection's thread."""

    def __init__(self, state: ClusterState, script: actions.Script) -> None:
        """`changed` guards both."""
        self.state = state
        self.script = script
        self.changed: threading.Condition = threading.Condition(threading.RLock())

    def answer(self, frame: memoryview, peer: Peer, broker: BrokerState, lifetime: Lifetime) -> Outgoing | None:
        """Serve one request, waiting if need be; None where no answer is due. Raises HangUpError."""
        header, api = _recognise(frame, peer)
        if api is None:
            return Outgoing(encode_response(unsupported(), 0, header.correlation_id))
        self._refuse_expired(api, peer)
        try:
            request = decode_request(header, frame)
        except (ValueError, IndexError, struct.error, TypeError) as error:
            raise HangUpError(f"not a {api.name} request") from error
        call = Call(self.state, broker, peer, header, request)
        with self.changed:
            self.state.tick()
            faults = self.script.choose(call)
        self._suffer_before(faults, call, lifetime)
        response = self._handle(api, call, lifetime)
        if _find(faults, actions.Repeat):
            response = self._handle(api, call, lifetime)
        return self._deliver(response, faults, call)

    # --- what happens to a request --------------------------------------------------------------------------------------

    def _suffer_before(self, faults: list[actions.Fault], call: Call, lifetime: Lifetime) -> None:
        for fault in faults:
            match fault.action:
                case actions.Refuse(code, topic, partition):
                    call.refusals.append(Refusal(code, topic, partition, fault.count))
                case actions.Delay(seconds):
                    fault.count()
                    self.pause(seconds, lifetime)
                case actions.Before():
                    fault.happen()
                case actions.CutBefore():
                    fault.count()
                    raise HangUpError("a scripted cut before the request took effect")

    def _refuse_expired(self, api: Api, peer: Peer) -> None:
        """Raise HangUpError for what comes after the end of a SASL session, but to authenticate again (KIP-368)."""
        is_over = peer.session_ends_ms is not None and self.state.clock.now_ms() > peer.session_ends_ms
        if is_over and api.key != _SASL_HANDSHAKE and not (api.key == _SASL_AUTHENTICATE and peer.exchange is not None):
            raise HangUpError("the SASL session has ended")

    def pause(self, seconds: float, lifetime: Lifetime) -> None:
        end = time.monotonic() + seconds
        with self.changed:
            while not lifetime.is_over and time.monotonic() < end:
                self.changed.wait(max(end - time.monotonic(), _SHORTEST_WAIT_S))

    def _handle(self, api: Api, call: Call, lifetime: Lifetime) -> Message | None:
        with self.changed:
            try:
                found = api.handle(call)
            except RefusedError as error:
                found = api.response(error_code=error.code)
            if api.key not in _CHANGE_NOTHING:
                self.changed.notify_all()
            return self._await(found, lifetime) if isinstance(found, Later) else found

    def _await(self, later: Later, lifetime: Lifetime) -> Message:
        timeout = None if later.wait_ms is None else time.monotonic() + later.wait_ms / 1000
        while True:
            if self.state.tick():
                self.changed.notify_all()
            is_last = timeout is not None and time.monotonic() >= timeout
            response = later.again(is_last)
            if response is not None:
                return response
            if lifetime.is_over:
                raise HangUpError("the broker stops")
            self.changed.wait(self._until(timeout))

    def _until(self, timeout: float | None) -> float | None:
        due_ms = self.state.due_ms()
        waits = [] if timeout is None else [timeout - time.monotonic()]
        if due_ms is not None:
            waits.append((due_ms - self.state.clock.now_ms()) / 1000)
        return max(min(waits), _SHORTEST_WAIT_S) if waits else None

    # --- what happens to an answer --------------------------------------------------------------------------------------

    def _deliver(self, response: Message | None, faults: list[actions.Fault], call: Call) -> Outgoing | None:
        for fault in _find(faults, actions.Repeat):
            fault.count()
        for fault in _find(faults, actions.CutAfter):
            fault.count()
            raise HangUpError("a scripted cut after the request took effect")
        lost = _find(faults, actions.LoseAnswer)
        for fault in lost:
            fault.count()
        if response is None or lost:
            return None
        for fault in _find(faults, actions.Rewrite):
            assert isinstance(fault.action, actions.Rewrite)
            fault.action.change(response)
            fault.count()
        for fault in _find(faults, actions.Throttle):
            assert isinstance(fault.action, actions.Throttle)
            response.throttle_time_ms = fault.action.milliseconds
            fault.count()
        data = encode_response(response, call.version, call.header.correlation_id)
        between = tuple(fault.happen for fault in _find(faults, actions.Between))
        return Outgoing(data, between, getattr(response, "throttle_time_ms", 0))


def _recognise(frame: memoryview, peer: Peer) -> tuple[Header, Api | None]:
    """The header and the API; None for a version of ApiVersions that the broker lacks, which it answers all the same."""
    try:
        header = parse_header(frame)
    except (struct.error, UnicodeDecodeError) as error:
        raise HangUpError("not a request") from error
    api = APIS.get(header.key)
    if api is None or (not peer.is_authenticated and api.key not in _UNAUTHENTICATED):
        raise HangUpError(f"API key {header.key} is not served here")
    if api.oldest <= header.version <= api.newest:
        return header, api
    if api.key == _API_VERSIONS:
        return header, None
    raise HangUpError(f"version {header.version} of {api.name} was not offered")


def _find(faults: list[actions.Fault], kind: type) -> list[actions.Fault]:
    return [fault for fault in faults if isinstance(fault.action, kind)]
