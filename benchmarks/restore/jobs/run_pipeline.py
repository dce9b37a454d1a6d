"""The pipeline of run_copy.py, loaded by each process of the run. `RESTORE_JOB`: a Job (systems.py) as JSON."""

from __future__ import annotations

import json
import os

from headrace import Pipeline
from headrace.kafka import Earliest, KafkaSink, KafkaSource

JOB = json.loads(os.environ["RESTORE_JOB"])

pipeline = Pipeline(
    KafkaSource(
        JOB["bootstrap"],
        topics=[JOB["source"]],
        start=Earliest(),
        columns=["key", "value"],
        discovery_interval_s=JOB.get("discovery_s", 1.0),
    ),
    KafkaSink(JOB["bootstrap"], topic=JOB["target"], commit_topic=f"{JOB['name']}-commits"),
)
