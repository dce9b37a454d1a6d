"""The options of the sinks of open table formats."""
