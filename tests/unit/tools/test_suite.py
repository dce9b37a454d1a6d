"""What the tests promise of themselves: none hangs, none passes without having looked, properties meet new examples."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parents[2]
LONGEST_S = 300


def test_a_test_without_a_mark_of_its_own_ends(pytestconfig):
    assert 0 < float(pytestconfig.getini("timeout")) <= LONGEST_S


def test_the_reasons_of_skips_are_printed(pytestconfig):
    assert "s" in pytestconfig.getoption("reportchars")


def is_property(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).startswith("given(") for each in function.decorator_list)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, and not in one that it defines."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from statements(child)


def bodies(function: ast.FunctionDef) -> Iterator[object]:
    """Of the function, and of what branches in it."""
    yield function.body
    for each in statements(function):
        yield from (getattr(each, name, None) for name in ("body", "orelse"))


def early_ends(text: str) -> list[str]:
    """Tests with a branch that only returns: a case that was left out passes. A property may do so, of one example."""
    return [
        function.name
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_") and not is_property(function)
        if any(isinstance(body, list) and len(body) == 1 and isinstance(body[0], ast.Return) for body in bodies(function))
    ]


def test_no_test_returns_where_it_should_skip():
    found = {str(path.relative_to(TESTS)): early_ends(path.read_text()) for path in TESTS.rglob("test_*.py")}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(("body", "found"), [
    ("def test_a(x):\n    if x:\n        return\n    assert x", ["test_a"]),
    ("def test_a(x):\n    def inner():\n        return 1\n    assert inner()", []),
    ("@given(st.integers())\ndef test_a(x):\n    if x:\n        return\n    assert x", []),
    ("class TestA:\n    def test_b(self):\n        return", ["test_b"]),
    ("def test_a(x):\n    try:\n        f(x)\n    except E:\n        return\n    assert x", ["test_a"]),
    ("def test_a(x):\n    if x:\n        assert f(x)\n        return\n    assert g(x)", []),
])  # fmt: skip
def test_a_test_that_returns_is_seen(body, found):
    assert early_ends(body) == found


def test_properties_meet_new_examples_in_every_run_and_say_how_to_repeat_a_failure():
    assert not settings.default.derandomize
    assert settings.default.print_blob
    fixed = [
        path.name for path in (TESTS / "unit").rglob("*.py") if "derandomize=" in path.read_text() and path != Path(__file__)
    ]
    assert fixed == []
