"""PostgreSQL's changes as a source: each table in chunks, then the log of a logical slot. Needs `pip install headrace[sql]`."""
