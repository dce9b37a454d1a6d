"""`headrace run`: a pipeline of a Python file, in processes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.serving import named_settings


def run_command(
    pipeline: Annotated[str, typer.Argument(help="A Python file and the variable that is a Pipeline: job.py:pipeline.")],
    *,
    checkpoints: Annotated[Path, typer.Option(file_okay=False, help="The folder of the checkpoints; of this run alone.")],
    workers: Annotated[int, typer.Option(min=1, help="Processes that read and write.")] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option(help="A setting by Flink's name, such as execution.checkpointing.interval='1 s'. May be repeated."),
    ] = None,
) -> None:
    """Run a pipeline exactly once until its source ends; Ctrl-C and SIGTERM stop it with a last checkpoint.

    Goes on from the last checkpoint in the folder where there is one, with any number of workers. Settings:
    execution.checkpointing.interval, .min-pause, .timeout, .tolerable-failed-checkpoints, .num-retained, heartbeat.interval,
    heartbeat.timeout, restart-strategy.*.
    """
    from headrace.runners.local.pipeline import PipelineFile, RunSettings, flink_settings
    from headrace.runners.local.processes import forked
    from headrace.runners.local.supervisor import supervise

    settings = RunSettings(str(checkpoints), workers=workers, **flink_settings(named_settings(config)))
    supervise(PipelineFile.parse(pipeline), settings, forked)
