"""Mutation testing of the modules that decide: each survivor is killed by a test, or has a line why it is equivalent.

    python -m tests.mutants.run [GROUP ...]

mutmut works in a copy of the checkout in which the links of `headrace/` are folders, one copy for each group in `--work`; what
is there is continued with. Each group has the unit tests of its own modules, so that a mutant costs a second. Module-level
tables and decorated functions other than static and class methods are not mutated: tables are checked by tests that walk them.

`equivalent.json` has the survivors that no test can kill, by what they change, and why. The run fails for a survivor that is
not there, and for an entry that fits no survivor.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
# the working directory is on its path, as mutmut expects
AS_MUTMUT = f"import runpy; runpy.run_path({str(FOLDER / 'patient.py')!r}, run_name='__main__')"
RUNS_WITHOUT_RESULT = 5
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "site", "__pycache__", "results", "mutants")


@dataclass(frozen=True)
class Group:
    """Modules that are mutated together, and the tests that shall kill the mutants. Paths without `.py`."""

    modules: Sequence[str]
    tests: Sequence[str]


_CORE = (
    "ledger", "enumerator", "coordinator", "progress", "checkpoint", "envelope", "embedded", "pauses", "source_driver",
    "events", "split", "transitions", "errors",
)  # fmt: skip
GROUPS = {
    "core": Group([f"headrace/enumerator/{name}" for name in _CORE], [
        *(
            "tests/unit/enumerator/test_ledger", "tests/unit/enumerator/test_enumerator",
            "tests/unit/enumerator/test_coordinator", "tests/unit/enumerator/test_progress",
        ),
        *(
            "tests/unit/enumerator/test_checkpoint", "tests/unit/enumerator/test_envelope",
            "tests/unit/enumerator/test_embedded", "tests/unit/enumerator/test_errors",
        ),
        "tests/unit/enumerator/test_source_driver", "tests/regressions/test_restore_and_enumeration",
    ]),
    "commit": Group(["headrace/connectors/base/commit"], ["tests/unit/base/test_commit"]),
    "planner": Group(
        ["headrace/runners/spark/planning", "headrace/runners/spark/stream", "headrace/runners/spark/tasks"],
        ["tests/unit/spark/test_planning", "tests/unit/spark/test_stream"],
    ),
    "fetch-plan": Group(
        ["headrace/connectors/kafka/read/fetch_plan", "headrace/connectors/kafka/read/fetch_index"],
        ["tests/unit/kafka/test_fetch_plan", "tests/unit/kafka/test_fetch_index"],
    ),
    "fetch-protocol": Group(["headrace/connectors/kafka/format/fetch_protocol"], ["tests/unit/kafka/test_fetch_protocol"]),
    "offsets": Group(["headrace/spark/kafka_offsets"], ["tests/unit/spark/test_offsets"]),
    "options": Group(["headrace/spark/options", "headrace/spark/kafka_options"], ["tests/unit/spark/test_options"]),
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Change:
    """What a mutant changes: the function, and its lines before and after, without blanks around them."""

    function: str
    was: str
    now: str


def prepare(group: Group, copy: Path) -> None:
    """A checkout for mutmut. Results that are there stay, and mutmut makes those again whose function has changed."""
    if missing := [path for path in (*group.modules, *group.tests) if not (ROOT / f"{path}.py").exists()]:
        raise FileNotFoundError(f"a group of mutants names files that do not exist: {', '.join(missing)}")
    copy.mkdir(parents=True, exist_ok=True)
    for name in ("headrace", "pyspark_headrace", "tests"):
        mirror(ROOT / name, copy / name)
    for name in ("enumerator", "connectors", "runners"):
        mirror(ROOT / name, copy / "headrace" / name)
    modules = "".join(f"\n    {module}.py" for module in group.modules)
    tests = "".join(f"\n    {test}.py" for test in group.tests)
    settings = "[mutmut]\nsource_paths =\n    headrace\n    pyspark_headrace\n"
    settings += f"only_mutate ={modules}\npytest_add_cli_args_test_selection ={tests}\n"
    # no deadline of a test: while the run is paused the clock continues
    settings += "pytest_add_cli_args =\n    -p\n    no:cacheprovider\n    -o\n    timeout=0\n"
    settings += "on_dependency_change = ignore\nuse_git_change_detection = false\n\n"
    pytest_settings = (ROOT / "setup.cfg").read_text().partition("[tool:pytest]")[2]
    (copy / "setup.cfg").write_text(f"{settings}[tool:pytest]{pytest_settings}")


def mirror(source: Path, target: Path) -> None:
    """As the source is; files that have not changed keep their time, by which mutmut sees what is new."""
    for file in source.rglob("*"):
        there = target / file.relative_to(source)
        if file.is_dir() or "__pycache__" in file.parts or "results" in file.parts:
            continue
        if there.parent.is_symlink():
            there.parent.unlink()
        there.parent.mkdir(parents=True, exist_ok=True)
        if not there.exists() or there.read_bytes() != file.read_bytes():
            shutil.copy(file, there)
            forget(there)


def forget(file: Path) -> None:
    """What mutmut keeps of a file that has changed, and does not renew by itself: a copy; of a test, what it calls, too."""
    checkout = next(parent for parent in file.parents if (parent / "setup.cfg").exists() or parent.parent.name == "groups")
    name = file.relative_to(checkout)
    (checkout / "mutants" / name).unlink(missing_ok=True)
    if name.parts[0] == "tests":
        (checkout / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)


def mutmut(copy: Path, *command: str, quiet: bool = True) -> str:
    environment = {**os.environ, "PYTHONPATH": "", "HYPOTHESIS_PROFILE": "mutants"}
    done = subprocess.run(
        [sys.executable, "-c", AS_MUTMUT, *command], cwd=copy, env=environment, text=True, check=False,
        stdout=subprocess.PIPE if quiet else None,
    )  # fmt: skip
    return done.stdout or ""


def survivors(copy: Path) -> dict[str, str]:
    """Name to status of the mutants that no test has killed, and of those that were not run."""
    found = {}
    for line in mutmut(copy, "results").splitlines():
        name, _, status = line.strip().partition(": ")
        if status and status not in ("killed", "timeout", "caught by type check", "skipped"):
            found[name] = status
    return found


def change_of(copy: Path, mutant: str) -> Change:
    lines = [line for line in mutmut(copy, "show", mutant).splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    function = mutant.rpartition("__mutmut_")[0].replace(".x\u01c1", ".").replace("\u01c1", ".").replace(".x_", ".")
    was = " ".join(line[1:].strip() for line in lines if line[0] == "-")
    return Change(function, was, " ".join(line[1:].strip() for line in lines if line[0] == "+"))


def explained(modules: Iterable[str]) -> dict[Change, str]:
    """The entries of `equivalent.json` for these modules, with their reasons."""
    names = tuple(module.replace("/", ".") + "." for module in modules)
    entries = [entry for entry in json.loads((FOLDER / "equivalent.json").read_text()) if entry["function"].startswith(names)]
    return {Change(entry["function"], entry["was"], entry["now"]): entry["why"] for entry in entries}


def run(copy: Path, children: int) -> None:
    """Every mutant that has no result yet; and those that have survived, as there may be new tests."""
    before = survivors(copy) if (copy / "mutants").exists() else {}
    mutmut(copy, "run", "--max-children", str(children), quiet=False)
    if before:  # mutmut takes them for done
        mutmut(copy, "run", "--max-children", str(children), *before, quiet=False)
    for _ in range(RUNS_WITHOUT_RESULT):  # the run was paused, see patient.py
        ended = [mutant for mutant, status in survivors(copy).items() if status == "segfault"]
        if not ended:
            return
        mutmut(copy, "run", "--max-children", str(children), *ended, quiet=False)


def check(name: str, copy: Path) -> tuple[dict[str, object], list[str]]:
    """Of what mutmut has found in the group: the figures, and what is wrong with them."""
    request, reasons = survivors(copy), explained(GROUPS[name].modules)
    changes = {mutant: change_of(copy, mutant) for mutant in request}
    unexplained = {mutant: change for mutant, change in changes.items() if change not in reasons}
    wrong = [f"{request[name]}: {name}\n    - {each.was}\n    + {each.now}" for name, each in unexplained.items()]
    wrong += [f"explained, and no survivor: {change}" for change in reasons.keys() - set(changes.values())]
    total = len(mutmut(copy, "results", "--all", "true").splitlines())
    if total == 0:
        wrong.append(f"{name}: mutmut has made no mutants; what it says about that is above")
    figures = {"group": name, "modules": list(GROUPS[name].modules), "mutants": total, "survivors": len(request)}
    return {**figures, "explained": len(request) - sum(change not in reasons for change in changes.values())}, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], default=[])
    parser.add_argument("--work", type=Path, default=Path("build/mutants"))
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    failed = False
    for name in given.groups or GROUPS:
        copy = (given.work / "groups" / name).absolute()
        prepare(GROUPS[name], copy)
        run(copy, given.children)
        figures, wrong = check(name, copy)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
        print(json.dumps(figures), *wrong, sep="\n", flush=True)  # noqa: T201
        failed = failed or bool(wrong)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
