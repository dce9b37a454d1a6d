"""An injected bug for `PYTHONPATH`: `headrace run` reads PostgreSQL's log from where it ends, not from where it was read to."""

import sys

if "run" in sys.orig_argv:
    from headrace.connectors.postgresql.replication import LogConnection

    start = LogConnection.start

    def start_at_end(self, lsn, identifier=None, timeline=None):
        return start(self, start(self, lsn, identifier, timeline).position, identifier, timeline)

    LogConnection.start = start_at_end
