"""The check of types in `make lint` is itself checked: on reports of pyright with and without a problem."""

from __future__ import annotations

from tests.helpers.typecheck import ROOT, imported, incomplete, pyright, unresolved


def symbol(name: str, *messages: str, known: bool = True, ambiguous: bool = False) -> dict:
    problems = [{"message": message} for message in messages]
    return {"name": name, "diagnostics": problems, "isTypeKnown": known, "isTypeAmbiguous": ambiguous}


def test_a_name_without_a_type_is_found():
    symbols = [
        symbol("m.good", "No docstring found"),
        symbol("m.bad", "Type is missing\nmore", known=False),
        symbol("m.open", "could be inferred differently", ambiguous=True),
    ]
    report = {"typeCompleteness": {"symbols": symbols}}
    assert list(incomplete("m", report)) == ["m: m.bad: Type is missing", "m: m.open: could be inferred differently"]


def test_a_module_without_names_is_no_success():
    assert list(incomplete("m", {"typeCompleteness": {"symbols": []}})) == ["m: pyright finds nothing public in it"]


def test_an_import_of_ours_that_is_not_found_is_named_and_a_librarys_is_not(tmp_path):
    for folder in ("headrace", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "headrace" / "__init__.py").touch()
    (tmp_path / "headrace" / "there.py").write_text("import numpy.gone\nfrom . import gone\n")
    (tmp_path / "tests" / "x.py").write_text("import headrace.there\n\ndef late():\n    from tests.helpers.gone import x\n")
    assert unresolved(tmp_path) == ['tests/x.py:4: Import "tests.helpers.gone" could not be resolved']


def test_the_imports_of_every_folder_are_looked_at():
    """Of modules that are imported in one folder only."""
    found = imported(ROOT)
    assert {"headrace.testing.servers.guardian", "tests.helpers.sink_rig", "docs.tools.generate", "enumerator"} & found.keys()
    folders = {place.partition("/")[0] for place in found.values()}
    assert {"headrace", "connectors", "runners", "pyspark_headrace", "tests", "benchmarks"} <= folders


def test_settings_in_a_folder_above_the_checkout_are_none_of_its(tmp_path):
    (tmp_path / "pyrightconfig.json").write_text("{}")
    (tmp_path / "other.py").write_text("import not_there\n")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").write_text("")
    (checkout / "ours.py").write_text("")
    assert pyright(root=checkout)["summary"]["filesAnalyzed"] == 1
