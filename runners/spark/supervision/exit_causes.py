"""What a driver's error says about another try, whichever way it came through Spark."""

from __future__ import annotations

import importlib
import re

from headrace.enumerator.errors import BadRecordError, DataLossError, FencedError, HeadraceError, StateError, UsageError
from headrace.runners.spark.private import cause_of
from headrace.runners.spark.supervision.core import DriverEnd, Ending

_OURS = re.compile(r"^[ \t]*(headrace(?:\.\w+)+)\.(\w+): ?(.*)$", re.MULTILINE)
"""The last line of a Python traceback, which is all that is left of an error that has gone through the JVM."""

_CLASSES: tuple[tuple[type[HeadraceError], Ending], ...] = (
    (UsageError, Ending.WRONG_USE),
    (BadRecordError, Ending.WRONG_USE),  # every driver reads it so, until the user lets such records be kept or skipped
    (DataLossError, Ending.DATA_LOSS),
    (StateError, Ending.BAD_CHECKPOINT),
    (FencedError, Ending.FENCED),
)

_ANOTHER_DRIVER = "CONCURRENT_STREAM_LOG_UPDATE"  # Spark's error condition for two drivers that write the log of one checkpoint
_REFUSED_BY_SPARK = frozenset({"AnalysisException", "ParseException", "IllegalArgumentException"})
"""Names of PySpark's errors for a plan or a setting that cannot be. Raised to the job itself, not to a running query."""

_AROUND_SPARK = re.compile(
    r"\b(?:java\.(?:io|nio)|java\.net(?!\.(?:URISyntax|MalformedURL))|org\.apache\.(?:hadoop|thrift))\.[\w.$]*Exception\b"
)
"""An error of networks, files, Hadoop or Hive's metastore, which Spark hands on in one of those: a name that DNS does not know
just now is an IllegalArgumentException, a metastore that is away an AnalysisException."""


def end_by(error: BaseException) -> DriverEnd:
    """How a driver has ended that has ended with this error. What is not known to be final is FAILED: it is tried again."""
    if isinstance(error, HeadraceError):
        return DriverEnd(_ending_of(type(error)), _named(type(error).__name__, str(error)))
    for module, name, message in reversed(_OURS.findall(str(error))):
        ours = _class_named(module, name)
        if ours is not None:
            return DriverEnd(_ending_of(ours), _named(name, message))
    reason = _named(type(error).__name__, str(error))
    if _ANOTHER_DRIVER in str(error):
        return DriverEnd(Ending.FENCED, reason)
    return DriverEnd(Ending.WRONG_USE if _is_refused(error) else Ending.FAILED, reason)


def refusal_behind(error: BaseException) -> str | None:
    """What Spark, which plans in the query's thread, refuses of a query whose first batch failed with this error; else None."""
    cause = cause_of(error)
    return None if cause is None or not _is_refused(cause) else _named(type(cause).__name__, str(cause))


def _is_refused(error: BaseException) -> bool:
    is_refusal = any(base.__name__ in _REFUSED_BY_SPARK for base in type(error).__mro__)
    return is_refusal and _AROUND_SPARK.search(str(error)) is None


def one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= 400 else f"{line[:400]}..."


def _named(name: str, message: str) -> str:
    return f"{name}: {one_line(message)}"


def _ending_of(error: type[HeadraceError]) -> Ending:
    return next((ending for kind, ending in _CLASSES if issubclass(error, kind)), Ending.FAILED)


def _class_named(module: str, name: str) -> type[HeadraceError] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, HeadraceError) else None
