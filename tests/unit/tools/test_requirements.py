"""The versions that the tests run with, in requirements/test.txt, are those of what setup.cfg asks for."""

import re
from configparser import ConfigParser

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers import lowest
from tests.helpers.python_path import ROOT


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


def test_the_extras_that_the_makefile_installs_exist():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = re.findall(r"EXTRAS := (\S+)", (ROOT / "Makefile").read_text())
    assert len(named) == 2
    assert not {extra for extras in named for extra in extras.split(",")} - set(setup["options.extras_require"])


class TestLowest:
    """What `make lowest` puts into its environment."""

    @pytest.fixture
    def setup(self) -> ConfigParser:
        setup = ConfigParser()
        setup.read_string("""
            [options]
            install_requires =
                kafka-python>=3
            [options.extras_require]
            sql =
                SQLAlchemy>=2
            dev =
                sqlalchemy>=2
                hypothesis>=6
            demo =
            docs =
                mkdocs>=1
        """)
        return setup

    def test_every_extra_but_those_of_the_tests_is_promised(self, setup):
        assert lowest.extras_of_users(setup) == ["sql"]

    def test_what_the_tests_alone_use_is_as_pinned_and_what_is_promised_is_not(self, setup):
        pinned = "hypothesis==6.5\nkafka-python==3.9\nsqlalchemy==2.9\nmkdocs==1.6\n# a comment"
        assert lowest.tools(setup, pinned) == ["hypothesis==6.5"]

    def test_every_promised_requirement_says_from_which_version_on(self):
        setup = ConfigParser()
        setup.read(ROOT / "setup.cfg")
        texts = [setup["options"]["install_requires"]]
        texts += [setup["options.extras_require"][extra] for extra in lowest.extras_of_users(setup)]
        promised = [requirement for text in texts for requirement in lowest.requirements(text)]
        assert len(promised) > 10
        assert not [str(one) for one in promised if ">=" not in str(one.specifier)]


@pytest.mark.parametrize("requirement", wanted(), ids=str)
def test_what_setup_cfg_asks_for_is_pinned_to_a_version_that_it_allows(requirement):
    pins = pinned().get(canonicalize_name(requirement.name), [])
    assert pins, f"{requirement} has no version in requirements/test.txt: run `make requirements`"
    for pin in pins:
        (version,) = pin.specifier
        assert version.operator == "=="
        assert requirement.specifier.contains(version.version), f"{pin} is not {requirement}: run `make requirements`"
