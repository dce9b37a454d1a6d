"""What processes that a test starts can import."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python_path(*folders: Path) -> str:
    """A PYTHONPATH: these folders first, then this checkout, then what is there already."""
    return os.pathsep.join([*map(str, folders), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
