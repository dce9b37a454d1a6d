"""Documents stay short enough to be read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

KB = 1000
README_BYTES = 8192
README_COLUMNS = 120
CHANGELOG_LINES = 60
PAGE_KB = (2, 15)
ALL_KB = 330
FOLDERS = ("docs", "examples", "tests")
RESULTS = ("benchmarks/RESULTS.md", "benchmarks/results/")
WRITTEN_BY_SCRIPTS = ("docs/design/state-machines.md", "tests/simulation/README.md")


def is_generated(path: Path) -> bool:
    """Whether a script writes the page, wholly or in part, or the site builds it from docstrings."""
    text = path.read_text()
    return path.relative_to(ROOT).as_posix() in WRITTEN_BY_SCRIPTS or "<!-- generated:" in text or "\n::: " in text


def pages() -> list[Path]:
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if not is_generated(path)]


def written() -> Iterator[Path]:
    """Every Markdown file that people write and keep: no generated reference, results, or fragment of the changelog."""
    found = [*ROOT.glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
    found += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    for path in found:
        if not path.relative_to(ROOT).as_posix().startswith(RESULTS) and not is_generated(path):
            yield path


def wide_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if len(line) > README_COLUMNS]


def test_readme_is_one_screen():
    readme = ROOT / "README.md"
    assert readme.stat().st_size <= README_BYTES
    assert wide_lines(readme) == []


def test_the_changelog_is_short():
    """Fragments have one or two sentences, and a release may move older versions to another file."""
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= CHANGELOG_LINES


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_neither_too_long_nor_too_short(path):
    least, most = (kb * KB for kb in PAGE_KB)
    assert path.stat().st_size <= most
    assert path.stat().st_size >= least or path.name == "index.md"


def test_all_markdown_that_people_write():
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in written()}
    assert {"README.md", "docs/tutorial.md", "benchmarks/README.md"} <= sizes.keys()
    assert sum(sizes.values()) <= ALL_KB * KB, sorted(sizes.items(), key=lambda item: -item[1])[:10]


def test_generated_pages_are_recognised():
    assert is_generated(ROOT / "docs/reference/cli.md")
    assert is_generated(ROOT / "docs/reference/kafka.md")
    assert not is_generated(ROOT / "docs/reference/value-formats.md")


def test_a_wide_line_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("x" * README_COLUMNS + "\n" + "y" * (README_COLUMNS + 1) + "\n")
    assert wide_lines(page) == ["y" * (README_COLUMNS + 1)]
