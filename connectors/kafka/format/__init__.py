"""Bytes of the protocol and Arrow: record batches decoded and encoded, responses to Fetch. No connection, no thread."""

from pathlib import Path

from headrace.connectors.base.compiled import check_compiled, not_compiled

NOT_COMPILED = not_compiled("record decoder and encoder", __path__[0])
"""What is said where a checkout is imported that was never built, or was built with another Python."""

for _name in ("decode", "encode"):
    check_compiled(Path(__path__[0], f"{_name}.py"))
