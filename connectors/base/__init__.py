"""What all connectors stand on: the contracts of sinks, the commit protocol, capabilities, dead letters."""
