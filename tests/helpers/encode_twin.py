"""The record encoder uncompiled, as `decode_twin` has the decoder."""

from decode_twin import load

from headrace.connectors.kafka.format import encode as compiled

uncompiled = load(compiled)
