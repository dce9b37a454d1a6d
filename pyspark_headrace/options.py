"""How an engine is to write: the sink, and the name of a write that is repeated; and what the options of all sinks share.

A connector makes a `SinkWrite` from the options its users write; a runner carries it out. Neither knows the other.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from headrace.connectors.sink import TwoPhaseSink, check_job
from headrace.enumerator.errors import UsageError

__all__ = ["FROM_SPARK", "REPEATED_WRITE", "SinkWrite", "chosen", "given_options", "sink_write"]

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)
SinkT = TypeVar("SinkT", bound=TwoPhaseSink[Any])

REPEATED_WRITE: Mapping[str, str] = {
    "txnAppId": "name of a batch write that is repeated until it succeeds, as in foreachBatch; needs txnVersion",
    "txnVersion": "its number, such as the batch id in foreachBatch: a number that was written is not written again",
}
"""The options of every sink, and what they are for."""

FROM_SPARK = frozenset({"checkpointlocation", "provider", "__datasource_name", "queryname"})
"""What Spark adds to the options by itself, in lower case."""


@dataclass(frozen=True, slots=True)
class SinkWrite(Generic[SinkT]):
    """`job` and `epoch` name a batch write that is repeated until it succeeds, or are None."""

    sink: SinkT
    job: str | None = None
    epoch: int | None = None


def sink_write(sink: SinkT, given: Mapping[str, str]) -> SinkWrite[SinkT]:
    """The sink, and what `REPEATED_WRITE` says of the write. Raises UsageError naming the option that is missing or wrong."""
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise UsageError("options 'txnAppId' and 'txnVersion' go together")
    if "txnAppId" not in given:
        return SinkWrite(sink)
    text = given["txnVersion"]
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"option 'txnVersion' must be a whole number from 0, not {text!r}")
    return SinkWrite(sink, check_job(given["txnAppId"]), int(text))


def given_options(
    options: Mapping[str, str], known: Collection[str], ignored: Collection[str] = FROM_SPARK, verbatim: Collection[str] = ()
) -> dict[str, str]:
    """The options by the names in `known`, whose case is ignored; blanks around values are dropped but in `verbatim`.

    Raises UsageError for an empty value, and for an option that is neither known nor `ignored` (in lower case). No message
    shows a value, as it may be a secret.
    """
    by_name = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    for written, value in options.items():
        name = written.lower()
        if name in by_name:
            if not value.strip():
                raise UsageError(f"option '{by_name[name]}' must not be empty")
            given[by_name[name]] = value if by_name[name] in verbatim else value.strip()
        elif name not in ignored:
            near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.6)
            hint = f"; did you mean '{by_name[near[0]]}'?" if near else ""
            raise UsageError(f"option '{written}' is not known to the sink{hint}")
    return given


def chosen(given: Mapping[str, str], name: str, default: ChoiceT) -> ChoiceT:
    """The member of `default`'s enum that the option names. Raises UsageError with the list of them."""
    kind = type(default)
    value = given.get(name, default.value)
    if value not in tuple(kind):
        raise UsageError(f"option '{name}' must be {' or '.join(kind)}, not {value!r}")
    return kind(value)
