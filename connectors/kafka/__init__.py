"""Kafka as a source. The public names are in `headrace.kafka`."""
