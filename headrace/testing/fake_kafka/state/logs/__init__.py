"""Partitions as they lie on disk: batches, the log of them, its epochs and producers, and what is cleaned out of it."""
