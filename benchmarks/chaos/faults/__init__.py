"""What is done to servers, networks and jobs. Each kind of fault is in `KINDS` under its name; a module for each family."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.chaos.faults import administration, brokers, databases, jobs, links, losses
from benchmarks.chaos.faults.fault import Kind

TREES = (brokers, links, administration, jobs, databases, losses)
KINDS: Mapping[str, Kind] = {kind.name: kind for tree in TREES for kind in tree.KINDS}
