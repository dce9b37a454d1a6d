"""`headrace run`: a pipeline of a Python file, in processes of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import machine_output, note
from headrace.cli.servers import named_settings
from headrace.enumerator.errors import RetriableError, StateError, UsageError

Checkpoints = Annotated[str, typer.Argument(help="The run's checkpoints: a folder, or a URL such as s3://bucket/run.")]

RESCALE_S = 120.0  # so long a run may take until it has stored and committed a checkpoint, and is started with other workers


class Progress(StrEnum):
    """What `headrace run` reports of the run. AUTO: lines where stderr is a terminal, else nothing. JSON: lines on stdout."""

    AUTO = "auto"
    JSON = "json"
    NONE = "none"


def run_command(
    pipeline: Annotated[str, typer.Argument(help="A Python file and the variable that is a Pipeline: job.py:pipeline.")],
    *,
    checkpoints: Annotated[
        str, typer.Option(help="Where the checkpoints are, of this run alone: a folder, or a URL such as s3://bucket/run.")
    ],
    workers: Annotated[int, typer.Option(min=1, help="Processes that read and write.")] = 1,
    savepoints: Annotated[
        str | None, typer.Option(help="Write the last checkpoint into this folder as a savepoint when the run ends.")
    ] = None,
    from_savepoint: Annotated[str | None, typer.Option(help="A savepoint's file to start with, in a new folder.")] = None,
    metrics: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve Prometheus' metrics and /healthz on this port meanwhile.")
    ] = None,
    metrics_address: Annotated[str, typer.Option(help="Where they are served; 0.0.0.0 for other machines.")] = "127.0.0.1",
    config: Annotated[
        list[str] | None,
        typer.Option(help="A setting by Flink's name, such as execution.checkpointing.interval='1 s'. May be repeated."),
    ] = None,
    progress: Annotated[
        Progress,
        typer.Option(
            help="auto: a line every 10 s where stderr is a terminal; json: a line each second on stdout, prints on stderr."
        ),
    ] = Progress.AUTO,
) -> None:
    """Run a pipeline exactly once until its source ends; Ctrl-C and SIGTERM stop it with a last checkpoint.

    Continues from the last checkpoint in the folder where there is one, with any number of workers. Settings:
    execution.checkpointing.interval, .min-pause, .timeout, .tolerable-failed-checkpoints, .num-retained, .savepoint-dir,
    .externalized-checkpoint-retention, execution.state-recovery.path, heartbeat.interval, heartbeat.timeout,
    restart-strategy.*. Prints the savepoint's file, if there is one; with --progress json as {"savepoint": ...}, the last line.
    """
    from headrace.cli.run_report import json_report, text_report
    from headrace.runners.job_file import PipelineFile
    from headrace.runners.local.processes import forked
    from headrace.runners.local.settings import RunSettings, flink_settings
    from headrace.runners.local.supervisor import supervise

    options = {"savepoints": savepoints, "from_savepoint": from_savepoint, "metrics_port": metrics}
    given = {name: value for name, value in options.items() if value is not None}
    configured = flink_settings(named_settings(config))
    if twice := configured.keys() & given:
        options_of = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(twice))
        raise UsageError(f"{options_of} and --config say the same: give one of them")
    configured |= {"metrics_address": metrics_address, **given}
    settings = RunSettings(checkpoints, workers=workers, **configured)
    job = PipelineFile.parse(pipeline)
    if progress is Progress.JSON:
        output = machine_output()
        savepoint = supervise(job, settings, forked, json_report(settings.folder, output))
        if savepoint is not None:
            typer.echo(json.dumps({"savepoint": str(savepoint)}), file=output)
        return
    savepoint = supervise(job, settings, forked, text_report(settings.folder) if progress is Progress.AUTO else lambda: None)
    if savepoint is not None:
        typer.echo(savepoint)


def savepoint_command(
    checkpoints: Checkpoints,
    target: Annotated[str, typer.Argument(help="The folder for the savepoint; made if need be.")],
    *,
    pipeline: Annotated[
        str | None, typer.Option(help="The run's file and variable, job.py:pipeline: finish what a run that has died orphaned.")
    ] = None,
) -> None:
    """Write a run's newest committed checkpoint as a savepoint, and print its file.

    The run may be running; the savepoint is then at most a checkpoint's interval old, and the run continues after it. To move a
    run stop it, with --savepoints: what starts with a savepoint writes again what the run has written since.

    A run that has died may have left transactions that its newest checkpoint lists and that are not committed yet. With
    --pipeline these are committed first, and what else its workers have left is aborted.
    """
    from headrace.runners.local.savepoints import take_savepoint
    from headrace.runners.local.storage.folder import local_folder
    from headrace.runners.local.storage.places import run_files, whole_name
    from headrace.runners.waiting import wait_until

    checkpoints, folder = whole_name(checkpoints), local_folder(target)  # before the user's file may change the working folder
    taken: list[Path] = []
    with _refused_by_disk("no savepoint could be taken"):
        if pipeline is not None:
            from headrace.runners.job_file import PipelineFile
            from headrace.runners.local.finish import finish

            finish(PipelineFile.parse(pipeline).load(), checkpoints)
        wait_until(
            lambda: taken.append(take_savepoint(run_files(checkpoints), folder)),
            "the checkpoint's transactions to be committed",
            30.0,  # without a run running they never are, but by --pipeline
        )
    typer.echo(taken[0])


def rescale_command(
    checkpoints: Checkpoints, workers: Annotated[int, typer.Argument(min=1, help="How many processes are to read and write.")]
) -> None:
    """Have a run running use another number of workers, from a checkpoint that it takes now.

    Nothing is written twice or lost; the output is still for as long as a restart takes. Returns when the run has started
    again with this many; the next start of the run's command sets the number again. Ctrl-C withdraws it, if the run has
    not taken the checkpoint yet.
    """
    from headrace.runners.local.monitoring.status import check_running
    from headrace.runners.local.rescale import is_requested, request_rescale, withdraw_request
    from headrace.runners.local.storage.places import machine_folder
    from headrace.runners.waiting import wait_until

    folder = machine_folder(checkpoints)

    def check() -> None:
        if is_requested(folder):
            check_running(folder)  # of one that has died, or ended, no one carries it out
            raise RetriableError("no run with these checkpoints has carried it out")

    with _refused_by_disk("the request to rescale cannot be made"):
        check_running(folder)
        request_rescale(folder, workers)
        try:
            wait_until(check, f"the run to use {workers} workers", RESCALE_S)
        except BaseException:
            if withdraw_request(folder):
                note("the request is withdrawn, and no run will carry it out")
            else:
                note(f"a run has taken the request up, and continues with {workers} workers when it has started again")
            raise


def top_command(
    checkpoints: Checkpoints, *, every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0
) -> None:
    """Show what a run running does: a table that follows it on a terminal, lines of JSON in a pipe. Ends with the run.

    Records are counted once a checkpoint, so rates are of what came between the last two. Lag is what lies between the last
    one's positions and the ends of the splits, which are asked then. While the run starts again its phase is RESTARTING.
    """
    from headrace.cli.top import follow
    from headrace.runners.local.storage.places import machine_folder

    follow(machine_folder(checkpoints), every)


@contextmanager
def _refused_by_disk(what: str) -> Iterator[None]:
    """Raises StateError, with what has not happened, for an OSError of the body."""
    try:
        yield
    except OSError as error:
        raise StateError(f"{what}: {error}") from error
