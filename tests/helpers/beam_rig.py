"""A portable runner in miniature: what a runner does to the two splittable DoFns of a source, step by step.

Every call of `process` is its own bundle; elements, restrictions and watermark states pass through their coders each time,
as between a worker and a runner. Checkpoints are bytes. `lose_reader` takes the whole job back to the last one, as Flink does.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.runners.common import DoFnContext, DoFnInvoker, DoFnSignature, OutputHandler
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.core import _BundleFinalizerParam
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from headrace.enumerator import Source
from headrace.runners.beam.coders import Element, RecordBatchCoder
from headrace.runners.beam.read import ReadFromSource
from headrace.testing import Run


@dataclass(frozen=True)
class Work:
    """An element with what is left of it, encoded."""

    element: Element
    restriction: bytes
    estimator_state: bytes
    timestamp: Timestamp


@dataclass
class Bundle:
    outputs: list[TimestampedValue]
    residuals: list[Work]
    watermark: Timestamp | None
    delay_s: float | None
    finalizer: Any


class _Outputs(OutputHandler):
    def __init__(self) -> None:
        self.values: list[Any] = []
        self.on_output: Callable[[Any], None] = lambda _: None

    def handle_process_outputs(self, windowed_input_element, results, watermark_estimator=None):
        for value in results or ():
            is_stamped = isinstance(value, TimestampedValue)
            stamped = value if is_stamped else TimestampedValue(value, windowed_input_element.timestamp)
            self.values.append(stamped)
            self.on_output(stamped)

    def handle_process_batch_outputs(self, windowed_input_element, results, watermark_estimator=None):
        raise NotImplementedError


class Stage:
    """One splittable DoFn in a worker."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn  # not a copy: the kit counts the calls of its source
        self.fn.setup()
        self._signature = DoFnSignature(self.fn)
        self._state_coder = self._signature.get_watermark_estimator_provider().estimator_state_coder()
        self._coder = self.fn.restriction_coder()
        self.on_output: Callable[[Any], None] = lambda _: None

    def begin(self, element: Element, timestamp: Timestamp = MIN_TIMESTAMP) -> Work:
        restriction = self.fn.initial_restriction(element)
        state = self.fn.initial_estimator_state(element, restriction)
        return Work(element, self._coder.encode(restriction), self._state_coder.encode(state), timestamp)

    def process(self, work: Work) -> Bundle:
        outputs, finalizer = _Outputs(), _BundleFinalizerParam()
        invoker = DoFnInvoker.create_invoker(
            self._signature, output_handler=outputs, context=DoFnContext("step"), input_args=[], input_kwargs={},
            bundle_finalizer_param=finalizer,
        )  # fmt: skip
        self.invoker = invoker
        outputs.on_output = self.on_output
        element = WindowedValue(work.element, work.timestamp, (GlobalWindow(),))
        restriction, state = self._coder.decode(work.restriction), self._state_coder.decode(work.estimator_state)
        residuals = invoker.invoke_process(element, restriction=restriction, watermark_estimator_state=state)
        rest, watermark, delay_s = [], None, None
        for residual in residuals:
            (element, (restriction, state)), size = residual.residual_value.value
            assert size >= 0
            rest.append(Work(element, self._coder.encode(restriction), self._state_coder.encode(state), work.timestamp))
            watermark, delay_s = residual.current_watermark, float(residual.deferred_timestamp)
        return Bundle(outputs.values, rest, watermark, delay_s, finalizer)

    def divide(self, work: Work, fraction: float) -> list[Work]:
        """The runner divides what the call under way has left: what is now another's."""
        _, residuals = self.invoker.try_split(fraction) or ((), ())
        rest = []
        for residual in residuals:
            (element, (restriction, state)), _ = residual.residual_value.value
            rest.append(Work(element, self._coder.encode(restriction), self._state_coder.encode(state), work.timestamp))
        return rest

    def decode(self, work: Work) -> Any:
        return self.fn._format.decode(self._coder.decode(work.restriction))

    def close(self) -> None:
        self.fn.teardown()


