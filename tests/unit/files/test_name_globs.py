"""The globs for names of files match what Hadoop's do, by its documentation of `FileSystem.globStatus`."""

import pytest

from headrace.connectors.files.read.globs import name_glob
from headrace.errors import UsageError
from headrace.files import FileSource

NAMES = ("a.csv", "a.json", "b.json", "c1.json", "c2.jsonl", "d.txt", "^.json", "x{y", "p,q", "s*", "n\n", "u+v", "m]", "é")


@pytest.mark.parametrize(
    ("glob", "matched"),
    [
        ("a.csv", ["a.csv"]),
        ("acsv", []),
        ("?.csv", ["a.csv"]),
        ("?", ["é"]),
        ("*", list(NAMES)),
        ("*.json", ["a.json", "b.json", "c1.json", "^.json"]),
        ("[ab].json", ["a.json", "b.json"]),
        ("[a-c]*.json", ["a.json", "b.json", "c1.json"]),
        ("c[0-13].json", ["c1.json"]),
        ("[^a]*.json", ["b.json", "c1.json", "^.json"]),
        ("[!a]*.json", ["b.json", "c1.json", "^.json"]),
        ("[a^].json", ["a.json", "^.json"]),
        ("^.json", ["^.json"]),
        ("*.{json,jsonl}", ["a.json", "b.json", "c1.json", "c2.jsonl", "^.json"]),
        ("{a,c[12]}.{csv,json{,l}}", ["a.csv", "a.json", "c1.json", "c2.jsonl"]),
        ("{?,c?}.json*", ["a.json", "b.json", "c1.json", "c2.jsonl", "^.json"]),
        ("p,q", ["p,q"]),
        (r"x\{y", ["x{y"]),
        (r"s\*", ["s*"]),
        (r"\d.txt", ["d.txt"]),
        (r"[\]m]]", ["m]"]),
        ("m[]]", ["m]"]),
        ("?[*]", ["s*"]),
        ("u[--.+]v", ["u+v"]),
        ("n?", ["n\n"]),
        ("*}", []),
    ],
)
def test_a_glob_matches(glob, matched):
    assert [name for name in NAMES if name_glob("pattern", glob).fullmatch(name)] == matched


@pytest.mark.parametrize(
    ("glob", "why"),
    [
        ("", "no name is empty"),
        ("day=1/*.csv", "names have no `/`"),
        ("{a,b", "its `{` has no end"),
        ("[ab", r"its `\[` has no end"),
        ("a[]", r"`\[\]` matches nothing"),
        ("[c-a]", "`c-a` ends before it starts"),
        ("a\\", "nothing follows its last"),
    ],
)
def test_a_glob_that_matches_no_name_is_refused(glob, why):
    with pytest.raises(UsageError, match=rf"^pattern must be a glob for names of files, .*: {why}"):
        FileSource("/in", pattern=glob)
