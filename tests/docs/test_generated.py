"""The reference that is generated from code is what the code says."""

import re

import pytest

from docs.tools.generate import GENERATED, MARKED, PAGES, renewed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_what_the_code_says(page):
    text = page.read_text()
    assert renewed(text) == text, "run: python -m docs.tools.generate"


def test_everything_that_can_be_generated_is_on_a_page():
    assert {match[2] for page in PAGES for match in MARKED.finditer(page.read_text())} == GENERATED.keys()


def test_an_option_that_was_changed_by_hand_is_seen():
    page = PAGES[0]
    changed = page.read_text().replace("| `subscribe` |", "| `subscribes` |")
    assert changed != page.read_text()
    assert renewed(changed) == page.read_text()


def test_every_command_is_in_the_reference():
    text = PAGES[2].read_text()
    commands = ("broker", "beam", "warm-up", "lag", "verify", "dump", *(f"transactions {name}" for name in ("list", "abort")))
    assert [name for name in commands if not re.search(rf"^#+ `headrace {name}`", text, re.MULTILINE)] == []
