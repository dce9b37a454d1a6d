"""Hadoop's globs for names of files, as regular expressions."""

from __future__ import annotations

import functools
import re

from headrace.enumerator.errors import UsageError

_TOKEN = re.compile(r"\\(?P<escaped>.)|\[(?P<negated>[!^]?)(?P<members>\]?(?:\\.|[^\]\\])*)\]|(?P<sign>.)", re.DOTALL)
_MEMBER = re.compile(r"\\?(.)(?:-\\?(.))?", re.DOTALL)
_WILDCARDS = {"*": ".*", "?": ".", "{": "(?:"}
_IN_GROUP = {",": "|", "}": ")"}
_MALFORMED = {"[": "its `[` has no end", "\\": "nothing follows its last `\\`"}


@functools.lru_cache
def name_glob(argument: str, glob: str) -> re.Pattern[str]:
    """What matches the names that the glob does: `?`, `*`, `[abc]`, `[a-c]`, `[^a]` or `[!a]`, `{ab,c*}`, and `\\` as escape.

    Raises UsageError, which names the argument, for a glob that is empty, malformed, or for more than a name.
    """
    if not glob:
        raise _refused(argument, glob, "no name is empty")
    if "/" in glob:
        raise _refused(argument, glob, "names have no `/`: give the folder as the path")
    parts: list[str] = []
    groups = 0
    for token in _TOKEN.finditer(glob):
        sign = token["sign"]
        if token["escaped"]:
            parts.append(re.escape(token["escaped"]))
        elif sign is None:
            parts.append(_one_of(argument, glob, token))
        elif sign in _MALFORMED:
            raise _refused(argument, glob, _MALFORMED[sign])
        else:
            parts.append(_WILDCARDS.get(sign) or (_IN_GROUP.get(sign) if groups else None) or re.escape(sign))
            groups += (parts[-1] == "(?:") - (parts[-1] == ")")
    if groups:
        raise _refused(argument, glob, "its `{` has no end")
    return re.compile("".join(parts), re.DOTALL)


def _one_of(argument: str, glob: str, token: re.Match[str]) -> str:
    """The set as a regular expression has it."""
    members = [(first, last or first) for first, last in _MEMBER.findall(token["members"])]
    if not members:
        raise _refused(argument, glob, f"`{token[0]}` matches nothing")
    if wrong := next((f"{first}-{last}" for first, last in members if first > last), None):
        raise _refused(argument, glob, f"`{wrong}` ends before it starts")
    ranges = "".join(f"{re.escape(first)}-{re.escape(last)}" for first, last in members)
    return f"[{'^' if token['negated'] else ''}{ranges}]"


def _refused(argument: str, glob: str, reason: str) -> UsageError:
    return UsageError(f"{argument} must be a glob for names of files, such as '*.{{csv,txt}}', not {glob!r}: {reason}")
