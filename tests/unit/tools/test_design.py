"""docs/design/state-machines.md shows the state machines as the code has them."""

import ast

from headrace.connectors.base.commit import COMMIT_TRANSITIONS, CommitPhase, Recorded
from tests.helpers.draw_tables import STATE_MACHINES, TABLES, drawn, marked
from tests.unit.tools.test_tidy import PACKAGE, modules


def test_the_diagrams_are_those_of_the_tables():
    """`python -m tests.helpers.draw_tables` draws them again."""
    assert drawn(STATE_MACHINES.read_text()) == STATE_MACHINES.read_text()


def test_every_table_of_the_package_is_drawn():
    tables = {
        node.target.id
        for _, tree in modules(*PACKAGE)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id.endswith("TRANSITIONS")
    }
    assert tables == set(TABLES) == marked(STATE_MACHINES.read_text())


def test_a_table_that_has_changed_is_drawn_otherwise():
    changed = dict(COMMIT_TRANSITIONS) | {(CommitPhase.CONFIRMING, Recorded): (CommitPhase.READY,)}
    assert "CONFIRMING --> READY: Recorded" in drawn(STATE_MACHINES.read_text(), {**TABLES, "COMMIT_TRANSITIONS": changed})
    assert "CONFIRMING --> READY: Recorded" not in STATE_MACHINES.read_text()
