"""Kafka as a source: splits, discovery, fetching, the reader."""