@dataclass
class _Job:
    """All that a checkpoint holds."""

    enumerating: list[Work] = field(default_factory=list)
    reading: deque[Work] = field(default_factory=deque)
    delivered: int = 0


class BeamRun(Run):
    """A run of the conformance kit, on the miniature."""

    def __init__(self, source: Source[Any], checkpoint: bytes | None, **options: Any) -> None:
        options = {"publish": True, "read_s": 1e-9, "discovery_interval_s": 1e-9, **options}
        enumerate_fn, read_fn = ReadFromSource(source, **options).stages({})
        self.enumerate, self.read = Stage(enumerate_fn), Stage(read_fn)
        self.batches: list[pa.RecordBatch] = []
        self.timestamps: list[Timestamp] = []
        self.watermarks: dict[Element, Timestamp | None] = {}
        self._finalizers: list[Any] = []
        self._closed = False
        self._durable = checkpoint
        self._begin()

    def _begin(self) -> None:
        if self._durable is None:
            self.job = _Job(enumerating=[self.enumerate.begin(Element(b""))])
        else:
            self.job = pickle.loads(self._durable)
        self._look = True
        self._step_enumerate()

    def step(self, timeout_s: float) -> bool:
        if self._look:
            self._step_enumerate()
        for _ in range(len(self.job.reading)):
            bundle = self._step_read()
            if bundle.outputs:
                return True
        return False

    def calls(self) -> None:
        """One call for every element that has something to read."""
        for _ in range(len(self.job.reading)):
            self._step_read()

    def _step_enumerate(self) -> None:
        self._look = False
        for work in self.job.enumerating:
            bundle = self.enumerate.process(work)
            self.job.enumerating = bundle.residuals
            self._look |= self.enumerate.fn._worker.last_look.more
            for output in bundle.outputs:
                self.job.reading.append(self.read.begin(output.value, output.timestamp))

    def _step_read(self) -> Bundle:
        work = self.job.reading.popleft()
        bundle = self.read.process(work)
        self.job.reading += bundle.residuals
        self._finalizers.append(bundle.finalizer)
        self.watermarks[work.element] = bundle.watermark
        coder = RecordBatchCoder()
        for output in bundle.outputs:
            self.batches.append(coder.decode(coder.encode(output.value)))
            self.timestamps.append(output.timestamp)
        self.job.delivered = len(self.batches)
        return bundle

    def delivered(self) -> list[pa.RecordBatch]:
        return self.batches

    def snapshot(self) -> bytes:
        """A checkpoint that has become durable; no process was reported yet."""
        self.job.delivered = 0
        self._durable = pickle.dumps(self.job)
        self._kept = len(self.batches)
        return self._durable

    def notify(self) -> None:
        """Finalise every bundle that has ended, as Flink's runner does when a checkpoint completes."""
        finalizers, self._finalizers = self._finalizers, []
        for finalizer in finalizers:
            finalizer.finalize_bundle()

    def checkpoint(self) -> bytes:
        data = self.snapshot()
        self.notify()
        return data

    def lose_reader(self) -> None:
        """Flink takes the whole job back; the worker process stays, with all that it keeps."""
        self._finalizers.clear()
        del self.batches[getattr(self, "_kept", 0) :]
        self._begin()

    def look_for_splits(self) -> None:
        self._look = True

    @property
    def finished(self) -> bool:
        """All is read; what was read last may wait to be published."""
        return not self.job.enumerating and not any(self.read.decode(work).reading for work in self.job.reading)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.enumerate.close()
            self.read.close()


def on_direct() -> Any:
    """A pipeline on Beam's runner in Python, whatever else this machine has: its stages run one after the other."""
    return beam.Pipeline(runner=FnApiRunner())
