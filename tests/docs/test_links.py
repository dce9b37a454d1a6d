"""Every relative link of the documents leads somewhere."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, tokens


def targets(path: Path) -> list[str]:
    found = [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in tokens(path)]
    return [target for target in found if target and not re.match(r"[a-z]+:", target)]


def anchors(path: Path) -> set[str]:
    """As GitHub and Python-Markdown make them of headings; and those set by hand, as `{#name}` or `<a id="name">`."""
    found: Counter[str] = Counter()
    names = set(re.findall(r'<a id="([^"]+)"', path.read_text()))
    stream = tokens(path)
    for opening, inline in pairwise(stream):
        if opening.type == "heading_open":
            text = "".join(child.content for child in inline.children or ())
            if by_hand := re.search(r"\{#([\w-]+)\}\s*$", text):
                names.add(by_hand[1])
                continue
            slug = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
            names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
            found[slug] += 1
    return names


def broken(path: Path) -> list[str]:
    found = []
    for target in targets(path):
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            found.append(f"{target}: there is no such file")
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
            found.append(f"{target}: there is no such heading")
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of(path):
    assert broken(path) == []


def test_the_checker_catches_a_missing_file_and_a_missing_heading(tmp_path):
    (tmp_path / "there.md").write_text("# One, two `three`\n\n## Four\n\n## Four\n")
    page = tmp_path / "page.md"
    links = "[a](there.md#one-two-three) [b](there.md#four-1) [c](there.md#five) ![d](gone.svg) [e](https://x.example/)"
    page.write_text(links)
    assert broken(page) == ["there.md#five: there is no such heading", "gone.svg: there is no such file"]


def test_every_make_target_that_is_named_exists():
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (str(path.relative_to(ROOT)), target)
        for path in DOCUMENTS
        for target in re.findall(r"(?:`|\$ |QUICK=1 )make ([a-z-]+)", path.read_text())
    }
    assert len(named) > 5
    assert {(path, target) for path, target in named if target not in there} == set()


def files_named(path: Path) -> set[str]:
    """What is in a document as code and looks like a file or folder of the checkout."""
    code = [token.content for token in tokens(path) if token.type == "code_inline"]
    return {name for name in code if re.fullmatch(r"[\w.-]+(/[\w.-]+)*(\.(py|md|java)|/)", name)}


PLACES = ("", "connectors/kafka", "connectors/formats", "benchmarks", "benchmarks/restore", "headrace", "tests")
ELSEWHERE = {
    "offsets/": "of a Spark checkpoint", "commits/": "of a Spark checkpoint", "demo-output/": "made by the demo",
    "site/": "made by mkdocs", "build/": "made by setuptools", "lines.py": "made by the reader",
    "test_lines.py": "made by the reader", "test_my_sink.py": "made by the reader",
}  # fmt: skip


def missing(path: Path, everywhere: set[str]) -> set[str]:
    """Files named that are not there: with a folder in its place, without one anywhere."""
    named = files_named(path) - ELSEWHERE.keys()
    there = {name for name in named if any((folder / name).exists() for folder in [path.parent, *(ROOT / p for p in PLACES)])}
    return {name for name in named - there if "/" in name.rstrip("/") or name not in everywhere}


@pytest.fixture(scope="module")
def everywhere() -> set[str]:
    package = ("headrace", "pyspark_headrace", "enumerator", "connectors", "runners")
    folders = (*package, "tests", "benchmarks", "examples", "faults")
    return {path.name for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".java", ".md")}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_by(path, everywhere):
    assert missing(path, everywhere) == set()


def test_a_file_that_has_moved_is_seen(tmp_path, everywhere):
    page = tmp_path / "page.md"
    page.write_text("`enumerator/ledger.py`, `ledger.py`, `enumerator/wire.py`, `spark_options.py`, `runners/`, `walkers/`")
    assert missing(page, everywhere) == {"enumerator/wire.py", "spark_options.py", "walkers/"}
