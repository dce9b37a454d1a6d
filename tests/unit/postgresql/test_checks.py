"""What is judged of a server's state. That the SQL repairs it, real servers show (tests/integration/postgresql)."""

import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="needs headrace[sql]")

from headrace.connectors.postgresql.catalog import PgPublication, PgRelation, PublishedTable, Server, Slot, TablePattern
from headrace.connectors.postgresql.checks import Facts, Lack, PgRole, WantedSource, find_problems
from headrace.connectors.postgresql.types import PgColumn, PgTable, PgType

INTEGER = PgType(23, "integer", "base")
T = PgRelation(1, "public", "t", "r", "p", None, 0.0, True, (), False)
TABLE = PgTable(1, "public", "t", (PgColumn("id", INTEGER, in_key=True), PgColumn("n", INTEGER)), "default", ("id",))
NO_IDENTITY = replace(TABLE, columns=(PgColumn("id", INTEGER),))
BY_NAME = replace(TABLE, identity="index", columns=(PgColumn("id", INTEGER), PgColumn("n", INTEGER, in_key=True)))
EVERYTHING = frozenset({"insert", "update", "delete", "truncate"})
PUBLICATION = PgPublication("headrace", "owner", False, True, EVERYTHING, (PublishedTable(1, "public", "t"),))
SLOT = Slot("headrace_a", "pgoutput", "d", None, 0, 0, "reserved", 1, 0, 0, False, False, True, False, None, 0.0)
STANDBY = replace(SLOT, name="standby1", plugin=None, database=None, active_pid=5, failover=False)
SETTINGS = {
    "idle_replication_slot_timeout": "0",
    "max_replication_slots": "10",
    "max_slot_wal_keep_size": "50GB",
    "max_wal_senders": "10",
    "server_encoding": "UTF8",
    "synchronized_standby_slots": "",
    "wal_level": "logical",
}


def facts(**changed: Any) -> Facts:
    """Of a server where nothing is missing, but for what is changed."""
    whole: dict[str, Any] = {
        "wanted": WantedSource((TablePattern.parse("t"),), slot="headrace_a"),
        "server": Server(180004, 1, 1, False, "d"),
        "settings": SETTINGS | changed.pop("settings", {}),
        "role": PgRole("r", True, None),
        "wal_senders": 1,
        "slots": (SLOT,),
        "publication": PUBLICATION,
        "relations": (T,),
        "tables": {1: TABLE},
    }
    return Facts(**whole | changed)


def test_nothing_is_found_where_nothing_is_missing():
    assert find_problems(facts()) == []


