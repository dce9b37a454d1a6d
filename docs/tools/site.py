"""A MkDocs hook: documents of the checkout outside `docs/` become pages of the site, so that links to them work there too.

In a page, a link that leaves `docs/` leads to such a page if the file is one (or a picture); a link to any other file of the
checkout becomes its name, as the site does not have the code.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
FOLDER = "project"
DOCUMENTS = ("*.md", "benchmarks/*.md", "examples/*/README.md", "tests/*/README.md", "benchmarks/results/**/*.svg")
LEFT_OUT = ("README.md",)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def _documents() -> list[str]:
    found = {path.relative_to(ROOT).as_posix() for pattern in DOCUMENTS for path in ROOT.glob(pattern)}
    return sorted(found - set(LEFT_OUT))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents, outside the navigation."""
    for name in _documents():
        file = File.generated(config, f"{FOLDER}/{name}", abs_src_path=str(ROOT / name), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where they are in the site."""
    place = page.file.src_uri
    source = place.removeprefix(f"{FOLDER}/") if place.startswith(f"{FOLDER}/") else f"docs/{place}"

    def led(link: re.Match[str]) -> str:
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            return link[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = name.removeprefix("docs/") if name.startswith("docs/") else f"{FOLDER}/{name}"
        if (ROOT / name).is_dir() and files.get_file_from_path(f"{inside}/README.md"):
            inside = f"{inside}/README.md"
        if name == "README.md":
            inside = "index.md"
        if files.get_file_from_path(inside) is None:
            return link["text"] if link["text"].startswith("`") else f"`{name}`"
        there = os.path.relpath(inside, posixpath.dirname(place) or ".")
        return f"{link['image']}[{link['text']}]({there}{link['anchor'] or ''})"

    return LINK.sub(led, markdown)
