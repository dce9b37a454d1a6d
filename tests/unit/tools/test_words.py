"""The words that docs/style.md replaces: none in messages, few elsewhere, and fewer with each change."""

import ast
import json

import pytest

from tests.helpers import words

ALLOWED = json.loads(words.ALLOWANCE.read_text())


@pytest.fixture(scope="module")
def found():
    return words.counts()


def test_no_folder_has_more_than_its_allowance(found):
    """Lower the allowance with `python -m tests.helpers.words --write`; it is never raised."""
    assert {folder: n for folder, n in found["folders"].items() if n > ALLOWED.get(folder, 0)} == {}


def test_the_allowance_is_at_most_a_tenth_of_the_first_count():
    assert sum(ALLOWED.values()) <= 0.10 * words.COUNTED_FIRST


def test_no_message_has_a_replaced_word(found):
    assert found["messages"] == {}


def test_documents_and_public_docstrings_have_at_most_two_percent(found):
    assert found["read"].total() <= 0.02 * words.COUNTED_FIRST


def test_a_replaced_word_in_a_message_is_seen():
    tree = ast.parse('def f():\n    """Fine."""\n    raise UsageError(f"{name} is no topic; nobody is told")')
    assert [words.occurrences(each) for each in words.messages(tree)] == [["is no", "nobody", "told"]]


def test_a_replaced_word_in_a_public_docstring_is_seen_and_one_in_a_private_is_not():
    tree = ast.parse('"""Begins anew."""\ndef f():\n    """A verdict."""\ndef _g():\n    """A verdict."""')
    assert [words.occurrences(each) for each in words.public_docstrings(tree)] == [["Begins", "anew"], ["verdict"], []]


def test_the_style_page_lists_what_is_counted():
    page = (words.ROOT / "docs" / "style.md").read_text().lower()
    assert [word for word in words.WORDS if word.split(",")[0].split(" ")[-1].rstrip("s") not in page] == []
