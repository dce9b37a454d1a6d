"""MySQL's XA RECOVER, where it differs from MariaDB's. No MySQL is where the tests run: its answers are made here."""

from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

import pymysql
from sqlalchemy.exc import OperationalError

from headrace.connectors.sql.mysql import MySql
from headrace.enumerator.errors import AuthenticationError

PREFIX = "headrace.0a1b2c3d.orders."
OURS = (b"headrace.0a1b2c3d.orders", b"7.0.0.00c0ffee")


class MySqlServer:
    """A connection to MySQL 8, as far as XA RECOVER: names in hexadecimal digits only if that is asked for."""

    class dialect:  # noqa: N801 - SQLAlchemy's name
        is_mariadb = False

    def __init__(self, *prepared: tuple[int, bytes, bytes], may_look: bool = True) -> None:
        self.prepared, self.may_look = prepared, may_look

    def exec_driver_sql(self, statement: str) -> Any:
        if not self.may_look:
            said = pymysql.OperationalError(1401, "XAER_RMERR: Fatal error occurred in the transaction branch")
            raise OperationalError(statement, None, said)
        # Its column is text in UTF-8, whatever is in it: so PyMySQL decodes it.
        show = {
            "XA RECOVER CONVERT XID": lambda data: f"0x{data.hex().upper()}",
            "XA RECOVER": lambda data: data.decode("utf-8"),
        }[statement]
        self._rows = [(form, len(job), len(branch), show(job + branch)) for form, job, branch in self.prepared]
        return self

    def fetchall(self) -> list[tuple[int, int, int, str]]:
        return self._rows


def prepared(*names: tuple[int, bytes, bytes]) -> set[str]:
    return MySql().prepared(MySqlServer(*names), PREFIX)  # type: ignore[arg-type] # as much of a connection as it takes


def test_another_applications_binary_name_does_not_hide_ours():
    """findings: Sinks 24. The driver could not decode the answer, and every recovery failed."""
    assert prepared((1, b"\xff\x00\xfe", b"b"), (7, b"x", b""), (1, *OURS)) == {"headrace.0a1b2c3d.orders.7.0.0.00c0ffee"}


@pytest.mark.parametrize(
    "name",
    [
        (2, *OURS),  # another format
        (1, b"headrace.0a1b2c3d", b"orders.7.0.0.00c0ffee"),  # the same letters in other parts
        (1, OURS[0], b"7.0.0.\xff"),
        (1, OURS[0], b"7.0.0.00c0ffee.more"),
        (1, OURS[0], b"'; DROP TABLE orders; --"),
    ],
)
def test_another_applications_transaction_is_not_taken_for_ours(name):
    assert prepared(name) == set()


def test_a_user_who_may_not_look_is_reported_what_to_grant():
    server: Any = MySqlServer(may_look=False)
    with pytest.raises(AuthenticationError, match="GRANT XA_RECOVER_ADMIN"):
        MySql().prepared(server, PREFIX)
