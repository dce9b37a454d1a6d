"""The parts of `latency.py`: load, probe, judge, systems, report."""
