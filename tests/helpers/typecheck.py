"""What a user's type checker sees, by pyright: every public name has its types, and the checkout finds its own modules.

    python -m tests.helpers.typecheck

Part of `make lint`. No settings are used: so does an editor that opens the checkout. Two processes of pyright share the cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.helpers.surface import MODULES

ROOT = Path(__file__).parents[2]
OURS = ("headrace", "enumerator", "connectors", "runners", "pyspark_headrace", "tests", "benchmarks", "examples", "docs")
MISSING = "reportMissingImports"


def pyright(*arguments: str, root: Path = ROOT) -> dict[str, Any]:
    """Its report on a checkout. Its exit status says no more than the report does.

    The checkout is named: by itself pyright takes the settings of a folder above it where there are some, and then checks all
    that is in that folder.
    """
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(root / "pyproject.toml"), *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


def incomplete(module: str, report: dict[str, Any]) -> Iterator[str]:
    """What of the module's public names has no type, or one that checkers may infer differently."""
    found = report["typeCompleteness"]
    for symbol in found["symbols"]:
        if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]:
            why = "; ".join(problem["message"].splitlines()[0] for problem in symbol["diagnostics"])
            yield f"{module}: {symbol['name']}: {why}"
    if not found["symbols"]:
        yield f"{module}: pyright finds nothing public in it"


def unresolved(report: dict[str, Any]) -> Iterator[str]:
    """Imports of our own modules that cannot be resolved."""
    for problem in report["generalDiagnostics"]:
        if problem.get("rule") == MISSING and problem["message"].split('"')[1].split(".")[0] in OURS:
            line = problem["range"]["start"]["line"] + 1
            yield f"{Path(problem['file']).relative_to(ROOT)}:{line}: {problem['message']}"


def main() -> int:
    """Names every problem; 1 if there is one."""
    with ThreadPoolExecutor(max_workers=2) as two:
        checkout = two.submit(pyright)
        reports = two.map(lambda module: pyright("--verifytypes", module, "--ignoreexternal"), MODULES)
        problems = [problem for module, report in zip(MODULES, reports, strict=True) for problem in incomplete(module, report)]
        problems += unresolved(checkout.result())
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
