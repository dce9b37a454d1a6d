"""What each of Beam's runners can do: one table. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from headrace.runners.beam import flink_options as flink
from headrace.runners.beam.flink_options import Options, Promise


class Stages(Enum):
    """How a runner runs the stages of a pipeline. A source without an end needs concurrent ones, or no record comes out."""

    CONCURRENT = auto()
    ONE_BY_ONE = auto()
    DEPENDS = auto()  # on what is installed


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one runner."""

    stages: Stages = Stages.CONCURRENT
    check_options: Callable[[Promise, Options], None] | None = None
    """Raises UsageError when a promise cannot be kept under a pipeline's options.

    Of a runner whose checkpoints a sink can follow; None for the others, which cannot write exactly once.
    """
    is_durable: bool = False
    """Whether what a finished bundle has given outlives a failure of the pipeline. Not where all of it is in memory."""
    has_splittable: bool = True
    """Whether splittable DoFns that hand their rest on run there."""
    has_one_worker: bool = False
    """Whether it drops such rests, and finalizes nothing, with several workers (`ParallelBundleManager.process_bundle`)."""


RUNNERS: Mapping[str, Capabilities] = {
    "BundleBasedDirectRunner": Capabilities(Stages.ONE_BY_ONE, has_splittable=False),
    "DataflowRunner": Capabilities(is_durable=True),
    "FlinkRunner": Capabilities(check_options=flink.refuse, is_durable=True),
    "FnApiRunner": Capabilities(Stages.ONE_BY_ONE, has_one_worker=True),
    "PortableRunner": Capabilities(check_options=flink.refuse, is_durable=True),  # it reaches Flink's job server
    "PrismRunner": Capabilities(),
    "SwitchingDirectRunner": Capabilities(
        Stages.DEPENDS, has_one_worker=True
    ),  # Prism where Beam can fetch it, else FnApiRunner
}
"""By the name of the runner's class. A runner that is not here is taken for one that streams without our checkpoints."""


def name_of(pipeline: Any) -> str:
    """The class of the pipeline's runner; of the portable one with the job server in Python, that server's runner."""
    name = type(pipeline.runner).__name__
    if name == "PortableRunner" and pipeline.options.get_all_options().get("job_endpoint") == "embed":
        return "FnApiRunner"
    return name


def of_runner(pipeline: Any) -> Capabilities:
    return RUNNERS.get(name_of(pipeline), Capabilities())
