"""The table of metrics: one style of names for a Spark session and for `headrace run`."""

from __future__ import annotations

import re

import pytest

from headrace.runners.metrics import METRICS, MetricScope, MetricSpec, MetricType, metrics_of

UNITS = {"seconds", "bytes"}
"""Prometheus' base units that are used here. Anything else is a count of things, or a state."""


@pytest.mark.parametrize("spec", METRICS.values(), ids=lambda spec: spec.name)
def test_a_name_is_in_prometheus_style_and_ends_with_its_unit(spec: MetricSpec):
    assert re.fullmatch(r"headrace(_[a-z]+)+", spec.name)
    assert not spec.name.endswith("_total")
    last = spec.name.rpartition("_")[2]
    assert (last in UNITS or spec.unit in UNITS) == (last == spec.unit and spec.unit in UNITS)
    assert spec.help
    assert spec.series == (f"{spec.name}_total" if spec.type is MetricType.COUNTER else spec.name)


def test_labels_of_a_metric_are_those_of_its_scope_first():
    assert METRICS["headrace_query_endings"].labels == ("query_id", "query_name", "ending")
    assert METRICS["headrace_sink_open_transactions"].labels == ("destination", "sink_job")
    assert METRICS["headrace_run_lag_records"].labels == ()


def test_every_metric_is_of_one_scope():
    assert [spec for scope in MetricScope for spec in metrics_of(scope)] != []
    assert {spec.name for scope in MetricScope for spec in metrics_of(scope)} == METRICS.keys()
