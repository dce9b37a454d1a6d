"""The record encoder uncompiled, as `records_twin` has the decoder."""

from records_twin import load

from headrace.connectors.kafka import encode as compiled

uncompiled = load(compiled)
