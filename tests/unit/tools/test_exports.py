"""The public surface: what is there, under which one name, and with which arguments; a change of it is seen in review."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from headrace._extras import needs_extra
from tests.helpers.python_path import ROOT, printed
from tests.helpers.surface import MODULES, members, names_of, surface

CHECKPOINT = str(ROOT / "tests" / "unit" / "golden" / "spark_checkpoint")
SNAPSHOT = Path(__file__).with_name("public_surface.txt")


def test_the_public_surface_is_as_recorded():
    """If the change is meant: python -m tests.helpers.surface > tests/unit/tools/public_surface.txt, and a fragment."""
    assert surface() == SNAPSHOT.read_text()


def test_a_changed_signature_is_seen(monkeypatch):
    import headrace.sinks

    monkeypatch.setattr(headrace.sinks, "check_job", lambda job, other=None: job)
    assert surface() != SNAPSHOT.read_text()


def test_every_public_name_is_in_one_public_module():
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for name in names_of(module):
            homes.setdefault(name, []).append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_there_and_documented(module):
    assert import_module(module).__doc__
    for name in names_of(module):
        value = getattr(import_module(module), name)
        if isinstance(value, type) or callable(value):
            assert value.__doc__, name
        if isinstance(value, type):
            undocumented = [member for member in members(value) if not _doc(value, member)]
            assert undocumented == [], name


def _doc(kind: type, member: str) -> str | None:
    """The docstring of a method, or of the one that it overrides; attributes are described by their class."""
    value = inspect.getattr_static(kind, member)
    is_code = isinstance(value, (property, classmethod, staticmethod)) or callable(value)
    return inspect.getdoc(getattr(kind, member)) if is_code else kind.__doc__


def test_public_modules_export_all_that_they_import_of_ours():
    """A name that a user can import from a public module, and that is ours, is public on purpose."""
    for module in MODULES:
        own = ast.parse(Path(import_module(module).__file__ or "").read_text())
        imported = {
            alias.asname or alias.name
            for node in ast.walk(own)  # also within `with _needs_extra(...)`
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace")
            for alias in node.names
            if not (alias.asname or "").startswith("_")
        }
        assert imported <= set(names_of(module)), module


def test_what_examples_and_documents_import_is_public():
    """An example that reaches into an inner module shows that something is missing on the surface."""
    inner = {
        f"{path.relative_to(ROOT)}: {node.module}"
        for path in sorted((ROOT / "examples").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("headrace.connectors", "headrace.runners"))
    }
    assert inner == {"examples/exactly_once/three_sinks.py: headrace.connectors.sql.url"}  # asks the database as the sink does


def test_a_kit_without_pytest_says_what_to_install():
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from headrace.testing import MemoryLog\n"
        "try:\n    from headrace.testing import SourceConformance\n"
        "except ImportError as error:\n    print(error)"
    )
    assert printed(code) == "headrace.testing.SourceConformance needs pytest: pip install 'headrace[testing]'"


@pytest.mark.parametrize(("imports", "library", "extra"), [
    ("import headrace.beam", "apache_beam", "beam"), ("import headrace.delta", "deltalake", "delta"),
    ("import headrace.iceberg", "pyiceberg", "iceberg"), ("from headrace.spark import run", "pyspark", "spark"),
    ("import headrace.sql", "sqlalchemy", "sql"),
])  # fmt: skip
def test_a_module_without_its_library_says_which_extra_brings_it(imports, library, extra):
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        f"try:\n    {imports}\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    assert printed(code) == f"{library} is not installed; run: pip install 'headrace[{extra}]'"


def test_the_package_of_spark_imports_nothing_until_a_name_is_asked_for():
    """Every Python process that Spark starts imports it."""
    code = "import sys, headrace.spark; print(sorted(name for name in sys.modules if name.startswith(('headrace', 'pyspark'))))"
    assert printed(code) == "['headrace', 'headrace.spark']"


@pytest.mark.parametrize("command", [("warm-up",), ("checkpoint", "show", CHECKPOINT), ("checkpoint", "verify", CHECKPOINT)])
def test_a_command_without_pyspark_says_which_extra_brings_it(command):
    code = (
        f"import sys; sys.modules['pyspark'] = None; sys.argv = {['headrace', *command]}; from headrace import cli; cli.main()"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (2, "headrace: pyspark is not installed; run: pip install 'headrace[spark]'\n")


def test_a_library_that_is_missing_for_another_reason_is_no_missing_extra():
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"), needs_extra("sql", "sqlalchemy"):
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")


def test_kafka_is_imported_where_warnings_are_errors():
    """kafka-python reads its schemas with an old call, which is no matter of its users' users."""
    command = [sys.executable, "-W", "error", "-c", "import headrace.kafka"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_errors_and_what_is_in_memory_import_no_client_and_no_engine():
    unwanted = ("pytest", "kafka", "pyspark", "apache_beam", "sqlalchemy", "tenacity")
    code = f"import sys, headrace.errors, headrace.testing; print([name for name in {unwanted} if name in sys.modules])"
    assert printed(code) == "[]"
