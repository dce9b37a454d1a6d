"""Monitoring of a run: its status file, the lag of its source, and the page for Prometheus."""
