"""Compares the topic with the output, with nothing of headrace: librdkafka reads the one, pyarrow the other.

The oracle of the restore benchmark reads topics with its own loop: a judge that shares code with another has its mistakes,
and this one is to be read and trusted by itself.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from files import committed_files

FETCH = 10_000
POLL_S = 0.2
ANSWER_S = 30.0


@dataclass(frozen=True)
class OracleResult:
    """What the oracle found. Records are distinguished by their `id`."""

    records_in: int
    records_out: int
    duplicates: int
    """Rows of the output beyond the first of their id."""
    lost: int
    """Records of the topic whose id is not in the output."""
    altered: int
    """Rows of the output that are not as the record of their id: in any column, partition and offset included."""

    @property
    def is_good(self) -> bool:
        """Every record is in the output once, as it was."""
        return self.duplicates == self.lost == self.altered == 0


def judge(bootstrap: str, topic: str, output: Path) -> OracleResult:
    """Read both to their ends and compare."""
    records = read_topic(bootstrap, topic)
    rows = read_output(output).select(records.column_names).cast(records.schema)
    before, after = (table.to_pandas(types_mapper=pd.ArrowDtype) for table in (records, rows))
    if not before["id"].is_unique:
        raise ValueError(f"topic {topic} itself has flights twice, so their ids tell nothing")
    return OracleResult(
        records_in=len(before),
        records_out=len(after),
        duplicates=int(after["id"].duplicated().sum()),
        lost=int((~before["id"].isin(after["id"])).sum()),
        altered=_count_altered(before, after),
    )


@dataclass(frozen=True)
class CopyResult:
    """What the oracle found in the other topic. Records are distinguished by all of their value."""

    records_in: int
    records_out: int
    duplicates: int
    """Records of the copy beyond the first of their value."""
    lost: int
    """Records of the topic whose value is not in the copy."""
    foreign: int
    """Values of the copy that are not in the topic."""

    @property
    def is_good(self) -> bool:
        """Every record is in the copy once."""
        return self.duplicates == self.lost == self.foreign == 0


def judge_copy(bootstrap: str, topic: str, copy: str) -> CopyResult:
    """Read both topics to their ends, read_committed, and compare."""
    before, after = (Counter(message.value() for message in _messages(bootstrap, name)) for name in (topic, copy))
    return CopyResult(
        records_in=before.total(),
        records_out=after.total(),
        duplicates=sum(count - 1 for count in after.values()),
        lost=len(before.keys() - after.keys()),
        foreign=len(after.keys() - before.keys()),
    )


def read_topic(bootstrap: str, topic: str) -> pa.Table:
    """Every committed record of the topic: the fields of its JSON, its partition and offset."""
    messages = list(_messages(bootstrap, topic))
    documents = io.BytesIO(b"\n".join(message.value() or b"{}" for message in messages))
    table = pyarrow.json.read_json(documents)
    table = table.append_column("partition", pa.array([message.partition() for message in messages]))
    return table.append_column("offset", pa.array([message.offset() for message in messages]))


def read_output(output: Path) -> pa.Table:
    """Every row that Spark counts as written."""
    return pa.concat_tables(pyarrow.parquet.read_table(file, partitioning=None) for file in committed_files(output))


def _count_altered(before: pd.DataFrame, after: pd.DataFrame) -> int:
    expected = before.set_index("id").reindex(after["id"]).reset_index(drop=True)
    found = after.drop(columns="id")
    same = (expected == found).fillna(value=False) | (expected.isna() & found.isna())
    return int((~same.all(axis=1)).sum())


def _messages(bootstrap: str, topic: str) -> Iterator[Message]:
    """Every message from the first of each partition to where it ends now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "oracle",  # must be given, is not used
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = set(consumer.list_topics(topic, ANSWER_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        last = time.monotonic()
        while partitions:
            messages = consumer.consume(FETCH, POLL_S)
            if messages:
                last = time.monotonic()
            elif time.monotonic() > last + ANSWER_S:
                raise TimeoutError(f"nothing from partitions {sorted(partitions)} of {topic} for {ANSWER_S:.0f} s")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    partitions.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
