"""Kafka as a two-phase-commit sink: transactions, handles, the durable list, and what the log says became of them."""
