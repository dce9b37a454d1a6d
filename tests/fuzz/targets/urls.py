"""Addresses: of databases, and of bootstrap servers. The first byte states which."""

import re
import warnings

from sqlalchemy.exc import SAWarning

from headrace.connectors.kafka.client.properties import ClientConfig
from headrace.connectors.sql.url import driver_engine, product_of, shown, task_engine
from headrace.enumerator.errors import UsageError
from tests.fuzz.target import Target

_SECRET = "s3cr3t-0f-n0b0dy"


def _check(data: bytes) -> None:
    address = data[1:].decode("utf-8", "replace")
    is_secret = not data[0] & 1 and re.fullmatch(rf"[a-z+]+://u:{_SECRET}@[^@]*", address) is not None
    said = ""
    try:
        if data[0] & 1:
            config = ClientConfig.from_properties({"bootstrap.servers": address})
            assert all(0 < port < 1 << 16 for _, port in config.bootstrap_servers)
            return
        product_of(address)
        said = shown(address)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # SQLAlchemy names parameters that SQLite does not know
            for make in (task_engine, driver_engine):
                make(address, 1.0).dispose()
    except UsageError as error:
        said = str(error)
    assert not is_secret or _SECRET not in said


def _seeds() -> dict[str, bytes]:
    return {
        "postgresql": f"\0postgresql://u:{_SECRET}@h:5432/db?sslmode=require".encode(),
        "driver": f"\0postgresql+psycopg://u:{_SECRET}@h/db?connect_timeout=3".encode(),
        "mariadb": f"\0mariadb+pymysql://u:{_SECRET}@[::1]:3306/db?charset=utf8mb4".encode(),
        "sqlite": b"\0sqlite:////tmp/no-such-folder/db?timeout=3",
        "bootstrap": b"\1PLAINTEXT://h:9092, [::1]:9093,a.b:1",
    }


TARGET = Target(
    "urls", _check, _seeds,
    ("headrace.connectors.sql.url", "headrace.connectors.kafka.client.properties", "sqlalchemy.engine.url"),
    (b"://", b"postgresql", b"sqlite:///", b"mysql", b"@", b"%00", b"?", b"connect_timeout=", b"[::", b":0", b"99999999999"),
)  # fmt: skip
