"""A terminal of a test's: what is on it after what was written, as VT100 has it, for the codes that the footer uses."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import termios

TOKEN = re.compile(r"\x1b\[([\d;]*)([A-Za-z])|\x1b([78D])|(\r)|(\n)|([^\x1b])", re.DOTALL)
_LAST = b"\x05"


class Terminal:
    """One end for a process (`end`), and what is on the screen, `above` being what has scrolled out of it."""

    def __init__(self, lines, columns):
        self._ours, self.end = pty.openpty()
        self.resize(lines, columns)
        self.above, self.screen = [], [""] * lines
        self.bottom = lines - 1
        self._row = self._column = 0
        self._saved = (0, 0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # Ctrl-C drops what no process has read

    def resize(self, lines, columns):
        """What programs are reported; the lines stay where they are."""
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, key):
        os.write(self._ours, key)

    def write(self, text):
        """As a process does that knows of no table."""
        os.write(self.end, text.encode())
        self.read()

    def read(self):
        """Take all that was written since, in this process and in others."""
        data = b""
        while select.select([self._ours], [], [], 0)[0]:  # so that there is space for what comes last
            data += os.read(self._ours, 1 << 16)
        os.write(self.end, _LAST)
        while _LAST not in data:
            data += os.read(self._ours, 1 << 16)
        self._take(self._decoder.decode(data.replace(_LAST, b"")))

    def close(self):
        for end in (self._ours, self.end):
            os.close(end)

    @property
    def text(self):
        """All lines, also those above, without what is empty at the end."""
        return "\n".join([*self.above, *self.screen]).rstrip()

    def _take(self, text):
        for match in TOKEN.finditer(text):
            numbers, final, single, back, down, letter = match.groups()
            if final is not None:
                self._control([int(number) for number in numbers.split(";") if number], final)
            elif single == "7":
                self._saved = self._row, self._column
            elif single == "8":
                self._row, self._column = self._saved
            elif single == "D" or down:
                self._down()
            elif back:
                self._column = 0
            else:
                line = self.screen[self._row].ljust(self._column)
                self.screen[self._row] = line[: self._column] + letter + line[self._column + 1 :]
                self._column += 1

    def _control(self, numbers, final):
        if final == "H":
            self._row, self._column = numbers[0] - 1, numbers[1] - 1
        elif final == "A":
            self._row = max(0, self._row - numbers[0])
        elif final == "r":
            self.bottom = (numbers[1] if numbers else len(self.screen)) - 1
            self._row = self._column = 0
        elif final == "K":
            assert numbers == [2]
            self.screen[self._row] = ""
        else:
            raise AssertionError(f"a code that it does not know: {final}")

    def _down(self):
        if self._row == self.bottom:
            self.above.append(self.screen.pop(0))
            self.screen.insert(self.bottom, "")
        else:
            self._row = min(self._row + 1, len(self.screen) - 1)
