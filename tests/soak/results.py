"""The results of soaks: printed, and kept in a file with those of other runs."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def kept(results: Iterable[Mapping[str, Any]], path: Path | None) -> Mapping[str, Any]:
    """Print the results of one run, each of which counts what is in the previous one, too. The last one is returned.

    `path`: the file that has it then, behind what other runs have added; None for no file.
    """
    before = json.loads(path.read_text()) if path is not None and path.exists() else []
    result: Mapping[str, Any] = {}
    for result in results:
        sys.stdout.write(f"{json.dumps(result)}\n")
        if path is not None:
            path.write_text(json.dumps([*before, result], indent=1) + "\n")
    return result
