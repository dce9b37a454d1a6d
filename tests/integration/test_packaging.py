"""The distributions: a wheel built from the sdist holds the whole package, the compiled kernel, and nothing generic."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from an sdist built from this checkout, as `python -m build` does."""
    out = tmp_path_factory.mktemp("dist")
    clone = tmp_path_factory.mktemp("clone")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name, follow_symlinks=False)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(clone)], check=True)
    assert len(list(out.glob("*.tar.gz"))) == 1
    (wheel,) = out.glob("*.whl")
    return wheel


def test_a_wheel_puts_two_names_into_site_packages_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"headrace", "pyspark_headrace"}


def test_a_wheel_holds_every_module_of_the_checkout(wheel):
    there = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"{prefix}{path.relative_to(ROOT)}"
        for prefix, folder in (
            ("", "headrace"),
            ("headrace/", "enumerator"),
            ("headrace/", "connectors"),
            ("headrace/", "runners"),
            ("", "pyspark_headrace"),
        )
        for path in (ROOT / folder).rglob("*.py")
    }
    assert not wanted - there
    assert {"headrace/py.typed", "pyspark_headrace/py.typed"} <= there


def test_an_installed_wheel_runs_with_its_compiled_kernels(wheel, tmp_path):
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)], check=True
    )
    code = (
        "import headrace.kafka, headrace.testing;"
        "from headrace.connectors.kafka.format import decode, encode; print(encode.__file__); print(decode.__file__);"
        "print(headrace.kafka.KafkaSource('h:1', topics=['t']).schema.names)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env={"PYTHONPATH": str(site)}
    )
    *kernels, names = out.stdout.splitlines()
    assert len(kernels) == 2
    assert all(kernel.startswith(str(site)) and kernel.endswith(".so") for kernel in kernels)
    assert "timestampType" in names
