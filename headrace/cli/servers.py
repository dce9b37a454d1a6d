"""`headrace broker` and `headrace beam`: a throwaway Kafka or Flink cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from headrace.cli.output import note
from headrace.enumerator.errors import RetriableError

if TYPE_CHECKING:
    from types import FrameType

    from headrace.testing.servers.flink import FlinkCluster
    from headrace.testing.servers.flink.watch import Watch

POLL_S = 1.0  # how often running servers are polled


@contextmanager
def until_interrupted() -> Iterator[None]:
    """End the body without a traceback at Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        return


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def named_settings(pairs: Sequence[str] | None, option: str = "--config") -> dict[str, str]:
    """The values of `--config name=value`, or of another option of that form."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not name=value", param_hint=option)
        if found.setdefault(name, value) != value:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
    return found


def named_topics(texts: Sequence[str] | None) -> dict[str, int]:
    """Topic to its number of partitions, from texts like `orders` and `orders:4`. Raises typer.BadParameter, and UsageError for
    what no topic can have as its name."""
    from headrace.connectors.kafka.write.sink import check_topic

    topics: dict[str, int] = {}
    for text in texts or ():
        name, colon, partitions = text.partition(":")
        if not name or (colon and (not re.fullmatch("[0-9]{1,9}", partitions) or int(partitions) < 1)):
            raise typer.BadParameter(f"{text!r} is not name or name:partitions", param_hint="--topic")
        check_topic("--topic", name)
        if name in topics:
            raise typer.BadParameter(f"topic {name!r} is given twice", param_hint="--topic")
        topics[name] = int(partitions) if colon else 1
    return topics


def broker_command(
    brokers: Annotated[int, typer.Option(min=1, help="Number of brokers; each is also a controller.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of the first broker; the others use the next ones. Default: a free port."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help="Create this topic: name, or name:partitions. May be repeated.", metavar="NAME")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="A broker setting, name=value. May be repeated.")] = None,
) -> None:
    """Run a throwaway Kafka cluster until Ctrl-C; prints its bootstrap address, one line.

    The cluster and its data are deleted at the end. If HEADRACE_BOOTSTRAP is set, that cluster is used and none is started.
    """
    from headrace.testing.servers.kafka import create_topic, start_broker

    settings, topics = named_settings(config), named_topics(topic)
    with until_interrupted(), start_broker(brokers, config=settings, port=port) as cluster:
        for name, partitions in topics.items():
            create_topic(cluster.bootstrap, name, partitions)
        print(cluster.bootstrap, flush=True)  # noqa: T201 - the command's output
        while all(cluster.is_running(node) for node in cluster.nodes):
            threading.Event().wait(POLL_S)
        ended = [node for node in cluster.nodes if not cluster.is_running(node)]
        sys.exit(f"brokers {ended} exited unexpectedly. The end of the log:\n{cluster.log_tail(ended[0])}")


def beam_command(
    *,
    slots: Annotated[int, typer.Option(min=1, help="Slots: how many instances of a pipeline it can run.")] = 2,
    state: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Keep checkpoints and savepoints here. Default: they are deleted at the end."),
    ] = None,
    savepoint: Annotated[str | None, typer.Option(help="Print options that restore from this savepoint.")] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a job may wait for its workers or a checkpoint before that is reported.")
    ] = 60.0,
    config: Annotated[list[str] | None, typer.Option(help="A Flink setting, name=value. May be repeated.")] = None,
) -> None:
    """Run a Flink cluster with Beam's job server until Ctrl-C; prints the pipeline options to use, one per line.

    Reports on stderr what Beam and Flink do not report: workers that do not start, checkpoints that do not complete, and jobs
    that fail and restart. Python workers run the same Python as this command and inherit PYTHONPATH.
    """
    from headrace.testing.servers.flink import start_flink
    from headrace.testing.servers.flink.watch import Timeouts

    settings = named_settings(config)
    limits = Timeouts(timeout, timeout)
    with until_interrupted(), start_flink(slots=slots, state=state, config=settings, timeout=limits) as cluster:
        print("\n".join(cluster.options(savepoint=savepoint)), flush=True)  # noqa: T201 - the command's output
        note(f"Flink is ready; its REST interface is at http://{cluster.rest.address}. Ctrl-C stops it.")
        watches: dict[str, Watch] = {}
        while not (ended := cluster.ended()):
            _report(cluster, watches)
            threading.Event().wait(POLL_S)
        sys.exit(f"the {ended[0]} exited unexpectedly. The end of its log:\n{cluster.log_tail(ended[0])}")


def _report(cluster: FlinkCluster, watches: dict[str, Watch]) -> None:
    """Report what is wrong with any job; `watches` maps the job ids seen so far to their state."""
    try:
        for job_id in cluster.rest.job_ids():
            watch = watches.setdefault(job_id, cluster.watch())
            for finding in watch.observe(cluster.job(job_id), time.monotonic()):
                note(f"headrace: {cluster.explain(finding)}")
    except RetriableError:
        return  # a job that is being set up; it is polled again
