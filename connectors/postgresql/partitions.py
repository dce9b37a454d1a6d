"""Partitions, whose changes come under their root's name. Each has its own log, as its own definition says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.connectors.postgresql.catalog import PgPartition
from headrace.connectors.postgresql.types import PgTable


def unlogged(partitions: Sequence[PgPartition]) -> str:
    """The names of those whose changes are in no log."""
    return ", ".join(each.full_name for each in partitions if not each.is_logged)


def other_identity(partitions: Sequence[PgPartition], roots: Mapping[int, PgTable]) -> str:
    """Of the first by whose replica identity the log lacks what its root's changes are read by, in words; or empty."""
    for each in partitions:
        root = roots[each.root]
        if each.key and not each.key.issuperset(root.change_key):
            return (
                f"changes of {root.full_name} are read by {', '.join(root.change_key)}, and of its partition {each.full_name} "
                f"the log has old rows by {', '.join(sorted(each.key))}, so updates would leave old rows in a copy: give it "
                "the same REPLICA IDENTITY, which partitions do not inherit"
            )
    return ""
