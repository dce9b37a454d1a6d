"""What the project promises of its own code, read from the code."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.python_path import ROOT, printed

OURS = ("headrace", "enumerator", "connectors", "runners", "pyspark_headrace", "tests", "benchmarks", "examples")
CHANGES_OF_LISTS = {"append", "insert", "extend"}
LONGEST_FUNCTION = 70
FEWEST_MODULES = 4
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):  # which follows no link
            yield path.relative_to(ROOT), parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(autouse=True, scope="module")
def _parsed_trees_are_let_go() -> Iterator[None]:
    """They have a million and a half nodes, at which the collector would look in all later tests of this process."""
    yield
    parsed.cache_clear()


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_the_core_imports_nothing_but_the_standard_library_and_pyarrow():
    allowed = sys.stdlib_module_names | {"pyarrow"}
    foreign = {
        f"{path}: {name}"
        for path, tree in modules("enumerator")
        for name in imported(tree)
        if name.split(".")[0] not in allowed and not name.startswith("headrace.enumerator")
    }
    assert not foreign


def test_benchmarks_and_examples_do_not_reach_into_tests():
    reached = {
        f"{path}: {name}"
        for path, tree in modules("benchmarks", "examples", "headrace", "pyspark_headrace")
        for name in imported(tree)
        if name.split(".")[0] == "tests"
    }
    assert not reached


def test_what_is_imported_is_found_by_its_place_and_not_by_a_changed_path():
    changed = {
        f"{path}:{node.lineno}"
        for path, tree in modules(*OURS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in CHANGES_OF_LISTS and ast.unparse(node.value) == "sys.path"
    }
    assert {place.rpartition(":")[0] for place in changed} == {"runners/job_file.py"}  # for the user's own modules


IMPORTERS = {"import_module", "__import__", "importlib.import_module", "importlib.__import__"}
OUR_NAME = re.compile(rf"({'|'.join(OURS)})(\.\w+)*\.?")


def texts(tree: ast.AST) -> Iterator[str]:
    """All literal texts in it. Of an f-string the parts are."""
    yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def constants_of(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The names that a module gives values to, each with the values of its whole statement."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from ((name.id, node.value) for name in ast.walk(target) if isinstance(name, ast.Name))


def imported_by_text(trees: Mapping[str, ast.Module]) -> set[str]:
    """Functions that import a module, and use a text which names one of ours: a literal, or a constant of any module."""
    every = [constant for tree in trees.values() for constant in constants_of(tree)]
    constants = {name for name, value in every if any(map(OUR_NAME.fullmatch, texts(value)))}
    found = set()
    for path, tree in trees.items():
        for scope in ast.walk(tree):
            if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                continue
            own = ast.Module([node for node in scope.body if not isinstance(node, DEFINITIONS)], [])
            calls = [
                node.lineno for node in ast.walk(own) if isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTERS
            ]
            used = {node.id for node in ast.walk(own) if isinstance(node, ast.Name)}
            if calls and (used & constants or any(map(OUR_NAME.fullmatch, texts(own)))):
                found.add(f"{path}:{calls[0]}")
    return found


def test_no_module_of_ours_is_imported_by_a_text():
    """Neither a reader nor import-linter sees such an import."""
    assert not imported_by_text({str(path): tree for path, tree in modules(*PACKAGE, "benchmarks", "examples")})


@pytest.mark.parametrize("code", [
    "import_module('pyspark_headrace')", "def f(): return importlib.import_module('headrace.spark.format').headrace_format()",
    "HOOK, OTHER = 'pyspark_headrace', 'x'\ndef f(): __import__(HOOK)",
    "def f(name): import_module(f'headrace.testing.{name}')",
    "LOADED = [f'headrace.run.{name}' for name in ('a', 'b')]\ndef f():\n for name in LOADED: import_module(name)",
    "class A:\n async def f(self):\n  name = 'enumerator.events'\n  import_module(name)",
])  # fmt: skip
def test_an_import_by_a_text_is_seen(code):
    assert imported_by_text({"example.py": ast.parse(code)})


@pytest.mark.parametrize("code", [
    "def f(name): import_module(name)", "import_module('pyspark.sql')", "MODULE = 'headrace.cli'\ndef f(): import_module('x')",
])  # fmt: skip
def test_an_import_by_a_text_that_is_not_ours_is_none(code):
    assert not imported_by_text({"example.py": ast.parse(code)})


def test_only_a_few_modules_use_kafka_pythons_internals():
    users = {
        str(path)
        for path, tree in modules("headrace", "enumerator", "connectors", "runners", "pyspark_headrace")
        for name in imported(tree)
        if name.split(".")[0] == "kafka" and name.count(".") > 0
    }
    public = {"headrace/testing/servers/kafka/topics.py", "headrace/testing/servers/kafka/metadata.py"}
    wire = "connectors/kafka/client/wire/"
    fake = "headrace/testing/fake_kafka/protocol.py"
    assert users - public == {wire + "__init__.py", wire + "failures.py", wire + "handshake.py", wire + "protocol.py", fake}


PRIVATE_OF_PYSPARK = "runners/spark/private.py"
PROGRAMS_OF_PYSPARK = re.compile(
    r"pyspark\.(cloudpickle|daemon|java_gateway|serializers|worker|sql\.(classic|worker)|sql\.streaming\.python_\w+)\b"
)


def underscored(tree: ast.Module) -> Iterator[str]:
    """The attributes with an underscore that a module uses, of anything but the standard library, and does not have itself."""
    nodes = list(ast.walk(tree))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    yield from (node.attr for node in attributes if node.attr not in own and ast.unparse(node.value) not in ("os", "sys"))


def test_only_one_module_uses_pysparks_underscore_names():
    trees = {str(path): tree for path, tree in modules(*PACKAGE)}
    fenced = set(underscored(trees[PRIVATE_OF_PYSPARK])) | {"_jdf", "_jsc"}
    assert fenced >= {"_active_spark_context", "_gateway", "_jvm", "_jsparkSession", "_jsq", "_jwrite"}
    ours = {
        node.attr
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    found = {
        f"{path}: {name}"
        for path, tree in trees.items()
        for name in underscored(tree)
        if path != PRIVATE_OF_PYSPARK
        and (name in fenced or (name not in ours and any(module.split(".")[0] == "pyspark" for module in imported(tree))))
    }
    assert not found


def test_only_a_few_modules_import_or_replace_parts_of_pyspark_that_it_does_not_document():
    importers = {str(path) for path, tree in modules(*PACKAGE) if any(map(PROGRAMS_OF_PYSPARK.match, imported(tree)))}
    supervision = "runners/spark/supervision/"
    of_supervision = {supervision + "jobs.py", supervision + "query_hooks.py"}
    assert importers == {"headrace/spark/preload.py", PRIVATE_OF_PYSPARK} | of_supervision
    patching = {str(path) for path, tree in modules(*PACKAGE) if "unittest.mock" in imported(tree)}
    assert patching == {supervision + "dry_run.py", supervision + "query_hooks.py"}


ENGINE = re.compile(r"\b(spark|flink|beam)(?!-\d)", re.IGNORECASE)  # SPARK-26267 is a token

# Prose about engines in connectors, by file: what the line says, and why a connector has to say it.
MAY_NAME_AN_ENGINE = {
    "connectors/__init__.py": ["`headrace.enumerator.source.Source` (`kafka`, `beam`)"],  # the connector's name
    "connectors/base/sink.py": ["Modelled on Flink's two-phase-commit sinks (FLIP-143,"],  # the design's source
    "connectors/kafka/read/source.py": ["Flink's default (partition.discovery.interval.ms)"],  # the number's source
    "connectors/kafka/format/decode.py": [  # the schema is one that users know from there; and where a number was measured
        "The columns of Spark's Kafka source, in its order.",
        "Measured on Spark:",
        "names and types of Spark's own Kafka source.",
        "All are nullable, as Spark",
        "null for a record without headers, as Spark has it.",
    ],
    "connectors/files/formats.py": ["JSON lines as Spark's `to_json` writes values."],  # the format's definition
    "connectors/formats/json_times.py": ["What Spark's `from_json` does is done", "as Spark has them (`+02:00`, `GMT+2`)"],
    "connectors/tables/statistics.py": ["# as Spark writes it"],  # what its reader takes
    "connectors/formats/json_lines.py": ["Spark's `to_json` gives it and its JSON reader takes."],
    "connectors/files/sink.py": ["Spark, Hive and pyarrow's datasets ignore names that start with `_`."],  # its readers
}


def test_connectors_know_no_engine_in_words_either():
    """`connectors/beam` reads Beam's sources, and is about Beam."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "connectors").rglob("*.py")):
        if "connectors/beam/" not in path.as_posix():
            lines = [line for line in path.read_text().splitlines() if ENGINE.search(line)]
            found |= {str(path.relative_to(ROOT)): lines} if lines else {}
    assert found.keys() == MAY_NAME_AN_ENGINE.keys()
    for path, lines in found.items():
        assert len(lines) == len(MAY_NAME_AN_ENGINE[path]), (path, lines)
        for line, allowed in zip(lines, MAY_NAME_AN_ENGINE[path], strict=True):
            assert allowed in line, path


