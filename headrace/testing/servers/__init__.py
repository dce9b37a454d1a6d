"""Servers of this machine, for tests and for trying things out: their jars, their ports, processes that never outlive us."""

from headrace.runners.waiting import wait_until

__all__ = ["wait_until"]
