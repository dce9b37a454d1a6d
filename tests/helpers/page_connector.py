"""The connector that docs/how-to/write-a-connector.md makes, as the module `lines`."""

import re
from pathlib import Path

from tests.helpers.python_path import ROOT

PAGE = ROOT / "docs" / "how-to" / "write-a-connector.md"


def write_lines_module(folder: Path) -> None:
    """Write `lines.py` into the folder."""
    block = re.search(r'```python\n(""".*?)```', PAGE.read_text(), re.DOTALL)
    assert block is not None
    (folder / "lines.py").write_text(block[1])
