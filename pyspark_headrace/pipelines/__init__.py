"""Pipelines as streaming queries of Spark, and positions that move between `headrace run` and Spark's checkpoints."""
