"""What is done to servers, networks and jobs. Each kind of fault is in `KINDS` under its name; a module for each family."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.chaos.faults import administration, brokers, jobs, links
from benchmarks.chaos.faults.fault import Kind

KINDS: Mapping[str, Kind] = {kind.name: kind for family in (brokers, links, administration, jobs) for kind in family.KINDS}
