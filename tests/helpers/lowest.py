"""The unit tests with the lowest versions that setup.cfg allows: `python -m tests.helpers.lowest`, or `make lowest`.

A lower bound is a promise that no process keeps an eye on: the tests run with the newest versions. Here its own environment,
`.venv-lowest`, has the lowest version of everything that headrace and its extras ask for; what only the tests use is as pinned.
Arguments are pytest's, in place of `tests/unit`. A few minutes the first time; it needs no broker, no Java and no database.
"""

import os
import subprocess
import sys
import venv
from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".venv-lowest"
OF_THE_TESTS = ("demo", "dev", "docs")
"""Extras whose lower bounds are promised to no process."""
SNAPSHOT = "tests/unit/tools/test_exports.py::test_the_public_surface_is_as_recorded"
"""Shows pytest's fixtures, which are other objects in older versions of pytest."""


def requirements(text: str) -> list[Requirement]:
    """The lines of a setting, or of a file, that are requirements."""
    return [Requirement(line) for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]


def extras_of_users(setup: ConfigParser) -> list[str]:
    return [extra for extra in setup["options.extras_require"] if extra not in OF_THE_TESTS]


def tools(setup: ConfigParser, pinned: str) -> list[str]:
    """What only the tests use, at the versions that they run with."""
    extras = setup["options.extras_require"]
    of_users = [setup["options"]["install_requires"], *(extras[extra] for extra in extras_of_users(setup))]
    promised = {canonicalize_name(found.name) for text in of_users for found in requirements(text)}
    wanted = {canonicalize_name(found.name) for extra in ("demo", "dev") for found in requirements(extras[extra])} - promised
    return [str(pin) for pin in requirements(pinned) if canonicalize_name(pin.name) in wanted]


def main(arguments: list[str]) -> None:
    """Make the environment, build headrace in it, run the tests. Ends with pytest's status."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    if not HOME.exists():
        venv.create(HOME, symlinks=True)
    python, tools_file, lowest_file = HOME / "bin" / "python", HOME / "tools.txt", HOME / "lowest.txt"
    tools_file.write_text("\n".join(tools(setup, (ROOT / "requirements" / "test.txt").read_text())) + "\n")
    uv = [sys.executable, "-m", "uv", "--quiet", "pip"]
    extras = [word for extra in extras_of_users(setup) for word in ("--extra", extra)]
    resolving = ["compile", "--resolution", "lowest-direct", "--python", python, "--output-file", lowest_file]
    _run([*uv, *resolving, *extras, "pyproject.toml", tools_file])
    _run([*uv, "install", "--python", python, "--requirement", lowest_file])
    # The kernels are compiled by the lowest Cython and setuptools, too.
    _run([*uv, "install", "--python", python, "--no-deps", "--no-build-isolation", "--reinstall-package", "headrace", "."])
    # What old libraries call of newer ones may be deprecated there, which is no matter of headrace.
    chosen = arguments or ["tests/unit", "--deselect", SNAPSHOT]
    tests = [python, "-m", "pytest", "-q", "-W", "ignore::DeprecationWarning", *chosen]
    sys.exit(subprocess.run(tests, cwd=ROOT, env=_environment(python), check=False).returncode)


def _run(command: list[str | Path]) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def _environment(python: Path) -> dict[str, str]:
    """Processes that the tests start have these versions as well."""
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    own = {"PATH": path, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "VIRTUAL_ENV": str(HOME)}
    return {**os.environ, **own}


if __name__ == "__main__":
    main(sys.argv[1:])
