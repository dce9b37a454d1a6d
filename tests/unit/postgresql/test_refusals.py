"""What a source of changes refuses before it asks a server, and where it cannot run."""

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import pytest

pytest.importorskip("psycopg", reason="needs headrace[sql]")

from headrace import Pipeline
from headrace.connectors.postgresql.snapshot import Followed
from headrace.connectors.postgresql.types import PgColumn, PgTable, PgType
from headrace.connectors.postgresql.visible import Moment, Visible
from headrace.delta import DeltaSink
from headrace.enumerator.checkpoint import Checkpoint
from headrace.enumerator.errors import ProtocolViolationError, StateError, UsageError
from headrace.enumerator.resumed import selected
from headrace.enumerator.source import Stage
from headrace.postgresql import ChangesSource
from headrace.runners.spark.split_state import ReadingFormat
from headrace.sinks import Changes, FunctionSink
from headrace.sources import Hybrid
from headrace.spark import read_source
from headrace.sql import SqlSink, UpsertSink
from headrace.testing import MemoryLog, MemorySource

URL = "postgresql://reader:not-a-secret@localhost/shop"


def source_of(**options: Any) -> ChangesSource:
    given: dict[str, Any] = {"tables": ["orders"], "publication": "orders", "slot": "headrace_orders"}
    return ChangesSource(URL, **{**given, **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tables": "orders"}, "tables must be a list of names, not 'orders'"),
        ({"tables": []}, "tables must name one table at least"),
        ({"tables": ["a.b.c"]}, "'a.b.c' does not name a table"),
        ({"slot": "orders"}, "'orders' cannot be our slot: the name must start with headrace_"),
        ({"snapshot": "all"}, "snapshot is 'initial', 'never' or 'only', not 'all'"),
        ({"seam": "none"}, "seam is 'exact' or 'overlapping', not 'none'"),
        ({"chunk_rows": 0}, "chunk_rows must be a whole number from 1, not 0"),
        ({"max_transaction_bytes": True}, "max_transaction_bytes must be a whole number from 1, not True"),
        ({"out_of_range": "skip"}, "out_of_range is 'error' or 'null', not 'skip'"),
        ({"metadata": ["lsn"]}, "metadata is some of _op, _lsn, .*, and not 'lsn'"),
    ],
)
def test_an_argument_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        source_of(**options)


@pytest.mark.parametrize(
    ("where", "read"),
    [
        ("a frame of Spark", lambda source: read_source(cast("Any", None), source)),
        ("a hybrid source", lambda source: Hybrid(source, then=MemorySource(MemoryLog()))),
        ("a hybrid source", lambda source: Hybrid(MemorySource(MemoryLog(), bounded=True), then=source)),
    ],
    ids=["a frame", "first", "last"],
)
def test_where_readers_report_to_no_discovery_it_is_refused(where: str, read: Any) -> None:
    said = f"source 'postgresql-changes' cannot be read by {where} yet: read it by `headrace run`, in one process"
    with pytest.raises(UsageError, match=said):
        read(source_of())


@pytest.mark.parametrize("sink", [FunctionSink(print), UpsertSink("sqlite:///copy.db", "orders", ("id",), "_op")])
def test_a_sink_that_keeps_what_failed_attempts_have_written_needs_all_changes_again(sink: Any) -> None:
    with pytest.raises(UsageError, match=r"keep rows that were deleted before .*: give ChangesSource seam='overlapping'"):
        Pipeline(source_of(), sink)
    Pipeline(source_of(seam="overlapping"), sink)
    Pipeline(source_of(snapshot="never"), sink)
    Pipeline(source_of(), SqlSink(URL, "orders"))


INTEGER = PgType(23, "integer", "base")


def followed(identity: str, in_log: str, key: Sequence[str] = ("id",)) -> Followed:
    """A table of `id` and `email`; the log has the columns `in_log` of its old rows."""
    columns = tuple(PgColumn(name, INTEGER, in_key=name in in_log.split()) for name in ("id", "email", "v"))
    return Followed(PgTable(1, "public", "t", columns, identity, tuple(key)), None, False, Moment(0, Visible(3, 3, ())))  # type: ignore[arg-type]


EVERY = "id email v"


@pytest.mark.parametrize(("table", "key", "said"), [
    (followed("default", "id"), "id", None), (followed("index", "email"), "email", None), (followed("full", EVERY), "id", None),
    (followed("default", "id"), "_table id", None), (followed("default", "id"), "email _lsn", None),
    (followed("default", "id email", ("id", "email")), "id", None),
    (replace(followed("index", "email"), has_old_rows=False), "id", None),
    (followed("index", "email"), "id", "is id, and .* public.t are by email: an update of id would .* IDENTITY DEFAULT$"),
    (followed("default", "id"), "email", "are by id: an update of email would .* Key the sink by id, .* USING INDEX"),
    (followed("full", EVERY), "email", "are by id: an update of email would"),
    (followed("full", EVERY), "id email", "is id, email, and .* are by id: an update of email would"),
    (followed("full", EVERY, ()), "id", "are by no key: .* Give the table a primary key, or run"),
])  # fmt: skip
def test_a_sinks_key_that_updates_could_change_unseen_is_refused(table: Followed, key: str, said: str | None) -> None:
    """The copy kept the old row, silently."""
    source = source_of(seam="overlapping")
    source._followed = (table,)
    for sink in (UpsertSink(URL, "copy", tuple(key.split())), DeltaSink("/copy", changes=Changes(tuple(key.split())))):
        keyed = Pipeline(source, sink).source
        with nullcontext() if said is None else pytest.raises(UsageError, match=said):
            assert keyed.schema.names == ["_op", "_lsn", "id", "email", "v"]
        assert Pipeline(source, sink, transform=print).source is source
    assert "email" in source.schema.names


@pytest.mark.parametrize(("had", "has"), [*itertools.permutations(("initial", "never", "only"), 2)])
def test_a_query_of_another_kind_of_snapshot_does_not_continue(had: str, has: str) -> None:
    kept, wanted = (ReadingFormat(source_of(snapshot=kind).source_of(0, None)) for kind in (had, has))
    with pytest.raises(
        StateError, match=f"of a 'postgresql-changes-{had}' source and cannot restore a 'postgresql-changes-{has}'"
    ):
        wanted.from_json(kept.initial_mark())


@pytest.mark.parametrize("now", ["only", "never"])
def test_a_checkpoint_in_a_snapshot_is_not_continued_with_another_kind(now: str) -> None:
    """Regression: its stage was taken for one that others were taken away behind, and the rest of the rows were all."""
    stage = Stage(0, "snapshot", None, in_pieces=True, is_found=True, needs_ends=True)
    source = source_of(snapshot=now)
    positions: Checkpoint[Any] = selected(source, Checkpoint(1, (), exhausted=False, stage=stage))
    assert not positions.exhausted
    with pytest.raises(StateError, match=f"of a job with snapshot='initial', and its source has snapshot='{now}' now"):
        source.create_discovery().at(positions.stage)


def test_a_source_of_one_stage_is_looked_at_without_it_and_no_other_is() -> None:
    """Regression: as one of a `Hybrid` it failed at each restart."""
    assert source_of(snapshot="only").create_discovery().later({}).complete
    with pytest.raises(ProtocolViolationError, match="continues in a stage"):
        source_of().create_discovery().later({})
