"""Connectors: each implements the heart's `Source`, and knows no engine."""
