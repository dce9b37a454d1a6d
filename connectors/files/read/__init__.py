"""Folders of files as a source: Parquet, JSON lines, CSV, Arrow IPC, Avro and text. `FileSource` is the way in.

`folders` lists and opens files, `cursor` remembers which were found, `discovery` cuts them into splits, `columnar` and `lines`
read the formats by pyarrow and fastavro, `columns` brings their rows into the source's schema, and `reader` hands them on.
"""
