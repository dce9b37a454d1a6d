"""The check of types in `make lint` is itself checked: on reports of pyright with and without a problem."""

from __future__ import annotations

from tests.helpers.typecheck import ROOT, incomplete, pyright, unresolved


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


def test_an_import_of_ours_that_is_not_found_is_named_and_a_librarys_is_not():
    def missing(module: str) -> dict:
        return {
            "rule": "reportMissingImports",
            "file": str(ROOT / "tests" / "x.py"),
            "range": {"start": {"line": 4}},
            "message": f'Import "{module}" could not be resolved',
        }

    report = {"generalDiagnostics": [missing("tests.helpers.gone"), missing("pyflink.table"), {"message": "other"}]}
    assert list(unresolved(report)) == ['tests/x.py:5: Import "tests.helpers.gone" could not be resolved']


def test_settings_in_a_folder_above_the_checkout_are_none_of_its(tmp_path):
    (tmp_path / "pyrightconfig.json").write_text("{}")
    (tmp_path / "other.py").write_text("import not_there\n")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").write_text("")
    (checkout / "ours.py").write_text("")
    assert pyright(root=checkout)["summary"]["filesAnalyzed"] == 1
