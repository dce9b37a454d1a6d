"""What Python imports at its start. An injected bug has a `sitecustomize` of its own, and imports the stops itself."""

import tests.faults.phase_stops  # noqa: F401 - it injects itself
