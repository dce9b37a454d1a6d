"""Counts the words that docs/style.md replaces: per folder, in messages, and in what users read.

python -m tests.helpers.words            # counts by word and folder
python -m tests.helpers.words --write    # lowers the committed allowance to today's counts
"""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWANCE = ROOT / "tests" / "unit" / "tools" / "words_allowance.json"
COUNTED_FIRST = 12_107
"""Occurrences when they were first counted: what the limits are fractions of."""

WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "told, tells": (("told", "tells"), r"\b(told|tells)\b"),
    "begins, began": (("begi", "bega", "begun"), r"\b(begins|began|begun)\b|(?<![.\w-])begin\b(?!\()"),
    "worlds": (("world",), r"\bworlds?\b"),
    "letters": (("letters",), r"(?<!dead )(?<!dead-)(?<!dead_)\bletters\b(?!,? (and )?digits| by letter|\))"),
    "nobody": (("body",), r"\b(nobody|somebody|anybody)\b"), "family": (("famil",), r"\b(family|families)\b"),
    "goes on": ((" on",), r"\b(goes on|went on)\b"), "planted": (("planted",), r"planted"),
    "is no": (
        ("is no", "are no"),
        r"(?<!there )(?<!There )\b(is|are) no\b(?! (longer|more|other|such|one|less|later|earlier|better|newer|older)\b)",
    ),
    "seen here": (("seen",), r"seen[ _]here"), "life": (("life", "lives"), r"\b(life|lives)\b"),
    "sweep": (("swe",), r"\b(sweeps?|swept)\b"), "of its own": ((" own",), r"\bof (its|their) own\b"),
    "says that": (("says ",), r"\bsays (that|which|of)\b"), "verdict": (("verdict",), r"verdict"),
    "anew": (("anew",), r"\banew\b"), "rooms": (("room",), r"\brooms?\b"), "census": (("census",), r"\bcensus\b"),
    "who reads": (("who",), r"\bwho (reads|runs)\b|\bwhoever\b"), "stands": (("stand", "stood"), r"\b(stands|stood)\b"),
    "beat": (("beat",), r"\bbeats?\b"), "takes over": ((" over",), r"\b(takes over|taken over)\b"),
    "so many": (("so many",), r"\bso many\b"), "beside": (("beside",), r"\bbeside\b"),
    "incarnation": (("incarnation",), r"incarnation"), "board": (("board",), r"\bboards?\b"),
    "roster": (("roster",), r"roster"), "at work": (("at work",), r"\bat work\b"), "rehearsal": (("rehears",), r"rehears"),
    "ticket": (("ticket",), r"\btickets?\b"), "a look": (("a look",), r"\ba look\b(?!-)"),
    "tally": (("tall",), r"\btall(y|ies)\b"), "left over": (("left ",), r"\bleft (over|open|behind)\b"),
    "settle": (("settle",), r"\bsettled?s?\b"), "undecided": (("undecided",), r"undecided"),
    "the one before": ((" before",), r"\b(the one|those) before\b"), "torn": (("torn",), r"\btorn\b"),
    "parked": (("parked",), r"\bparked\b"), "the heart": (("heart",), r"\bheart\b"), "spent": (("spent",), r"\bspent\b"),
    "doubt": (("doubt",), r"\bdoubt(s|ful)?\b"), "cut off": (("cut off",), r"\bcut off\b"),
    "once more": (("once more",), r"\bonce more\b"), "histories": (("histories",), r"\bhistories\b"),
    "passed over": (("passed",), r"\bpassed over\b"), "patience": (("patience",), r"patience"),
    "by turns": ((" turn",), r"\b(by turns|in turn)\b"), "nursery": (("nurser",), r"nurser(y|ies)"),
    "in silence": (("silence",), r"\bin silence\b"), "let pass": (("let pass",), r"\blet pass\b"),
    "mend": (("mend",), r"\bmend(ed|s)?\b"), "of ours": (("of ours",), r"\bof ours\b"),
    "whose the job is": (("whose",), r"\bwhose (the )?job\b"), "taken back": ((" back",), r"\b(taken|takes) back\b"),
    "exhibit": (("exhibit", "museum"), r"exhibit|museum"), "of before": (("of before",), r"\bof before\b"),
    "had again": ((" had",), r"\bhad again\b|\bis had\b|\bcan be had\b"),
    "can pass": ((" pass",), r"\bcan pass\b|\bpassing condition\b"), "in vain": (("in vain",), r"\bin vain\b"),
    "obey": (("obey",), r"\bobeys?\b"),
}  # fmt: skip
"""Word -> texts of which one is in each match, which are looked for first as that is quick; and what matches."""

