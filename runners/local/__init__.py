"""Runs a pipeline in processes of one machine: a coordinator, which runs no user code, and workers."""
