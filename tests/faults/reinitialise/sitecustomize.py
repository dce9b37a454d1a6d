"""An injected bug for `PYTHONPATH`: a restore initialises again, in place of what was restored (Beam #31313, #34890)."""

import os
import sys
from dataclasses import replace

if "HEADRACE_PHASE" in os.environ:
    import tests.faults.phase_stops  # noqa: F401 - the benchmark kills in a phase; of two modules of this name Python imports one

# Spark's planner, or the process that it is forked from
if {"pyspark.sql.streaming.python_streaming_source_runner", "headrace.runners.spark_processes.zygote"} & set(sys.orig_argv):
    from headrace.spark.kafka_offsets import KafkaOffsets

    restore = KafkaOffsets.from_json
    parsed = []

    def initialise_again(self, text):
        offsets = restore(self, text)
        is_restored = not parsed and not offsets.initial  # a process that starts a query sees initial offsets first
        parsed.append(text)
        if not is_restored:
            return offsets
        initial = {split.split_id: split for split in self.source.create_discovery().initial().added}
        return replace(offsets, splits={split_id: initial[split_id] for split_id in offsets.splits})

    KafkaOffsets.from_json = initialise_again
