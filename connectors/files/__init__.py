"""Folders of Parquet or JSON lines files as a two-phase-commit sink: local ones, and those of any fsspec filesystem.

from headrace.connectors.files import FileFormat, FileSink

sink = FileSink("/data/flights", FileFormat.PARQUET)
"""

from headrace.connectors.files.formats import FileFormat
from headrace.connectors.files.handles import FileHandle, FileHandleSerializer
from headrace.connectors.files.sink import FileCommitter, FileSink, FileTransaction

__all__ = ["FileCommitter", "FileFormat", "FileHandle", "FileHandleSerializer", "FileSink", "FileTransaction"]
