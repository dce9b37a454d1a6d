"""A session's metrics as OpenTelemetry's: observable instruments, which a meter provider's readers ask. Needs its API.

Names and attributes are those of the Prometheus page. Instruments cannot be rolled back: once closed, they observe nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from headrace.runners.metrics import MetricSpec, MetricType
from headrace.runners.spark.metrics.collector import SPARK_METRICS, MetricSource


class Instruments:
    """Those of one session. Asked by the threads of the provider's readers, until it is closed."""

    def __init__(self, source: MetricSource, provider: MeterProvider) -> None:
        self._source: MetricSource | None = source
        meter = provider.get_meter("headrace")
        for kind in SPARK_METRICS:
            make = meter.create_observable_counter if kind.type is MetricType.COUNTER else meter.create_observable_gauge
            make(kind.name, callbacks=[self._observer(kind)], description=kind.help)

    def close(self) -> None:
        self._source = None

    def _observer(self, kind: MetricSpec) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            source = self._source
            samples = [] if source is None else source.read()
            return [
                Observation(sample.value, dict(zip(kind.labels, sample.labels, strict=True)))
                for sample in samples
                if sample.kind is kind
            ]

        return observe