@pytest.mark.parametrize(
    ("changed", "level", "subject", "what", "fix"),
    [
        ({"server": Server(120022, 1, 1, False, "d")}, "error", "server", "PostgreSQL 12 is not supported", ""),
        ({"server": Server(180004, 1, 1, True, "d")}, "error", "server", "it is a standby", ""),
        ({"settings": {"server_encoding": "SQL_ASCII"}}, "warning", "server", "SQL_ASCII", ""),
        ({"wal_senders": 10}, "error", "server", "all 10 senders", "max_wal_senders = 14;"),
        (
            {"slots": [replace(SLOT, name=f"s{number}") for number in range(10)]},
            "error", "server", "all 10 replication slots .* not active: s0, s1", "max_replication_slots = 14;",
        ),
        ({"slots": (), "transactions": ["process 7", "process 9"]}, "warning", "server", "open for long: process 7; proc", ""),
        ({"role": PgRole("r", True, "no pg_hba.conf entry")}, "error", "role r", "refused: no pg_hba", ""),
        ({"role": PgRole('r"x', False, "denied")}, "error", 'role r"x', "REPLICATION", 'ALTER ROLE "r""x" REPLICATION;'),
        ({"settings": {"idle_replication_slot_timeout": "1d"}}, "warning", "server", "stopped for 1d", "timeout = 0;"),
        ({"settings": {"max_slot_wal_keep_size": "-1"}}, "warning", "server", "fill the disk", "pg_reload_conf"),
        ({"slots": [replace(SLOT, plugin="wal2json")]}, "error", "slot headrace_a", "one of wal2json, not", ""),
        ({"slots": [replace(SLOT, plugin=None)], "server": Server(160000, 1, 1, False, "d")}, "error", "slot", "a standby", ""),
        ({"slots": [replace(SLOT, database="e")]}, "error", "slot headrace_a", "database e", ""),
        ({"slots": [replace(SLOT, wal_status="lost")]}, "error", "slot headrace_a", "its log was removed", "_drop_"),
        ({"slots": [replace(SLOT, invalidation_reason="idle_timeout")]}, "error", "slot", "idle_timeout", "_drop_"),
        ({"slots": [replace(SLOT, conflicting=True)]}, "error", "slot headrace_a", "conflict", "_drop_"),
        ({"slots": [replace(SLOT, wal_status="unreserved")]}, "error", "slot headrace_a", "run the source now", "-1;"),
        ({"slots": [replace(SLOT, active_pid=7)], "wal_senders": 10}, "warning", "slot", "process 7", ""),
        ({"slots": [replace(SLOT, failover=False), STANDBY], "settings": {"synchronized_standby_slots": "standby1"}},
            "warning", "slot headrace_a", "not kept on standbys", "(FAILOVER);"),
        ({"slots": [SLOT, STANDBY]}, "warning", "server", "no standby", "synchronized_standby_slots = 'standby1';"),
        ({"slots": [SLOT, STANDBY], "server": Server(160004, 1, 1, False, "d")}, "warning", "server", "before Po", ""),
        ({"tables": {1: replace(NO_IDENTITY, identity="nothing")}}, "error", "table", "is NOTHING", "IDENTITY DEFAULT;"),
        ({"tables": {1: replace(NO_IDENTITY, identity="index")}}, "error", "table", "is gone", "IDENTITY DEFAULT;"),
        ({"tables": {1: NO_IDENTITY}}, "error", "table public.t", "deferrable", "IDENTITY FULL;"),
        ({"tables": {1: replace(TABLE, columns=(*TABLE.columns, PgColumn("_lsn", INTEGER)))}},
            "error", "table public.t", "column '_lsn' is named as one that the rows have", ""),
        ({"tables": {1: replace(TABLE, key=(), identity="full")}}, "warning", "table public.t", "no primary key", ""),
        ({"relations": (replace(T, kind="p"), replace(T, oid=2, name="p", root=1)),
          "tables": {1: replace(TABLE, identity="full"), 2: replace(TABLE, oid=2, name="p")}},
            "warning", "table public.t", "do not inherit: public.p", 'ALTER TABLE "public"."p" REPLICA IDENTITY FULL;'),
        ({"tables": {1: BY_NAME}}, "warning", "table public.t", "an index of n: only a sink with", "REPLICA IDENTITY DEFAULT;"),
        ({"relations": (replace(T, kind="p"), replace(T, oid=2, name="p", root=1)),
          "tables": {1: TABLE, 2: replace(BY_NAME, oid=2, name="p")}},
            "error", "table public.p", "do not inherit, lacks id", 'ALTER TABLE "public"."p" REPLICA IDENTITY FULL;'),
        ({"tables": {1: replace(TABLE, identity="full", is_deferrable=True)}}, "warning", "table", "key is deferrable", ""),
        ({"relations": (replace(T, has_policies=True),)}, "error", "table public.t", "policies hide", "BYPASSRLS"),
        ({"relations": (replace(T, may_use_schema=False),)}, "error", "table public.t", "schema", 'USAGE ON SCHEMA "public"'),
        ({"relations": (replace(T, unreadable=("n",)),)}, "error", "table public.t", "select n", 'SELECT ON "public"."t"'),
        (
            {"publication": replace(PUBLICATION, tables=(PublishedTable(1, "public", "t", ("n",)),))},
            "error", "table public.t", "leaves out id of its replica identity", "",
        ),
        ({"publication": replace(PUBLICATION, tables=())}, "error", "table public.t", "does not have it", "ADD TABLE"),
        ({"publication": replace(PUBLICATION, operations=frozenset({"insert", "update"}))},
            "warning", "publication headrace", "does not publish delete, truncate", "(publish = 'insert, update, delete, trun"),
    ],
)  # fmt: skip
def test_each_is_found_alone(changed, level, subject, what, fix):
    (found,) = find_problems(facts(**changed))
    assert found.level == level
    assert found.subject.startswith(subject)
    assert re.search(what, found.what)
    assert bool(found.fix) == bool(fix)
    assert fix in found.fix


def test_only_the_columns_that_are_published_must_be_readable():
    listed = replace(PUBLICATION, tables=(PublishedTable(1, "public", "t", ("id",)),))
    hidden = replace(T, unreadable=("n",))
    assert find_problems(facts(publication=listed, relations=(hidden,))) == []
    (found,) = find_problems(facts(publication=listed, relations=(replace(T, unreadable=("id", "n")),)))
    assert found.fix == 'GRANT SELECT ("id") ON "public"."t" TO "r";'


def test_a_publication_of_inserts_only_needs_no_identity():
    inserts = replace(PUBLICATION, operations=frozenset({"insert"}))
    (found,) = find_problems(facts(publication=inserts, tables={1: NO_IDENTITY}))
    assert found.level == "warning"


def test_errors_come_first_and_a_table_is_published_after_its_identity_is_repaired():
    found = find_problems(facts(publication=None, tables={1: NO_IDENTITY}, settings={"max_slot_wal_keep_size": "-1"}))
    assert [(each.level, each.subject) for each in found] == [
        ("error", "table public.t"),
        ("error", "publication headrace"),
        ("warning", "server"),
    ]
    without = facts(publication=None, wanted=WantedSource())
    assert find_problems(without) == [
        Lack(
            "error",
            "publication headrace",
            "database d has no publication headrace, so the server sends no changes",
            '-- as a superuser\nCREATE PUBLICATION "headrace" FOR ALL TABLES WITH (publish_via_partition_root = true);',
        )
    ]


@pytest.mark.parametrize("persistence", ["u", "t", None], ids=["unlogged", "temporary", "misspelt"])
def test_no_publication_of_all_tables_is_proposed_where_tables_are_named(persistence):
    """Regression: it was where none of them could be published, and took updates of the others away."""
    relations = () if persistence is None else (replace(T, persistence=persistence),)
    table, publication = find_problems(facts(publication=None, relations=relations, tables={}))
    assert table.subject == ("table t" if persistence is None else "table public.t")
    assert (publication.subject, publication.fix) == ("publication headrace", "")
