"""Supervision of Spark jobs: drivers as child processes, started again as `headrace.enumerator.supervision` decides."""
