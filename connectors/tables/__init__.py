"""Tables of open formats as two-phase-commit sinks: each epoch is one commit of the table.

from headrace.connectors.tables.delta import DeltaSink

sink = DeltaSink("/data/flights")

Each format is its own module, with its own library.
"""
