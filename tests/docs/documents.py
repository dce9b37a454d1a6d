"""The documents of this checkout that people read."""

from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
DOCUMENTS = [
    *(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "examples").glob("*/README.md")), *sorted((ROOT / "tests").rglob("README.md")),
]  # fmt: skip


def tokens(path: Path) -> list[Token]:
    flat: list[Token] = []
    for token in MarkdownIt("commonmark").enable("table").parse(path.read_text()):
        flat += [token, *(token.children or ())]
    return flat
