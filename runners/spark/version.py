"""Which PySpark headrace runs on."""

from __future__ import annotations

import pyspark

from headrace.enumerator.errors import UsageError

MINIMUM = (4, 2)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


HAS_NANOSECONDS = _release(pyspark.__version__) >= (4, 3)
"""Whether times of a day may have nine digits. Before, Spark refuses the type."""


def require_pyspark(version: str = pyspark.__version__) -> None:
    """Raise UsageError for a PySpark whose data source API would lose records."""
    if _release(version) < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        raise UsageError(
            f"headrace needs PySpark {wanted} or newer, and this is {version}: before {wanted}, AvailableNow with a row limit "
            f"ends after one batch and leaves the rest unread. Install it with: pip install 'pyspark>={wanted}'"
        )
