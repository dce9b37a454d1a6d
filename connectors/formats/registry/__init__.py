"""Confluent's schema registry: its REST API, and its wire format around Avro values. Knows no Kafka."""
