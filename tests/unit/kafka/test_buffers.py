"""Receive buffers: which are used again, and how many are kept."""

import pytest

from headrace.connectors.kafka.client.wire.buffers import BufferPool


def test_a_buffer_is_used_again_once_no_process_looks_at_it():
    pool = BufferPool()
    first = pool.take(100_000)
    buffer = id(first.obj)
    part = first[10:20]
    first.release()
    assert id(pool.take(100_000).obj) != buffer  # `part` still looks at it
    del part
    assert buffer in {id(pool.take(size).obj) for size in (100_001, 1 << 20)}


def test_a_small_answer_does_not_hold_on_to_a_large_buffer():
    pool = BufferPool()
    large = len(pool.take(50 << 20).obj)
    assert len(pool.take(100_000).obj) < large


def test_a_view_keeps_its_bytes_however_much_comes_after():
    pool = BufferPool()
    kept = pool.take(100_000)
    kept[:3] = b"abc"
    for _ in range(50):
        pool.take(100_000)[:3] = b"xyz"
    assert bytes(kept[:3]) == b"abc"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1])
def test_a_view_has_the_size_asked_for(size):
    assert len(BufferPool().take(size)) == size


def test_idle_buffers_are_few():
    pool = BufferPool()
    views = [pool.take(100_000) for _ in range(50)]
    del views
    pool.take(10 << 20)
    assert len(pool._buffers) <= 8
