"""The changelog is collected from fragments, whose names and settings fit each other."""

import re
import tomllib
from collections.abc import Iterable
from typing import Any

from tests.docs.documents import ROOT

FOLDER = ROOT / "changelog.d"


def settings() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "towncrier.toml").read_text())["tool"]["towncrier"]
    return found


def misnamed(names: Iterable[str]) -> list[str]:
    """Those that towncrier would refuse: not `<issue>.<type>.md` or `+<word>.<type>.md`."""
    types = "|".join(each["directory"] for each in settings()["type"])
    return [name for name in names if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({types})\.md", name)]


def test_fragments_are_named_by_issue_and_type():
    assert misnamed(path.name for path in FOLDER.iterdir() if path.name != "README.md") == []


def test_a_misnamed_fragment_is_found():
    assert misnamed(["12.added.md", "+lag.fixed.md", "12.news.md", "notes.md"]) == ["12.news.md", "notes.md"]


def test_releases_are_inserted_into_the_changelog():
    assert settings()["start_string"].strip() in (ROOT / settings()["filename"]).read_text()
    assert settings()["directory"] == FOLDER.name


def test_contributing_lists_the_types():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{each['directory']}`" in text for each in settings()["type"])
