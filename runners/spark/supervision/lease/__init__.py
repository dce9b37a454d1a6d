"""Whose a job is: on one host and between hosts, at the sink and at the checkpoint."""
