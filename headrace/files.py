"""Folders of files as a sink: `FileSink` writes exactly once. Others than local ones need `pip install 'headrace[files]'`."""

from headrace.connectors.files import FileFormat, FileSink

__all__ = ["FileFormat", "FileSink"]
