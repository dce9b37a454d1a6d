"""The table of Beam's runners: it names runners that Beam has, and reports about each what it can do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner, SwitchingDirectRunner
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from headrace.runners.beam import flink_options
from headrace.runners.beam.capabilities import RUNNERS, Capabilities, Stages, of_runner

BEAMS = (BundleBasedDirectRunner, DataflowRunner, FlinkRunner, FnApiRunner, PortableRunner, PrismRunner, SwitchingDirectRunner)


def test_the_table_names_classes_of_beam():
    assert {runner.__name__ for runner in BEAMS} == RUNNERS.keys()


@pytest.mark.parametrize(
    ("runner", "stages", "checks", "is_durable"),
    [
        (DataflowRunner, Stages.CONCURRENT, None, True),
        (FlinkRunner, Stages.CONCURRENT, flink_options.refuse, True),
        (PortableRunner, Stages.CONCURRENT, flink_options.refuse, True),
        (PrismRunner, Stages.CONCURRENT, None, False),
        (FnApiRunner, Stages.ONE_BY_ONE, None, False),
        (SwitchingDirectRunner, Stages.DEPENDS, None, False),
    ],
)
def test_what_a_runner_can_do(runner: type[Any], stages: Stages, checks: Any, is_durable: bool):
    pipeline = SimpleNamespace(runner=runner.__new__(runner), options=PipelineOptions([]))
    is_direct = runner in (FnApiRunner, SwitchingDirectRunner)
    assert of_runner(pipeline) == Capabilities(stages, checks, is_durable, has_one_worker=is_direct)


def test_the_portable_runners_own_job_server_is_not_flinks():
    options = PipelineOptions(["--job_endpoint=embed"])
    assert of_runner(SimpleNamespace(runner=PortableRunner(), options=options)) == RUNNERS["FnApiRunner"]


def test_a_runner_that_is_not_in_the_table_streams_and_has_no_checkpoints_for_a_sink():
    assert of_runner(SimpleNamespace(runner=object())) == Capabilities(Stages.CONCURRENT, None)
