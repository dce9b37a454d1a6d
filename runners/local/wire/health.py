"""What gRPC's own tools ask of a coordinator's server: grpc.health.v1, and reflection (its first version, v1alpha).

Both answer from the coordinator's memory. No worker is asked, and nothing of the record path passes here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

__all__ = ["ADMINISTRATION_THREADS", "RunHealth"]

ADMINISTRATION_THREADS = 4
"""Threads that the server has for calls of this module, alongside those of the workers."""

_REFLECTIONS = ADMINISTRATION_THREADS // 2


class RunHealth:
    """The serving status of the whole server (the empty name) and of its service. At first NOT_SERVING.

    Forks nothing and starts no thread; made in the coordinator's process, after its worker processes.
    """

    def __init__(self, server: grpc.Server, service: str) -> None:
        """Add both services to a server that is not started yet. `service`: the full name of its own."""
        self._names = (health.OVERALL_HEALTH, service)
        self._is_serving = False
        # Watch holds no thread: as many may look as want to.
        self._health = health.HealthServicer(experimental_non_blocking=True)
        self._show(health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (service, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(names), server)

    @property
    def is_serving(self) -> bool:
        """Whether SERVING is answered. Set by the coordinator's main thread; watchers are notified of a change only."""
        return self._is_serving

    @is_serving.setter
    def is_serving(self, value: bool) -> None:
        if value != self._is_serving:
            self._is_serving = value
            answer = health_pb2.HealthCheckResponse
            self._show(answer.SERVING if value else answer.NOT_SERVING)

    def _show(self, status: int) -> None:
        for name in self._names:
            self._health.set(name, status)


class _Reflection(reflection.ReflectionServicer):  # type: ignore[misc]
    """A stream of it holds a thread as long as its client likes. Too many are refused: workers need theirs."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names)
        self._free = threading.BoundedSemaphore(_REFLECTIONS)

    def ServerReflectionInfo(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802 - gRPC's name
        """Called by gRPC, in one of the server's threads."""
        if not self._free.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_REFLECTIONS} reflection streams are open; try again later")
        try:
            yield from super().ServerReflectionInfo(request_iterator, context)
        finally:
            self._free.release()
