"""Rows that change a table by key: what a task keeps of them, and how the driver merges them."""
