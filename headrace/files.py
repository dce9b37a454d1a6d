"""Folders of files: `FileSource` reads each once, `FileSink` writes exactly once.

Others than local ones need `pip install 'headrace[files]'`, Avro `headrace[avro]`.
"""

from headrace.connectors.files import FileFormat, FileSink
from headrace.connectors.files.read.lines import Csv
from headrace.connectors.files.read.source import FileSource

__all__ = ["Csv", "FileFormat", "FileSink", "FileSource"]
