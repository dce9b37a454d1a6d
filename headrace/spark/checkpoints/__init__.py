"""Checkpoints of Spark's streaming queries, read and copied without a session: headrace's, and the JVM connector's."""
