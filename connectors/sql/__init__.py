"""SQL databases as sinks: `SqlSink` (module `sink`) writes exactly once by two-phase commit, `UpsertSink` (`upsert`) by key.

Needs `pip install headrace[sql]`.
"""
