"""What a user writes: the address of a database, and the names of its tables."""

import pytest

pytest.importorskip("psycopg", reason="needs headrace[sql]")

import psycopg

from headrace.connectors.postgresql.catalog import PgRelation, TablePattern, followed
from headrace.connectors.postgresql.connection import SESSION, connect, parameters, shown, translated
from headrace.enumerator.errors import AuthenticationError, RetriableError, UnclassifiedError, UsageError

OPEN = [f"postgresql://u:{password}@h/d" for password in ("p@s3cret", "1/s3cret", "s3cret/p", "1@2/s3cret")]
SECRETS = "postgresql://u:s3cret@h:1/d?sslpassword=s3cret&sslmode=require"


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        (SECRETS, "postgresql://u@h:1/d"),
        ("postgresql+psycopg://u:p%40w@h/d", "postgresql://u@h/d"),
        ("postgres://a:1,b:2/d?target_session_attrs=read-write", "postgresql://a:1,b:2/d"),
        ("postgresql://a,b:2/d", "postgresql://a,b:2/d"),
        ("postgresql:///d?host=/tmp", "postgresql:///tmp/d"),
        ("postgresql://u@[::1]:5/d", "postgresql://u@[::1]:5/d"),
        ("postgresql:///?service=s", "postgresql:///"),
    ],
)
def test_an_address_of_libpq_or_of_sqlalchemy_is_shown_without_secrets(url, as_shown):
    assert shown(url) == as_shown


def test_a_connection_has_our_settings_last_and_the_users_parameters():
    given = parameters("postgresql+psycopg://u:p%40w@h/d?options=-c%20geqo%3Doff&connect_timeout=3&client_encoding=latin1")
    assert (given["user"], given["password"], given["connect_timeout"]) == ("u", "p@w", "3")
    assert given["client_encoding"] == "UTF8"
    assert given["options"].startswith("-c geqo=off -c ")
    assert all(f"-c {name}={value}" in given["options"] for name, value in SESSION.items())


@pytest.mark.parametrize(
    "url", ["mysql://h/d", "postgresql://h/d?s3cret=1", "s3cret", "", "postgresql://h/d?user=s3cret%FF", *OPEN]
)
def test_an_address_that_is_none_is_not_shown(url):
    with pytest.raises(UsageError, match="must look like postgresql") as caught:
        parameters(url)
    assert "s3cret" not in str(caught.value)


def test_an_address_names_a_database():
    with pytest.raises(UsageError, match=r"postgresql://u@h/ must name a database"):
        parameters("postgresql://u:s3cret@h")


def test_errors_are_of_our_tree_and_show_no_secret():
    for state, kind in {"42501": AuthenticationError, "57P01": RetriableError, "XX000": UnclassifiedError}.items():
        error = type("Error", (psycopg.Error,), {"sqlstate": state})("no s3cret")
        with pytest.raises(kind, match=r"^reading \(postgresql://u@h:1/d\): no \*\*\*$"), translated(SECRETS, "reading"):
            raise error
    with pytest.raises(RetriableError, match="connecting"):
        connect("postgresql://127.0.0.1:1/d")
    with pytest.raises(UnclassifiedError, match="placeholder"), translated(SECRETS, "reading"):  # of the client, and for ever
        raise psycopg.ProgrammingError("no such placeholder")


@pytest.mark.parametrize("parameters_of_libpq", [
    "sslmode=requre", "target_session_attrs=primry", "connect_timeout=abc", "keepalives_idle=abc", "port=99999", "port=1,2",
    "sslnegotiation=foo", "channel_binding=foo", "sslmode=prefer&sslrootcert=system", "service=no-such", "require_auth=foo",
])  # fmt: skip
def test_a_typo_in_the_addresss_parameters_is_not_an_outage(parameters_of_libpq):
    with pytest.raises(UsageError, match=r"^connecting "):
        connect(f"postgresql://127.0.0.1:1/d?{parameters_of_libpq}")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("t", [("public", "t")], [("s", "t"), ("public", "tt"), ("public", "T")]),
        ("s.t", [("s", "t")], [("public", "t")]),
        ("order_*", [("public", "order_"), ("public", "order_1")], [("public", "orders")]),
        ("*.t?", [("s", "t1"), ("public", "tt")], [("s", "t"), ("s", "t12")]),
        ("a[b]+$", [("public", "a[b]+$")], [("public", "ab")]),
        ('"a.b"."c*"', [("a.b", "c*")], [("a.b", "c1")]),
        ('s."say ""x"""', [("s", 'say "x"')], [("s", "say x")]),
        ("My Table", [("public", "My Table")], [("public", "my table")]),
    ],
)
def test_a_pattern_names_tables(pattern, matching, others):
    parsed = TablePattern.parse(pattern)
    assert all(parsed.matches(*name) for name in matching)
    assert not any(parsed.matches(*name) for name in others)
    assert parsed.is_literal == (pattern not in ("order_*", "*.t?"))


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", '"a', 'a"b', '""', "d.s.t"])
def test_what_is_no_name_of_a_table_is_refused(text):
    with pytest.raises(UsageError, match="does not name a table"):
        TablePattern.parse(text)


def relation(oid: int, kind: str = "r", persistence: str = "p", root: int | None = None) -> PgRelation:
    return PgRelation(oid, "public", f"t{oid}", kind, persistence, root, 0.0, True, (), False)


def test_followed_are_tables_of_the_log_and_of_a_partitioned_one_the_root():
    given = [
        relation(1, "p"),
        relation(2, root=1),
        relation(3, root=9),
        relation(4, "v"),
        relation(5, persistence="u"),
        relation(6),
    ]
    assert [each.oid for each in followed(given)] == [1, 3, 6]
