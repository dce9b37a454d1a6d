"""Runners: each moves bytes between an engine and the heart, and knows no connector."""
