"""Runners: each moves bytes between an engine and the core, and knows no connector."""