def test_a_package_of_fewer_than_four_modules_says_why():
    """Its docstring gives the reason, behind the word "because"."""
    small = {
        str(folder.relative_to(ROOT))
        for name in PACKAGE
        for init in (ROOT / name).rglob("__init__.py")
        if not any(part.is_symlink() for part in init.parents)
        and len([*(folder := init.parent).glob("[!_]*.py"), *folder.glob("*/__init__.py")]) < FEWEST_MODULES
        and " because " not in " ".join((ast.get_docstring(ast.parse(init.read_text())) or "").split())
    }
    assert not small


def test_functions_are_short():
    long = {
        f"{path}:{node.lineno} {node.name} ({node.end_lineno - node.lineno + 1} lines)"
        for path, tree in modules(*OURS)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    }
    assert not long


@pytest.mark.parametrize("module", ["headrace", "headrace.enumerator", "pyspark_headrace"])
def test_importing_imports_no_client_library_and_no_other_engine(module):
    others = set() if module == "pyspark_headrace" else {"pyspark"}
    forbidden = {"kafka", "apache_beam", "sqlalchemy", "grpc", "confluent_kafka"} | others
    code = f"import sys, {module}; print([m for m in {sorted(forbidden)} if m in sys.modules])"
    assert printed(code, ROOT / "tests") == "[]"


