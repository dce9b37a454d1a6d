"""One sink, or several by the names of their outputs, and the handles of all of them as one kind of handle.

A job that writes to several sinks has one list of what it has prepared, so that all outputs are committed by one decision. An
`OutputHandle` states which of the sinks its transaction is of. A job with one sink has that sink's own handles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import pyarrow as pa

from headrace.connectors.base.capabilities import SingleCommit, records_all_epochs
from headrace.connectors.base.immediate import ImmediateSink
from headrace.connectors.base.sink import HandleSerializer, TwoPhaseSink
from headrace.enumerator.envelope import readable_version
from headrace.enumerator.errors import StateError, UsageError

Sinks = TwoPhaseSink[Any] | Mapping[str, TwoPhaseSink[Any]]
"""What a job writes to: one sink, or several by the names of the outputs."""

DEFAULT_OUTPUT = ""
"""The name of the output of a job that has one sink."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")  # it becomes part of a job's name, behind a dash


@dataclass(frozen=True, slots=True)
class OutputHandle:
    """A prepared transaction of one of several outputs: the output's name, and the handle that its sink gave."""

    output: str
    handle: Any


class OutputHandleSerializer(HandleSerializer[OutputHandle]):
    """Version 1: {"output": "good", "version": 1, "handle": <what the serializer of that output's sink wrote>}."""

    version = 1

    def __init__(self, serializers: Mapping[str, HandleSerializer[Any]]) -> None:
        self._serializers = serializers

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(sorted(self._serializers))

    def serialize(self, handle: OutputHandle) -> dict[str, Any]:
        serializer = self._serializers[handle.output]
        return {"output": handle.output, "version": serializer.version, "handle": serializer.serialize(handle.handle)}

    def deserialize(self, version: int, value: Any) -> OutputHandle:  # noqa: ANN401 - any JSON value
        """What `serialize` wrote. Raises StateError for an output that there is not."""
        readable_version(version, self.version)
        name = value["output"]
        if name not in self._serializers:
            raise StateError(f"a transaction is of the output {name!r}, which is not there; {known_outputs(self._serializers)}")
        serializer = self._serializers[name]
        found = readable_version(value["version"], serializer.version)
        return OutputHandle(name, serializer.deserialize(found, value["handle"]))


class WrongOutputError(UsageError):
    """What a transform has given is not a batch, or is for no output that there is. Calling it again does not fix that."""


def parts(made: object) -> Iterable[object]:
    """What a transform has given, one by one: batches, pairs of an output's name and a batch, or what is neither."""
    if made is None:
        return ()
    if isinstance(made, Mapping):
        return made.items()
    if isinstance(made, pa.RecordBatch) or is_tagged(made):
        return (made,)
    if not isinstance(made, Iterable) or isinstance(made, str | bytes | pa.Table):
        hint = "; its method to_batches gives them" if isinstance(made, pa.Table) else ""
        raise WrongOutputError(f"the transform must give Arrow record batches, not {type(made).__name__}{hint}")
    return made


def is_tagged(made: object) -> TypeGuard[tuple[str, object]]:
    """Whether it is a pair of an output's name and something for it."""
    return isinstance(made, tuple) and len(made) == len(("output", "batch")) and isinstance(made[0], str)


def known_outputs(names: Mapping[str, Any] | Sequence[str]) -> str:
    return f"the outputs are {', '.join(repr(name) for name in sorted(names))}"


class Outputs:
    """The sinks of a job by the names of their outputs; of one sink alone under the name DEFAULT_OUTPUT."""

    def __init__(self, sinks: Sinks) -> None:
        """Raises UsageError for what is not a sink, and for names that cannot be."""
        self.is_sole: bool = not isinstance(sinks, Mapping)
        self.sinks: Mapping[str, TwoPhaseSink[Any]] = dict(sinks) if isinstance(sinks, Mapping) else {DEFAULT_OUTPUT: sinks}
        if not self.sinks:
            raise UsageError(
                'the outputs of a pipeline are sinks by their names, {"good": sink, "bad": sink}, not an empty dict'
            )
        for name, sink in self.sinks.items():
            if not self.is_sole and not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise UsageError(f"an output's name has 1 to 32 letters, digits and '_', the first one a letter; got {name!r}")
            _check_sink(name, sink)

    @property
    def names(self) -> tuple[str, ...]:
        return () if self.is_sole else tuple(sorted(self.sinks))

    @property
    def in_order(self) -> tuple[str, ...]:
        """All names, in the order in which the sinks are fenced and reported a checkpoint, in every process and lifetime of a
        job.

        The first one's record decides. So it is a table's, if there is one, as only that may refuse then; and one of a sink
        that records nothing comes last.
        """
        return tuple(sorted(self.sinks, key=self._rank))

    def _rank(self, name: str) -> tuple[bool, bool, str]:
        sink = self.sinks[name]
        return isinstance(sink, ImmediateSink), not isinstance(sink, SingleCommit), name

    def check_locks(self) -> None:
        """Raise UsageError for two outputs of which each locks out the other one, for which its worker would wait for ever."""
        output_of: dict[str, str] = {}
        for name in self.names:
            locked = self.sinks[name].locks
            if locked is not None and (other := output_of.setdefault(locked, name)) != name:
                raise UsageError(
                    f"the outputs {other!r} and {name!r} both write to {locked}, where a transaction waits until no other one "
                    "is open, so that a worker would wait for itself: write to two files, or run a pipeline for each output, "
                    f"pipeline.only({name!r})"
                )

    @property
    def is_exactly_once(self) -> bool:
        """Whether no sink keeps what failed attempts have written."""
        return not any(isinstance(sink, ImmediateSink) or records_all_epochs(sink) for sink in self.sinks.values())

    @property
    def handles(self) -> HandleSerializer[Any]:
        if self.is_sole:
            return self.sinks[DEFAULT_OUTPUT].handles
        return OutputHandleSerializer({name: sink.handles for name, sink in self.sinks.items()})

    def tagged(self, name: str, handle: Any) -> Any:  # noqa: ANN401 - the sink's own kind
        return handle if self.is_sole else OutputHandle(name, handle)

    def output_of(self, handle: Any) -> str:  # noqa: ANN401 - as `tagged` gives
        return DEFAULT_OUTPUT if self.is_sole else str(handle.output)

    def plain(self, handle: Any) -> Any:  # noqa: ANN401 - as `tagged` gives
        return handle if self.is_sole else handle.handle


def _check_sink(name: str, sink: object) -> None:
    if isinstance(sink, TwoPhaseSink):
        return
    of = f" of the output {name!r}" if name else ""
    hint = "; a function is one as headrace.sinks.FunctionSink(function)" if callable(sink) else ""
    raise UsageError(f"a pipeline's sink{of} must be a headrace TwoPhaseSink, not {type(sink).__name__}{hint}")
