"""The records of the topic with notes of replays, read without waiting for transactions of others.

One partition holds the notes of all topics of dead letters. A reader under read_committed would wait for the transaction that a
killed replay of any of them has left. So the log is read as it is: a record counts if the marker behind it states that it
is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.letters.replayed import REPLAYS_TOPIC

if TYPE_CHECKING:
    from headrace.connectors.kafka.client.cluster import KafkaCluster

__all__ = ["Notes", "read_notes"]

_PARTITION = 0


@dataclass(frozen=True, slots=True)
class Notes:
    """`decided`: key to value of the records that are there, in the order of the log. `open`: the keys of those that may come,
    with the offset of the first, as the transaction that writes them is open. `end`: the offset after the last one read.
    """

    decided: Mapping[str, bytes]
    open: Mapping[str, int]
    end: int


def read_notes(cluster: KafkaCluster) -> Notes:
    """Up to where the topic ends now; without the topic, nothing. Raises CorruptDataError, DataLossError, PeerError."""
    from headrace.connectors.kafka.format.stored_batch import records_of
    from headrace.connectors.kafka.log_dump import TransactionStatus, dump
    from headrace.connectors.kafka.write.topics import find_topic

    decided: dict[str, bytes] = {}
    inconclusive: dict[str, int] = {}
    end = 0
    if find_topic(cluster, REPLAYS_TOPIC) is None:
        return Notes(decided, inconclusive, end)
    for each in dump(cluster, REPLAYS_TOPIC, _PARTITION):
        end = each.stored.last_offset + 1
        if each.marker is not None or each.fate is TransactionStatus.ABORTED:
            continue
        for row in records_of(REPLAYS_TOPIC, _PARTITION, each.stored).to_pylist():
            key, value = (row["key"] or b"").decode(errors="replace"), row["value"]
            if each.fate is TransactionStatus.OPEN:
                inconclusive.setdefault(key, row["offset"])
            elif value is None:
                decided.pop(key, None)
            else:
                decided[key] = value
    return Notes(decided, inconclusive, end)
