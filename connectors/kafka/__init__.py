"""Kafka as a source and as a two-phase-commit sink. The public names are in `headrace.kafka`.

`format` knows bytes (record batches, Fetch responses), `client` the cluster (connections, metadata, offsets), `read` is the
source and `write` the sink. Imports point one way: `read` and `write` to `client`, `client` to `format`.
"""
