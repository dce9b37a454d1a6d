"""The table of `headrace run` at the bottom of a terminal, on which others write, too."""

from __future__ import annotations

import os

import pytest

from headrace.cli.watching.footer import LEAST_ABOVE, RESET, Footer, TableBelow
from tests.helpers.terminal import Terminal
from tests.unit.local.test_status import Clock, after, shown

TABLE = ["one", "two", "three", "four", "five"]
LINES = 16


@pytest.fixture
def terminal():
    made = Terminal(LINES, 60)
    yield made
    made.close()


@pytest.mark.parametrize("before", [0, 5, LINES - 1, LINES + 9])
def test_what_others_write_continues_whole_above_the_table(terminal, before):
    footer, written = Footer(terminal.end), [f"before {number}" for number in range(before)]
    terminal.write("".join(f"{line}\n" for line in written))
    terminal.write("half of ")
    footer.draw(TABLE)
    terminal.write("a line\n")
    written.append("half of a line")
    for number in range(30):
        terminal.write(f"line {number}\n")
        written.append(f"line {number}")
        footer.draw([f"{line} {number}" for line in TABLE])
    terminal.read()
    assert terminal.screen[-5:] == [f"{line} 29" for line in TABLE]
    assert [*terminal.above, *terminal.screen[:-5]] == [*written, ""]
    footer.clear()
    terminal.write("$ ")
    assert terminal.text == "\n".join([*written, "$"])
    assert terminal.bottom == LINES - 1


def test_a_viewer_that_was_killed_leaves_the_terminal_to_others_by_one_code(terminal):
    Footer(terminal.end).draw(TABLE)
    terminal.read()
    assert terminal.bottom == LINES - 1 - len(TABLE)
    terminal.write(RESET)
    assert terminal.bottom == LINES - 1


def test_a_terminal_that_is_small_has_as_much_as_there_is_space_for_or_nothing(terminal):
    footer = Footer(terminal.end)
    terminal.resize(LEAST_ABOVE + 4, 4)
    footer.draw(TABLE)
    terminal.read()
    assert [line for line in terminal.screen if line] == ["one", "two", "thr", "fou"]
    for lines, columns in ((LEAST_ABOVE + 3, 4), (1, 1), (0, 0)):
        terminal.resize(lines, columns)
        footer.draw(TABLE)
        terminal.read()
        assert (terminal.text, terminal.bottom) == ("", LINES - 1)


def test_each_frame_is_one_write_since_others_may_write_between_two(terminal, monkeypatch):
    written, real = [], os.write

    def write(file, data):
        written.append(data)
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    footer = Footer(terminal.end)
    footer.draw(TABLE)
    footer.draw(TABLE)
    footer.clear()
    footer.clear()
    assert len(written) == 3


def test_a_job_in_the_background_draws_nothing(terminal, monkeypatch):
    footer = Footer(terminal.end)
    footer.draw(TABLE)
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    footer.draw(TABLE)
    terminal.read()
    assert (terminal.text, terminal.bottom) == ("", LINES - 1)
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    footer.draw(TABLE)
    terminal.read()
    assert terminal.screen[-5:] == TABLE


def test_the_table_is_that_of_top_and_keeps_its_height(tmp_path):
    status = shown(tmp_path, Clock()).shown
    terminal = Terminal(40, 60)
    table = TableBelow(Footer(terminal.end))
    table.show(None)
    terminal.read()
    assert terminal.text == ""
    table.show(status)
    terminal.read()
    height = len(terminal.screen) - 1 - terminal.bottom
    many = [{"number": number, "splits": 1} for number in range(50)]
    table.show({**after(status, 10, 20_000), "workers": many})
    table.show(None)
    terminal.read()
    assert len(terminal.screen) - 1 - terminal.bottom == height
    assert "run-x" in terminal.text
    assert "20,010 (2,000/s)" in terminal.text
    assert max(map(len, terminal.screen)) < 60
    table.close()
    terminal.read()
    assert terminal.text == ""
    terminal.close()
