"""Dead letters of a frame: where its bad records go."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.connectors.base.dead_letters import ADDRESSED_TYPE, DEAD_LETTER
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


def with_dead_letters(frame: DataFrame, topic: str) -> DataFrame:
    """The frame as headrace's Kafka sink writes it with its bad records in `topic`, in the same transactions as its other rows.

    `frame` was read with `onBadRecord=keep` and has the column `deadLetter`, which holds the original record whatever other
    columns there are. What else was done to the frame is of no account, as long as no row with a dead letter was left out: a
    filter on `value` leaves them out, as their `value` is null. Other rows go where the sink's option `topic` says; without it
    by the frame's column `topic`, which is, unless it was changed, the topic that they were read from.

    Called on the driver, also of Spark Connect. Raises UsageError for a frame without the column, or for no topic's name.
    """
    import pyspark.sql.functions as f

    if not _TOPIC_NAME.fullmatch(topic):
        raise UsageError(f"topic must be a topic's name (1 to 249 letters, digits, '.', '_' and '-'), not {topic!r}")
    if DEAD_LETTER not in frame.columns:
        raise UsageError(
            f"the frame has no column {DEAD_LETTER}: read it with onBadRecord=keep, and keep the column in every select; with "
            f".schema(...) ask for it: .schema('value ..., {DEAD_LETTER} struct<key binary, value binary, "
            "headers array<struct<key string, value binary>>>')"
        )
    letter = f.col(DEAD_LETTER)
    parts = [letter.getField(each.name).alias(each.name) for each in ADDRESSED_TYPE if each.name != "topic"]
    to_topic = f.struct(f.lit(topic).alias("topic"), *parts)
    return frame.withColumn(DEAD_LETTER, f.when(letter.isNotNull(), to_topic))
