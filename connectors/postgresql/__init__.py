"""PostgreSQL's changes as a source: each table in chunks, then the log of a logical slot. Needs `pip install headrace[sql]`."""

from pathlib import Path

from headrace.connectors.base.compiled import check_compiled, not_compiled

NOT_COMPILED = not_compiled("decoder of PostgreSQL's log", __path__[0])
"""What is said where a checkout is imported that was never built, or was built with another Python."""

check_compiled(Path(__path__[0], "pgoutput.py"))
