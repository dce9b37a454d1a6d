"""Injected bugs of tables: what a reader is told of values, and what a rewrite makes of rows that no change touches."""

from __future__ import annotations
