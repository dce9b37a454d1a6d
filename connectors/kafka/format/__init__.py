"""Bytes of the protocol and Arrow: record batches decoded and encoded, responses to Fetch. No connection, no thread."""
