"""An injected bug, for `PYTHONPATH`: a restored source takes the partitions that it finds for those that it had.

So partitions that were added while it was down are never read; a source without discovery across a restore (KAFKA-12478's kin).
"""

import sys

# Spark's planner, or the process that it is forked from
if {"pyspark.sql.streaming.python_streaming_source_runner", "headrace.runners.spark_processes.zygote"} & set(sys.orig_argv):
    from dataclasses import replace

    from headrace.connectors.kafka.read.discovery import KafkaDiscovery
    from headrace.spark.kafka_offsets import KafkaOffsets

    restore, later = KafkaOffsets.from_json, KafkaDiscovery.later
    restored, ignored = [], set()

    def remember(self, text):
        offsets = restore(self, text)
        if not restored:  # a process that starts a query sees initial offsets first
            restored.append(not offsets.initial)
        return offsets

    def look(self, known):
        findings = later(self, known)
        if restored == [True]:
            restored.append(True)
            ignored.update(split.split_id for split in findings.added)
        return replace(findings, added=[split for split in findings.added if split.split_id not in ignored])

    KafkaOffsets.from_json = remember
    KafkaDiscovery.later = look
