"""What docs/design names in backticks exists in the code."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, tokens
from tests.unit.tools.test_tidy import PACKAGE, modules

NAME = re.compile(r"_*[A-Z]\w*[a-z]\w*|_*[a-z]+(?:_\w+|[A-Z]\w*)|_*[A-Za-z]\w*(?:\.\w+)+")
"""CamelCase, camelCase, snake_case, or a dotted name."""

FOREIGN = {"mapInArrow", "pyspark.daemon", "public.orders"}
"""Spark's, and an example."""


class Code:
    """Its modules, the names that it defines or calls, and the members of its classes."""

    def __init__(self, found: Iterable[tuple[Path, ast.Module]]) -> None:
        files = dict(found)
        self.names = {".".join(path.parts) for file in files for path in (file.with_suffix(""), *file.parents)}
        self.names |= {f"headrace.{name}" for name in self.names}
        self.members: dict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, set[str]] = defaultdict(set)
        for node in (node for tree in files.values() for node in ast.walk(tree)):
            self.names.update(_names(node))
            if isinstance(node, ast.ClassDef):
                self.members[node.name].update(name for inner in ast.walk(node) for name in _names(inner))
                self.bases[node.name].update(name for base in node.bases for name in _named(base))

    def has(self, name: str) -> bool:
        """Whether it is a name of the code, or the member of a class or of what it extends."""
        first, *rest = name.split(".")
        if not rest or first not in self.members:
            return name in self.names or (bool(rest) and set(name.split(".")) <= self.names)
        return first in self.names and all(self._is_member(first, part) for part in rest)

    def _is_member(self, of: str, name: str) -> bool:
        return name in self.members.get(of, ()) or any(self._is_member(base, name) for base in self.bases.get(of, ()))


def _named(base: ast.expr) -> Iterator[str]:
    for node in ast.walk(base):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name
        case ast.Name():
            yield node.id
        case ast.Attribute():
            yield node.attr
        case ast.arg():
            yield node.arg
        case ast.Constant(value=str()):
            yield node.value


def unknown(page: Path, code: Code) -> list[str]:
    """Names in backticks that the code does not have. Paths, commands and files are left out."""
    quoted = (token.content.split("(")[0] for token in tokens(page) if token.type == "code_inline")
    return [name for name in quoted if NAME.fullmatch(name) and not name.endswith((".py", ".proto")) and not code.has(name)]


@pytest.fixture(scope="module")
def code() -> Code:
    return Code(modules(*PACKAGE))


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "design").glob("*.md")), ids=lambda page: page.name)
def test_what_a_design_document_names_exists(page, code):
    assert set(unknown(page, code)) - FOREIGN == set()


def test_a_name_that_the_code_does_not_have_is_found(tmp_path, code):
    page = tmp_path / "page.md"
    page.write_text(
        "`CommitCore`, `Ledger.add`, `EagerEnumerator.ledger`, `NoSuchCore`, `Ledger.no_such`, `no_such_name(x)`.\n"
    )
    assert unknown(page, code) == ["NoSuchCore", "Ledger.no_such", "no_such_name"]
