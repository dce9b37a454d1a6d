"""Sources made of others: `Hybrid` reads one to its end, then the next.

On `headrace run` and in one process the next starts when the previous one is read. On Beam it starts when all splits of the
previous one are found, and may be read at the same time: a reader cannot report to discovery there.
"""

from headrace.connectors.base.hybrid import HybridSource as Hybrid
from headrace.connectors.base.hybrid import SourceEnd

__all__ = ["Hybrid", "SourceEnd"]
