"""Java's properties files (java.util.Properties.load)."""

from __future__ import annotations

from headrace.enumerator.errors import UsageError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"


def parse_properties(text: str) -> dict[str, str]:
    r"""Name to value: comments, continued lines, `=`, `:` or blanks between the two, and `\` escapes, as Java reads them.

    Raises UsageError for a malformed `\u` escape.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        name, rest = _split_name(line)
        properties[_unescape(name)] = _unescape(rest)
    return properties


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    open_line = ""
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        stripped = natural.lstrip(_BLANK)
        if not open_line and (not stripped or stripped[0] in "#!"):
            continue
        open_line += stripped
        if (len(open_line) - len(open_line.rstrip("\\"))) % 2:
            open_line = open_line[:-1]
            continue
        lines.append(open_line)
        open_line = ""
    return [*lines, open_line] if open_line else lines


def _split_name(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANK:
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:at], rest


def _unescape(text: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            out.append(text[at])
            at += 1
        elif text[at + 1] == "u":
            digits = text[at + 2 : at + 6]
            if len(digits) < 4 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise UsageError(r"the properties file has a \u escape without four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            at += 6
        else:
            out.append(_ESCAPES.get(text[at + 1], text[at + 1]))
            at += 2
    return "".join(out)
