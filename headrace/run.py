"""Pipelines in processes of one machine, exactly once, without an engine. Needs the extra `run`.

    from headrace import Pipeline

    pipeline = Pipeline(KafkaSource("localhost:9092", topics=["in"]), KafkaSink("localhost:9092", topic="out"), transform)

    if __name__ == "__main__":
        pipeline.run(workers=4, checkpoints="file:///var/lib/copy")

or, in a shell, `headrace run job.py:pipeline --workers 4 --checkpoints /var/lib/copy`.
"""

from headrace.pipeline import Pipeline
from headrace.runners.local.settings import Retention, RunSettings
from headrace.runners.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart

__all__ = ["ExponentialDelay", "FailureRate", "FixedDelay", "NoRestart", "Pipeline", "Retention", "RunSettings"]
