"""`headrace broker`: a throwaway Kafka cluster."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli.serving import POLL_S, named_settings, until_interrupted


def named_topics(texts: Sequence[str] | None) -> dict[str, int]:
    """Topic to its number of partitions, from texts like `orders` and `orders:4`. Raises typer.BadParameter."""
    topics: dict[str, int] = {}
    for text in texts or ():
        name, colon, partitions = text.partition(":")
        if not name or (colon and (not partitions.isascii() or not partitions.isdigit() or int(partitions) < 1)):
            raise typer.BadParameter(f"{text!r} is not name or name:partitions", param_hint="--topic")
        if name in topics:
            raise typer.BadParameter(f"topic {name!r} is given twice", param_hint="--topic")
        topics[name] = int(partitions) if colon else 1
    return topics


def broker_command(
    brokers: Annotated[int, typer.Option(min=1, help="Number of brokers; each is also a controller.")] = 1,
    port: Annotated[
        int | None, typer.Option(help="Port of the first broker; the others use the next ones. Default: a free port.")
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
