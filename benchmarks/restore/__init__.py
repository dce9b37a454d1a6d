"""Duplicate-free restore throughput: the load, the systems, the kills, the probe, the oracle, the report."""
