"""The versions of Kafka's APIs that this client speaks: one table. No I/O.

Of each API a connection takes the highest version that is in the table and that the broker has. Some requests need narrower
limits, which stand under the table. The messages are defined at https://kafka.apache.org/protocol#protocol_messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Versions:
    """The lowest and the highest version, both included, with the reason for these limits."""

    lowest: int
    highest: int
    why: str

    @property
    def limits(self) -> dict[str, int]:
        return {"min_version": self.lowest, "max_version": self.highest}


_NEWEST = "the highest version that kafka-python 3.0 has"

API_VERSIONS: Mapping[str, Versions] = {
    "AddPartitionsToTxn": Versions(0, 3, "later versions are for brokers among themselves (KIP-890)"),
    "ApiVersions": Versions(0, 4, _NEWEST),
    "CreateTopics": Versions(4, 7, f"4: the first with the broker's error message; 7: {_NEWEST}"),
    "DescribeConfigs": Versions(0, 4, _NEWEST),
    "DescribeTransactions": Versions(0, 0, _NEWEST),
    "EndTxn": Versions(0, 5, _NEWEST),
    "Fetch": Versions(4, 18, "what `format.fetch_protocol` parses: 4 is the first with today's record batches (KIP-98)"),
    "FindCoordinator": Versions(0, 6, _NEWEST),
    "InitProducerId": Versions(0, 5, "6 is KIP-939's, which brokers do not have yet"),
    "ListOffsets": Versions(1, 11, f"0 has another form, with several offsets; 11: {_NEWEST}"),
    "ListTransactions": Versions(0, 2, _NEWEST),
    "Metadata": Versions(4, 13, f"4: the first that can ask without creating topics; 13: {_NEWEST}"),
    "OffsetCommit": Versions(0, 9, "10 names topics by id (KIP-848) and gains nothing here"),
    "OffsetFetch": Versions(0, 9, "10 names topics by id (KIP-848) and gains nothing here"),
    "OffsetForLeaderEpoch": Versions(0, 4, _NEWEST),
    "Produce": Versions(3, 13, f"3: the first with today's record batches (KIP-98); 13: {_NEWEST}"),
}
"""By the API's name."""

FETCH_BY_NAME = Versions(4, 12, "13 and later name topics by id (KIP-516)")
PRODUCE_BY_NAME = Versions(3, 12, "13 and later name topics by id (KIP-516)")
PRODUCE_V1 = Versions(3, 11, "12 and later add partitions to a transaction (KIP-890), which its version 1 does by a request")
END_TXN_V1 = Versions(0, 4, "5 and later are of version 2 of transactions (KIP-890)")
END_TXN_V2 = Versions(5, 5, "earlier versions do not return the producer's next epoch (KIP-890)")
LIST_OFFSETS_COMMITTED = Versions(2, 11, "earlier versions have no isolation level")
