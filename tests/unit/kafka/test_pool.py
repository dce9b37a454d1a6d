"""Which connections are lent again, which are closed, and how long a dead broker is left alone."""

import time
from typing import Any

import pytest

from headrace.connectors.kafka.client.errors import ConnectionLostError
from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.kafka.client.wire import pool as pool_module
from headrace.connectors.kafka.client.wire.pool import ConnectionPool


class FakeConnection:
    made = 0
    refusing = False

    def __init__(self, host: str, port: int, config: ClientConfig, throttles: object) -> None:
        type(self).made += 1
        if self.refusing:
            raise ConnectionLostError("refused")
        self.address = f"{host}:{port}"
        self.usable, self.in_flight, self.quiet, self.closed, self.aborted = True, 0, True, False, False
        self.last_used = time.monotonic()

    def is_quiet(self) -> bool:
        return self.quiet

    def abort(self) -> None:
        self.aborted, self.usable = True, False

    def close(self) -> None:
        self.closed, self.usable = True, False


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(FakeConnection, "made", 0)
    monkeypatch.setattr(pool_module, "Connection", FakeConnection)
    return FakeConnection


def lend(pool: ConnectionPool) -> Any:
    return pool.lease(("broker", 9092))


@pytest.fixture
def pool(fake):
    made = ConnectionPool(ClientConfig(bootstrap="unused:1", reconnect_backoff_ms=100, reconnect_backoff_max_ms=200))
    yield made
    made.close()


def test_a_connection_given_back_is_lent_again_but_to_one_at_a_time(pool):
    first = lend(pool)
    pool.give_back(first)
    assert lend(pool) is first
    assert lend(pool) is not first


@pytest.mark.parametrize(("field", "value"), [("usable", False), ("in_flight", 1)])
def test_what_is_broken_or_busy_is_closed_when_given_back(pool, field, value):
    connection = lend(pool)
    setattr(connection, field, value)
    pool.give_back(connection)
    assert connection.closed
    assert lend(pool) is not connection


@pytest.mark.parametrize(("field", "value"), [("usable", False), ("quiet", False), ("last_used", -1e9)])
def test_what_went_bad_while_idle_is_closed_and_not_lent(pool, field, value):
    connection = lend(pool)
    pool.give_back(connection)
    setattr(connection, field, value)
    assert lend(pool) is not connection
    assert connection.closed


def test_another_address_has_other_connections(pool):
    connection = lend(pool)
    pool.give_back(connection)
    assert pool.lease(("other", 9092)) is not connection


def test_a_broker_that_refuses_is_left_alone_for_the_backoff(pool, fake, monkeypatch):
    monkeypatch.setattr(fake, "refusing", True)
    with pytest.raises(ConnectionLostError):
        lend(pool)
    started = time.monotonic()
    with pytest.raises(ConnectionLostError):
        lend(pool)
    assert time.monotonic() - started > 0.09
    monkeypatch.setattr(fake, "refusing", False)
    assert lend(pool).usable


def test_closing_closes_what_is_idle_and_what_comes_back_later(pool):
    idle, lent = lend(pool), lend(pool)
    pool.give_back(idle)
    pool.close()
    assert idle.closed
    assert not lent.closed
    pool.give_back(lent)
    assert lent.closed
    with pytest.raises(ConnectionLostError, match="closed"):
        lend(pool)
