"""What a user's type checker sees, by pyright: every public name has its types, and the checkout finds its own modules.

    python -m tests.helpers.typecheck

Part of `make lint`. No settings are used: so does an editor that opens the checkout. Of the checkout's own files pyright sees
what they import, gathered in one: all of them take it minutes, and mypy checks them. Two of its processes share the cores.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.helpers.surface import MODULES, names_of

ROOT = Path(__file__).parents[2]
OURS = ("headrace", "enumerator", "connectors", "runners", "pyspark_headrace", "tests", "benchmarks", "examples", "docs")
"""What our own modules' names start with: folders of the checkout."""


def pyright(*arguments: str, root: Path = ROOT) -> dict[str, Any]:
    """Its report on a checkout, which is named, or pyright would check all in a folder above with settings."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(root / "pyproject.toml"), *arguments]
    return json.loads(subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout)


def incomplete(module: str, report: dict[str, Any]) -> Iterator[str]:
    """What of the module's public names has no type, or one that checkers may infer differently."""
    found = report["typeCompleteness"]
    for symbol in found["symbols"]:
        name = symbol["name"].removeprefix(f"{module}.").split(".")[0]
        inner = symbol["name"].startswith(f"{module}.") and name not in names_of(module)
        if not inner and (not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]):
            why = "; ".join(problem["message"].splitlines()[0] for problem in symbol["diagnostics"])
            yield f"{module}: {symbol['name']}: {why}"
    if not found["symbols"]:
        yield f"{module}: pyright finds nothing public in it"


def imported(root: Path) -> dict[str, str]:
    """Our own modules that the checkout's files import, each with the file and line of one such import."""
    found: dict[str, str] = {}
    for path in sorted(path for folder in OURS for path in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            for name in _modules_of(node):
                if name.partition(".")[0] in OURS:
                    found.setdefault(name, f"{path.relative_to(root)}:{node.lineno}")
    return found


def _modules_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def unresolved(root: Path = ROOT) -> list[str]:
    places = imported(root)
    with TemporaryDirectory() as folder:
        file = Path(folder, "imports.py")
        file.write_text("".join(f"import {name}\n" for name in places))
        return list(_missing(pyright(str(file), root=root), places))


def _missing(report: dict[str, Any], places: Mapping[str, str]) -> Iterator[str]:
    for problem in report["generalDiagnostics"]:
        if problem.get("rule") == "reportMissingImports":
            _, name, _ = problem["message"].split('"')
            yield f"{places[name]}: {problem['message']}"


def main() -> int:
    with ThreadPoolExecutor(max_workers=2) as two:
        missing = two.submit(unresolved)
        reports = two.map(lambda module: pyright("--verifytypes", module, "--ignoreexternal"), MODULES)
        problems = [problem for module, report in zip(MODULES, reports, strict=True) for problem in incomplete(module, report)]
        problems += missing.result()
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
