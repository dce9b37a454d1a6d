"""Receive buffers, reused once no view of them is left. Sans-I/O."""

from __future__ import annotations

_SMALLEST_POOLED = 64 * 1024
_BUFFER_STEP = 1024 * 1024
_MOST_SLACK = 8  # times what is needed: a small answer does not hold on to a large buffer
_IDLE_BUFFERS = 8  # as many as a fetcher's default budget fills: a new one costs a page fault for every 4 KiB


class BufferPool:
    """Receive buffers that are reused once no view of them is left. Not thread-safe: a connection has its own.

    Python itself keeps count: a bytearray with a live view refuses to change its size. So a view (or an Arrow buffer made from
    one) may be kept indefinitely, and nothing needs to be given back by hand.
    """

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """A view of exactly `size` bytes, of a buffer of which no other view exists."""
        if size < _SMALLEST_POOLED:
            return memoryview(bytearray(size))
        idle = sorted((buffer for buffer in self._buffers if _has_no_view(buffer)), key=len)
        for buffer in idle:
            if size <= len(buffer) <= _MOST_SLACK * size:
                return memoryview(buffer)[:size]
        dropped = {id(buffer) for buffer in idle[: -_IDLE_BUFFERS + 1]}
        self._buffers = [buffer for buffer in self._buffers if id(buffer) not in dropped]
        self._buffers.append(bytearray(-(-size // _BUFFER_STEP) * _BUFFER_STEP))
        return memoryview(self._buffers[-1])[:size]


def _has_no_view(buffer: bytearray) -> bool:
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