PATTERNS = [(stems, re.compile(pattern, re.IGNORECASE)) for stems, pattern in WORDS.values()]
COUNTED = re.compile(r"(\.(py|md|cfg|toml|yml|proto)|Makefile)$")
LEFT_OUT = ("docs/style.md", "tests/helpers/words.py", "tests/unit/tools/test_words.py", "CHANGELOG.md")
PACKAGE = ("headrace/", "pyspark_headrace/", "enumerator/", "connectors/", "runners/")
LOGS = {"debug", "info", "warning", "error", "exception", "critical", "echo", "print", "Option", "Argument", "Typer"}


def files() -> Iterator[Path]:
    """What is counted: tracked text, without results and the pages that quote the words."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in names:
        path = ROOT / name
        if COUNTED.search(name) and not name.startswith("benchmarks/results/") and name not in LEFT_OUT and path.is_file():
            yield path.relative_to(ROOT)


def occurrences(text: str) -> list[str]:
    lower = text.lower()
    found = [match for stems, pattern in PATTERNS if any(stem in lower for stem in stems) for match in pattern.finditer(text)]
    return [match[0] for match in sorted(found, key=lambda match: match.start())]


def messages(tree: ast.Module) -> Iterator[str]:
    """Texts of what is raised, logged or printed, and of the command line's help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in LOGS or name.endswith("Error"):
                constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
                yield " ".join(value for value in constants if isinstance(value, str))


def public_docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of the module and of its public names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_public = isinstance(node, ast.Module) or not node.name.startswith("_")
            yield (ast.get_docstring(node) or "") if is_public else ""


def counts() -> dict[str, Counter[str]]:
    """Occurrences by folder; in messages of the package, and in what users read, by file."""
    found: dict[str, Counter[str]] = {"folders": Counter(), "messages": Counter(), "read": Counter()}
    for path in files():
        name, text = path.as_posix(), (ROOT / path).read_text()
        folder = "/".join(path.parts[: 2 if path.parts[0] in ("tests", "docs", "headrace") else 1])
        found["folders"][folder if len(path.parts) > 1 else "."] += len(occurrences(text))
        if name.startswith(("docs/", "README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/")) and name.endswith(".md"):
            found["read"][name] += len(occurrences(text))
        if name.startswith(PACKAGE) and name.endswith(".py"):
            tree = ast.parse(text)
            found["messages"][name] += sum(len(occurrences(each)) for each in messages(tree))
            found["read"][name] += sum(len(occurrences(each)) for each in public_docstrings(tree))
    return {kind: Counter({key: number for key, number in each.items() if number}) for kind, each in found.items()}


def main() -> None:
    found = counts()
    if "--write" in sys.argv:
        ALLOWANCE.write_text(json.dumps(dict(sorted(found["folders"].items())), indent=2) + "\n")
    for kind, each in found.items():
        print(f"{kind}: {each.total()}")  # noqa: T201 - a command
        for key, number in each.most_common(40):
            print(f"  {number:5} {key}")  # noqa: T201
    words = Counter(word.lower() for path in files() for word in occurrences((ROOT / path).read_text()))
    print(", ".join(f"{word} {number}" for word, number in words.most_common(60)))  # noqa: T201


if __name__ == "__main__":
    main()
