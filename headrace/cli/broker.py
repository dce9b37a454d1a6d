"""`headrace broker`: a throwaway Kafka cluster."""

from __future__ import annotations

import sys
import threading
from typing import Annotated

import typer

from headrace.cli.serving import LOOK_SECONDS, named_settings, until_interrupted


def broker_command(
    brokers: Annotated[int, typer.Option(min=1, help="How many; each is broker and controller in one.")] = 1,
    port: Annotated[int | None, typer.Option(help="Port of the first one, the next follow. Default: any free.")] = None,
    config: Annotated[list[str] | None, typer.Option(help="A broker setting, name=value. May be repeated.")] = None,
) -> None:
    """Run a throwaway Kafka cluster until Ctrl-C; prints its bootstrap address on a line of its own.

    The cluster and its data are gone afterwards. HEADRACE_BOOTSTRAP, when set, is used instead of starting one.
    """
    from headrace.harness.kafka import start_broker

    settings = named_settings(config)
    with until_interrupted(), start_broker(brokers, config=settings, port=port) as cluster:
        print(cluster.bootstrap, flush=True)  # noqa: T201 - the command's output
        while all(cluster.is_running(node) for node in cluster.nodes):
            threading.Event().wait(LOOK_SECONDS)
        ended = [node for node in cluster.nodes if not cluster.is_running(node)]
        sys.exit(f"brokers {ended} ended by themselves. The end of the log:\n{cluster.log_tail(ended[0])}")
