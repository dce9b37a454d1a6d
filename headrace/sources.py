"""Sources made of others: `Hybrid` reads one to its end, then the next."""

from headrace.connectors.base.hybrid import HybridSource as Hybrid
from headrace.connectors.base.hybrid import SourceEnd

__all__ = ["Hybrid", "SourceEnd"]
