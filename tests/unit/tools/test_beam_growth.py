"""What the benchmark of growth makes of its looks."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

pytest.importorskip("apache_beam")
pytest.importorskip("matplotlib")

from benchmarks.beam_growth import JVMS, Look, draw, growth


def look(minute: float, checkpoint_bytes: int, workers: int) -> Look:
    memory = dict.fromkeys(JVMS, 500)
    return Look(minute * 60, memory, workers, 300, 1, checkpoint_bytes, 40, 0)


LOOKS = [look(minute, 1000 + 50 * minute, 9000 if minute > 5 else 100 * minute) for minute in range(11)]


def test_growth_is_by_the_hour_and_of_the_second_half_alone():
    found = growth(LOOKS)
    assert found["checkpoint_bytes"] == 50 * 60
    assert growth(LOOKS[6:])["workers_bytes"] == 0
    assert found["task_manager_bytes"] == found["heap_bytes"] == 0


def test_of_one_look_nothing_is_known_to_grow():
    assert set(growth(LOOKS[:1]).values()) == {0}


def test_the_plot_is_the_same_bytes_for_the_same_looks(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw(LOOKS, "title", tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert ET.parse(tmp_path / "one.svg").getroot().tag.endswith("svg")
