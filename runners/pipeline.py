"""`PipelineSpec`, which every runner gets: a source, a function of batches, a sink. No engine is imported here.

`headrace.Pipeline` (`headrace/pipeline.py`) extends it by the ways to run it. `runners/spark/pipeline.py` and
`runners/beam/pipeline.py` translate it for an engine; `runners/local` runs it as it is.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeAlias, cast

import pyarrow as pa

from headrace.connectors.base.outputs import DEFAULT_OUTPUT, Outputs, Sinks, WrongOutputError, is_tagged, known_outputs, parts
from headrace.enumerator.errors import UsageError
from headrace.enumerator.source import Source

Tagged: TypeAlias = tuple[str, pa.RecordBatch]
"""The name of an output, and a batch for it."""

Made: TypeAlias = pa.RecordBatch | Tagged | Mapping[str, pa.RecordBatch] | Iterable[pa.RecordBatch | Tagged] | None

Transform = Callable[[pa.RecordBatch], Made]
"""Arrow batch in; a batch, several, or none out. To several sinks: pairs of an output's name and a batch, or a dict of them."""


@dataclass(frozen=True)
class PipelineSpec:
    """Reads from `source`, changes batches by `transform` (None: as they are), writes to `sink`. See `headrace.Pipeline`.

    Raises UsageError for what cannot be a part.
    """

    source: Source[Any]
    sink: Sinks
    transform: Transform | None = None

    def __post_init__(self) -> None:
        source: object = self.source
        if not isinstance(source, Source):
            raise UsageError(f"a pipeline's source must be a headrace Source, not {type(source).__name__}")
        outputs = self.outputs
        if self.transform is not None and not callable(self.transform):
            raise UsageError(f"a pipeline's transform must be a function of a batch, not {self.transform!r}")
        if self.transform is None and not outputs.is_sole:
            raise UsageError(
                "a pipeline with several sinks needs a transform, which says what goes where: it gives pairs of an output's "
                f"name and a batch, or a dict of them; {known_outputs(outputs.names)}"
            )
        if not outputs.is_exactly_once:
            self.source.check_at_least_once()
        if self.transform is None and (key := outputs.sinks[DEFAULT_OUTPUT].row_key):
            object.__setattr__(self, "source", self.source.keyed_by(key))

    def modules(self) -> list[str]:
        """What its processes may have loaded before they are forked."""
        parts = (self.source, *self.outputs.sinks.values())
        return sorted({type(part).__module__ for part in parts} - {"__main__"})

    @property
    def outputs(self) -> Outputs:
        """The sinks by name. Raises UsageError for what is not a sink."""
        return Outputs(self.sink)

    def transformed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What a pipeline with one sink writes of a batch. Raises as `routed`."""
        return (rows for _, rows in self.routed(batch))

    def only(self, output: str) -> Self:
        """The pipeline of one of several outputs: it reads the whole source, and writes what the transform gives for this one.

        For engines whose jobs have one sink. Raises UsageError for an output that there is not.
        """
        outputs = self.outputs
        if output not in outputs.names:
            raise UsageError(f"there is no output {output!r}; {_known(outputs)}")
        return replace(self, sink=outputs.sinks[output], transform=partial(_of_one, self, output))

    def routed(self, batch: pa.RecordBatch) -> Iterator[Tagged]:
        """What the transform makes of a batch, by output; `DEFAULT_OUTPUT` where the pipeline has one sink.

        Raises WrongOutputError for what is not a batch or has no output, and what the transform raises.
        """
        outputs = self.outputs
        made = batch if self.transform is None else self.transform(batch)
        for each in parts(made):
            name, rows = each if is_tagged(each) else (DEFAULT_OUTPUT, each)
            if not isinstance(rows, pa.RecordBatch):
                within = "" if rows is made else f", of which it gave a {type(made).__name__}"
                raise WrongOutputError(f"the transform must give Arrow record batches, not {type(rows).__name__}{within}")
            if outputs.is_sole and name != DEFAULT_OUTPUT:
                raise WrongOutputError(f"the transform gave a batch for the output {name!r}, and the pipeline has one sink")
            if name not in outputs.sinks:
                what = f"a batch for the output {name!r}, which there is not" if name else "a batch without an output"
                raise WrongOutputError(f"the transform gave {what}; {_known(outputs)}")
            yield name, rows


@dataclass(frozen=True)
class PickledPipeline:
    """A pipeline on its way to the processes of a run. `names`: modules that these may have loaded before they are forked."""

    pickled: bytes
    names: list[str]

    @classmethod
    def of(cls, pipeline: PipelineSpec) -> Self:
        """Raises UsageError for one that cannot be pickled."""
        try:
            return cls(pickle.dumps(pipeline), pipeline.modules())
        except Exception as error:
            raise UsageError(
                f"the pipeline cannot be sent to its processes ({error}): its transform must be a function at the top of a "
                "module, its source and sink must be picklable"
            ) from error

    def load(self) -> PipelineSpec:
        """The pipeline: called in the processes of a run. Raises UsageError for what they cannot find."""
        try:
            return cast("PipelineSpec", pickle.loads(self.pickled))  # noqa: S301 - of our own parent
        except (AttributeError, ImportError) as error:
            raise UsageError(
                f"a process of the run cannot find a part of the pipeline ({error}): functions and classes that it uses must "
                "be at the top of a file, not in a notebook, on a command line or under if __name__ == '__main__'"
            ) from error

    def modules(self) -> list[str]:
        """See the class."""
        return self.names


def _known(outputs: Outputs) -> str:
    return "it has one sink, which has no name" if outputs.is_sole else known_outputs(outputs.names)


def _of_one(pipeline: PipelineSpec, output: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (rows for name, rows in pipeline.routed(batch) if name == output)
