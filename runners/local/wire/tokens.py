"""The token of a coordinator's server: every call brings it, or is refused before anything else of it is looked at."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable
from typing import Any

import grpc

__all__ = ["TokenCheck", "token_metadata"]

log = logging.getLogger(__name__)

_KEY = "authorization"
_SCHEME = "Bearer "


def token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """What a call brings."""
    return () if token is None else ((_KEY, f"{_SCHEME}{token}"),)


class TokenCheck(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without the token, of any method, also of one that there is not. Called by gRPC's threads."""

    def __init__(self, token: str) -> None:
        """For one server."""
        self._wanted = f"{_SCHEME}{token}".encode()
        self._told = False
        # A stream's handler, for calls of every kind: one of a single message would hold a thread until that comes.
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:  # noqa: ANN401 - gRPC's
        """The method's handler, or one that refuses."""
        given = [value for key, value in handler_call_details.invocation_metadata if key == _KEY]
        if len(given) == 1 and hmac.compare_digest(given[0].encode(), self._wanted):
            return continuation(handler_call_details)
        return self._refusal

    def _refuse(self, _: Iterable[bytes], context: grpc.ServicerContext) -> None:
        if not self._told:
            self._told = True
            log.warning("%s called without this run's token, and is refused; later ones are not reported", context.peer())
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "this run's token is missing or wrong")
