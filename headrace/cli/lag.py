"""`headrace lag`: the lag of a consumer group, per partition."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import ClientOptions, grouped
from headrace.cli.output import Listing, console, rich_table, show
from headrace.enumerator.errors import StateError

if TYPE_CHECKING:
    from headrace.connectors.kafka.client.cluster import KafkaCluster
    from headrace.connectors.kafka.client.properties import Isolation
    from headrace.connectors.kafka.client.topology import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition. `committed` is None if the group has committed nothing; the ends are None if the partition is gone.

    `stable_end` is the last stable offset, where a reader under read_committed stops.
    """

    topic: str
    partition: int
    committed: int | None
    stable_end: int | None
    high_watermark: int | None

    @property
    def lag(self) -> int | None:
        """Offsets up to `stable_end` that the group has not read, transaction markers included. None when unknown."""
        if self.committed is None or self.stable_end is None:
            return None
        return max(0, self.stable_end - self.committed)


def lag_of(cluster: KafkaCluster, group: str, topics: Collection[str]) -> list[PartitionLag]:
    """Of these topics, or of all that the group has committed. Raises UnknownTopicError, StateError for none committed."""
    from headrace.connectors.kafka.client.properties import Isolation

    wanted: list[TopicPartition] | None = None
    if topics:
        wanted = [(name, number) for name, topic in cluster.topics(topics).items() for number in topic.partitions]
    committed = cluster.committed_offsets(group, wanted)
    if not any(committed.values()):
        raise StateError(f"group {group!r} has committed nothing{' in these topics' if topics else ''}")
    found = cluster.find_topics({topic for topic, _ in committed})
    there = [tp for tp in committed if (known := found[tp[0]]) is not None and tp[1] in known.partitions]
    stable = _ends(cluster, there, Isolation.READ_COMMITTED)
    ends = _ends(cluster, there, Isolation.READ_UNCOMMITTED)
    return [
        PartitionLag(*tp, offset.offset if offset is not None else None, stable.get(tp), ends.get(tp))
        for tp, offset in sorted(committed.items())
    ]


def _ends(
    cluster: KafkaCluster, partitions: Sequence[TopicPartition], isolation: Isolation
) -> dict[TopicPartition, int | None]:
    from headrace.connectors.kafka.client.positions import Latest

    answers = cluster.list_offsets(dict.fromkeys(partitions, Latest()), isolation)
    return {tp: answer.offset for tp, answer in answers.items()}


def tables(group: str, lags: Sequence[PartitionLag]) -> list[Listing]:
    """The tables to print: the partitions, and the total with the number of partitions it covers."""
    known = [item.lag for item in lags if item.lag is not None]
    columns = ("topic", "partition", "committed", "end", "high watermark", "lag")
    return [
        Listing("partition", f"Group {group}", columns, [(*astuple(item), item.lag) for item in lags]),
        Listing("total", "", ("lag", "of partitions", "without a lag"), [(sum(known), len(known), len(lags) - len(known))]),
    ]


@grouped
def lag_command(
    *,
    group: Annotated[str, typer.Option(help="A consumer group, or the value of commitOffsetsToGroup.")],
    topic: Annotated[
        list[str] | None, typer.Option(help="Default: every topic the group has committed. May be repeated.")
    ] = None,
    watch: Annotated[float | None, typer.Option(help="Repeat at this interval in seconds until Ctrl-C.", min=0.1)] = None,
    client: ClientOptions,
) -> None:
    """Print the lag of a group: committed offset, last stable offset, high watermark, lag.

    Plain lines are `partition` (topic, partition, committed, end, high watermark, lag) and `total` (lag, partitions covered,
    partitions with unknown lag). `end` is the last stable offset; the lag counts offsets up to it.
    """
    cluster = client.connect()
    if watch is None:
        for table in tables(group, lag_of(cluster, group, topic or ())):
            show(table)
        return
    try:
        _watch(cluster, group, topic or (), watch)
    except KeyboardInterrupt:
        return


def _watch(cluster: KafkaCluster, group: str, topics: Collection[str], every_s: float) -> None:
    from rich.console import Group
    from rich.live import Live

    out = console()
    pause = threading.Event()
    if not out.is_terminal:
        while True:
            for table in tables(group, lag_of(cluster, group, topics)):
                show(table, out)
            pause.wait(every_s)
    with Live(console=out, auto_refresh=False) as live:
        while True:
            live.update(Group(*map(rich_table, tables(group, lag_of(cluster, group, topics)))), refresh=True)
            pause.wait(every_s)
