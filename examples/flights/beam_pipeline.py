"""The Beam pipeline: flights from a topic, as they are to another, and their delays by carrier to a third, exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterable

import apache_beam as beam
from apache_beam.transforms.trigger import AccumulationMode, AfterCount, AfterWatermark
from apache_beam.transforms.window import FixedWindows

from headrace.beam import ReadFromKafka, WriteToKafka

Total = tuple[int, int]
"""Flights, and the minutes by which they came late."""

WINDOW_S = 5
DISCOVERY_S = 2
ALLOWED_LATENESS_S = 24 * 3600
SHARDS = 2


def build(pipeline: beam.Pipeline, bootstrap: str, topic: str, copy: str, delays: str) -> None:
    """Put the transforms into a pipeline. It knows nothing of kills: restored from a checkpoint, it continues where it was."""
    flights = pipeline | ReadFromKafka(
        {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "group.id": topic},
        [topic],
        timestamp_policy=ReadFromKafka.create_time_policy,
        commit_offset_in_finalize=True,
        dynamic_read_poll_interval_seconds=DISCOVERY_S,
    )
    _ = flights | "Copy" >> _write(bootstrap, copy)
    totals = (
        flights
        | "Parse" >> beam.Map(carrier_and_delay).with_output_types(tuple[str, Total])
        # A partition that is found late brings flights of windows that have closed: they come as a further total of the window.
        | "Window"
        >> beam.WindowInto(
            FixedWindows(WINDOW_S),
            trigger=AfterWatermark(late=AfterCount(1)),
            accumulation_mode=AccumulationMode.DISCARDING,
            allowed_lateness=ALLOWED_LATENESS_S,
        )
        | "Total" >> beam.CombinePerKey(add)
    )
    pairs = totals | "ToPairs" >> beam.Map(to_pair).with_output_types(tuple[bytes, bytes])
    _ = pairs | "Delays" >> _write(bootstrap, delays)


def _write(bootstrap: str, topic: str) -> WriteToKafka:
    return WriteToKafka(
        {"bootstrap.servers": bootstrap}, topic, delivery="exactly-once", transactional_id_prefix=topic, num_shards=SHARDS
    )


def carrier_and_delay(record: tuple[bytes, bytes]) -> tuple[str, Total]:
    """The carrier of a flight, and the flight's total."""
    flight = json.loads(record[1])
    return flight["carrier"], (1, flight["arr_delay"] or 0)


def add(totals: Iterable[Total]) -> Total:
    """One total of several."""
    flights, minutes = 0, 0
    for more_flights, more_minutes in totals:
        flights, minutes = flights + more_flights, minutes + more_minutes
    return flights, minutes


def to_pair(total: tuple[str, Total]) -> tuple[bytes, bytes]:
    """As it is written: {"flights": 3, "minutes": 17} under the carrier."""
    carrier, (flights, minutes) = total
    return carrier.encode(), json.dumps({"flights": flights, "minutes": minutes}).encode()
