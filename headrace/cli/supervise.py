"""`headrace supervise`: run a job of streaming queries, and start it again when it fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace._extras import needs_extra
from headrace.cli.options import Properties, PropertiesFile, given_properties
from headrace.cli.servers import named_settings
from headrace.enumerator.errors import UsageError
from headrace.runners.restarts import duration_s, restart_strategy

if TYPE_CHECKING:
    from headrace.connectors.kafka.lease import KafkaLease
    from headrace.runners.spark.supervision.jobs import FunctionName

_TYPE = "restart-strategy.type"

Lease = Annotated[
    str | None,
    typer.Option(
        help="Brokers (host:port, ...) where supervisors on several hosts agree which of them leads. The others keep a "
        "driver warm, and take over when the leader's host is dead.",
        metavar="BOOTSTRAP",
    ),
]
LeaseTimeout = Annotated[
    float | None,
    typer.Option(help="A leader that has said nothing for this many seconds is taken for dead (at least 1.5). Default: 5."),
]
LeaseGroup = Annotated[
    str | None, typer.Option(help="The consumer group that represents the job. Default: headrace-lease-PATH:FUNCTION.")
]


def supervise_command(
    job: Annotated[str, typer.Argument(help="The job's function: path/to/job.py:function or package.module:function.")],
    *,
    session: Annotated[
        str | None, typer.Option(help="The function that makes the session, named as the job is. Default: headrace's builders.")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A setting of the session, name=value. May be repeated.")] = None,
    restart: Annotated[
        str | None, typer.Option(help="none, fixed-delay, failure-rate or exponential-delay (default).", metavar="STRATEGY")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(help="A setting of the strategy, name=value, by Flink's name (restart-strategy...). May be repeated."),
    ] = None,
    standby: Annotated[
        int, typer.Option(help="This many more drivers (at most 2) that wait, warm, to take over when the one running fails.")
    ] = 0,
    lease: Lease = None,
    lease_timeout: LeaseTimeout = None,
    lease_group: LeaseGroup = None,
    properties: Properties = None,
    properties_file: PropertiesFile = None,
    status: Annotated[Path | None, typer.Option(dir_okay=False, help="Keep a JSON here that says what continues.")] = None,
    progress_timeout: Annotated[
        float | None,
        typer.Option(help="Kill and restart when no batch has ended for this many seconds while one was under way."),
    ] = None,
    silence_timeout: Annotated[
        str,
        typer.Option(
            help="Kill and restart when a driver's process or JVM has said nothing for this many seconds.",
            metavar="SECONDS|never",
        ),
    ] = "30",
    stop_timeout: Annotated[float, typer.Option(help="Seconds that the batch under way may take after SIGTERM.")] = 60.0,
) -> None:
    """Run a job of streaming queries in its own process, and start it again when it fails, until it has nothing to do.

    The job's function is given a session and returns its streaming query, or several. SIGTERM and Ctrl-C end it after the batch
    under way, a second one at once. Exit statuses: 0 all queries have ended by themselves; 143 stopped; 1 the restart strategy
    has given up; and at once, without a restart, 2 wrong options, 65 lost records, 66 a checkpoint that cannot be used, 67
    another driver has claimed the job.
    """
    with needs_extra("spark", "pyspark"):
        from headrace.runners.spark.supervision.driver import DriverOrder
        from headrace.runners.spark.supervision.jobs import FunctionName
        from headrace.runners.spark.supervision.status import StatusFile
        from headrace.runners.spark.supervision.supervisor import supervise
        from headrace.spark.format import headrace_format
    from headrace.runners.spark.supervision.core import EXIT_STATUSES, SupervisionLimits
    from headrace.runners.spark.supervision.standby import StandbyCore, StandbyLimits

    logging.basicConfig(format="headrace: %(message)s", level=logging.WARNING)
    if session is not None and conf:
        raise UsageError("--conf is for the session that headrace makes: give its settings to the function of --session")
    maker = None if session is None else FunctionName.parse(session)
    name = FunctionName.parse(job)
    lease_store = _lease_store(lease, name, lease_group, lease_timeout, given_properties(properties, properties_file))
    settings, has_peers = named_settings(conf, "--conf"), lease_store is not None
    order = DriverOrder(name, FunctionName.of(headrace_format), maker, settings, standby, has_peers)
    strategy = restart_strategy(strategy_settings(restart, named_settings(config)))
    limits = StandbyLimits(standby, seconds_or_never(silence_timeout, "--silence-timeout"))
    job_limits = SupervisionLimits(progress_timeout, stop_timeout)
    new_core = partial(StandbyCore, strategy, job_limits, limits)
    end = supervise(order, new_core, None if status is None else StatusFile(status), lease_store)
    raise typer.Exit(EXIT_STATUSES[end.ending])


def _lease_store(
    bootstrap: str | None, job: FunctionName, group: str | None, timeout_s: float | None, given: Mapping[str, str]
) -> KafkaLease | None:
    """Where the supervisors of the job agree; None without `--lease`. Raises UsageError for options of no use then."""
    if bootstrap is None:
        if given or group is not None or timeout_s is not None:
            raise UsageError(
                "--lease-group, --lease-timeout, --property and --properties-file are for --lease, which is not given"
            )
        return None
    from headrace.connectors.kafka.lease import KafkaLease

    # With the path: of two jobs with one name the second would only ever follow.
    lease = KafkaLease(bootstrap, f"headrace-lease-{job}" if group is None else group, properties=given)
    return lease if timeout_s is None else replace(lease, timeout_s=timeout_s)


def strategy_settings(restart: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with the strategy's name among them. Raises UsageError where both say it."""
    if restart is None:
        return dict(settings)
    if _TYPE in settings:
        raise UsageError(f"the strategy is given twice: by --restart and by {_TYPE}")
    return {**settings, _TYPE: restart}


def seconds_or_never(text: str, option: str) -> float | None:
    """None for `never`. Raises UsageError for what is neither."""
    return None if text == "never" else duration_s(f"{option}, unless it is never,", text, "s")
