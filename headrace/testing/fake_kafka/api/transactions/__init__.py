"""Transactions (KIP-98, KIP-890) and what is told of them (KIP-664)."""