PACKAGE = ("headrace", "enumerator", "connectors", "runners", "pyspark_headrace")


def test_a_public_class_name_means_one_thing():
    places: dict[str, list[str]] = {}
    for path, tree in modules(*PACKAGE):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


NOT_SANS_IO = ("checkpoint", "embedded", "envelope", "source", "source_driver")
SANS_IO = {
    *(str(path) for path, _ in modules("enumerator") if path.stem not in NOT_SANS_IO), "connectors/base/commit.py",
    "runners/beam/table_epochs.py", "runners/beam/shard.py", "runners/local/balanced.py", "runners/local/core.py",
    "runners/local/events.py",
}  # fmt: skip
"""The cores that take events and give commands. The rest of the core: JSON, the smallest runner, connectors' interfaces, and
what calls these.
"""


def test_the_cores_without_io_name_every_type_and_know_no_clock_and_no_thread():
    impure = {"threading", "time", "socket", "asyncio", "logging", "random", "datetime", "multiprocessing", "concurrent"}
    found = {
        f"{path}: {name}"
        for path, tree in modules("enumerator", "connectors", "runners/beam", "runners/local")
        if str(path) in SANS_IO
        for name in (*imported(tree), *(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))
        if name == "Any" or name.split(".")[0] in impure
    }
    assert not found
