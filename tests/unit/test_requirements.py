"""The versions that the tests run with, in requirements/test.txt, are those of what setup.cfg asks for."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]


def pinned() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in lines((ROOT / "requirements" / "test.txt").read_text()):
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def wanted() -> list[Requirement]:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"].values()
    return [Requirement(line) for text in (setup["options"]["install_requires"], *extras) for line in lines(text)]


def test_the_makefile_installs_headrace_with_these_versions():
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line and "--editable" in line]
    assert len(installs) == 1
    assert "--constraint requirements/test.txt" in installs[0]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_what_setup_cfg_asks_for_is_pinned_to_a_version_that_it_allows(requirement):
    pins = pinned().get(canonicalize_name(requirement.name), [])
    assert pins, f"{requirement} has no version in requirements/test.txt: run `make requirements`"
    for pin in pins:
        (version,) = pin.specifier
        assert version.operator == "=="
        assert requirement.specifier.contains(version.version), f"{pin} is not {requirement}: run `make requirements`"
