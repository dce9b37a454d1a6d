"""The record encoder uncompiled, as `decode_twin` has the decoder."""

from headrace.connectors.kafka.format import encode as compiled
from tests.helpers.decode_twin import load

uncompiled = load(compiled)
