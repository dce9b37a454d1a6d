"""The distributions and every way to install: what is imported, compiled, found by Spark, and what is orphaned.

Installed is into environments that have nothing of headrace. They borrow what headrace needs from the environment that runs the
tests: a folder of links to all that is installed there, but headrace, is on their path. That is a fair test: it is about where
pip puts headrace, and from where headrace is then imported, and the same libraries would come from the index in minutes instead
of seconds. What it cannot show is a requirement that is not declared, of headrace's build. README's copy of a topic runs where
there is nothing but what the extra `run` declares, and what that needs one after another, as after `pip install '.[run]'`.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from headrace.errors import RetriableError
from headrace.runners.waiting import wait_until
from headrace.testing.servers.kafka import BrokerCluster, create_topic
from tests.helpers.kafka_rig import write_records
from tests.helpers.sink_rig import read_pairs

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
OURS = ("headrace", "__editable__", "pyspark_headrace")
IMPORT = (
    "import headrace.kafka, headrace.spark;"
    "from headrace.connectors.kafka.format import decode, encode; print(decode.__file__); print(encode.__file__);"
    "from headrace.connectors.formats.avro import decode, encode; print(decode.__file__); print(encode.__file__)"
)
# What Spark runs in a Python process to find data sources; the answer is a count, and for each its name and the pickled class.
LOOK_UP = """
import io, struct
from pyspark.sql.worker.lookup_data_sources import _main
answer = io.BytesIO()
_main(io.BytesIO(), answer)
answer.seek(0)
def read():
    (size,) = struct.unpack("!i", answer.read(4))
    return size
for _ in range(read()):
    print(answer.read(read()).decode())
    answer.read(read())
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the folder of links that it borrows from."""

    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", {"base": str(self.home), "platbase": str(self.home)}))

    def install(self, *what: str | Path) -> None:
        command = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", "install", "--quiet"]
        done = run([*command, "--no-deps", "--no-build-isolation", "--no-index", *what], Path("/"))
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return run([self.python, "-c", code], cwd)


def run(command: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Without what the tests' own environment says about Python."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL_ENV"))}
    return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)


def environment(home: Path, without: Sequence[str] = (), only: Collection[str] | None = None) -> Environment:
    """One that borrows all that is installed here but headrace and `without`; or `only` what has these names."""
    borrowed = home / "borrowed"
    borrowed.mkdir(parents=True)
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(folder).iterdir():
            is_lent = entry.suffix != ".pth" if only is None else entry.name in only
            if is_lent and not entry.name.lower().startswith((*OURS, *without)):
                (borrowed / entry.name).symlink_to(entry)
    venv.create(home / "environment", symlinks=True)
    made = Environment(home / "environment")
    (made.site_packages / "borrowed.pth").write_text(f"{borrowed}\n")
    return made


def clone(target: Path) -> Path:
    """What git has of this checkout, with what is not committed yet, and nothing that was built."""
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT).stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    assert not list(target.rglob("*.so"))
    return target


@pytest.fixture(scope="module", autouse=True)
def _compiler_in_a_hurry(tmp_path_factory) -> Iterator[None]:
    """Compiles without optimisation: a fifth of the time, for modules that are imported and no more."""
    compiler = tmp_path_factory.mktemp("compiler") / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC") or sysconfig.get_config_var("CC")} "$@" -O0\n')
    compiler.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", str(compiler))
        yield


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """An sdist built from a clone, and a wheel built from the sdist, as `python -m build` does."""
    out = tmp_path_factory.mktemp("dist")
    checkout = clone(tmp_path_factory.mktemp("clone"))
    done = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, checkout], checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(distributions) -> Path:
    (found,) = distributions.glob("*.whl")
    return found


@dataclass(frozen=True)
class Installed:
    """What was installed from a checkout, and how."""

    environment: Environment
    checkout: Path
    editable: bool


@pytest.fixture(scope="module", params=["pip install .", pytest.param("pip install -e .", marks=pytest.mark.long)])
def installed(request, tmp_path_factory) -> Installed:
    checkout, made = clone(tmp_path_factory.mktemp("clone")), environment(tmp_path_factory.mktemp("home"))
    editable = "-e" in request.param
    deleted = checkout / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "headrace" / "deleted.py"
    deleted.parent.mkdir(parents=True)  # what an earlier build has left of a module that there was
    deleted.touch()
    made.install(*(["--editable"] if editable else []), checkout)
    return Installed(made, checkout, editable)


@pytest.fixture(scope="module")
def unbuilt(tmp_path_factory) -> Path:
    return clone(tmp_path_factory.mktemp("unbuilt"))


# --- what the distributions hold ----------------------------------------------------------------------------------------
def modules() -> set[str]:
    folders = (
        ("", "headrace"), ("headrace/", "enumerator"), ("headrace/", "connectors"), ("headrace/", "runners"),
        ("", "pyspark_headrace"),
    )  # fmt: skip
    kinds = ("*.py", "*.pxd")
    return {
        f"{prefix}{path.relative_to(ROOT)}" for prefix, top in folders for kind in kinds for path in (ROOT / top).rglob(kind)
    }


def test_a_wheel_puts_two_names_into_site_packages_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"headrace", "pyspark_headrace"}


def test_a_wheel_holds_every_module_of_the_checkout(wheel):
    there = set(zipfile.ZipFile(wheel).namelist())
    assert not modules() - there
    assert {"headrace/py.typed", "pyspark_headrace/py.typed"} <= there


def test_an_sdist_holds_every_module_and_no_link_and_nothing_compiled(distributions):
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    assert not modules() - names
    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert not [name for name in names if name.endswith(".so")]


def links_of(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_what_an_index_shows_has_no_link_that_leads_nowhere(wheel):
    """Built where no one knows the repository: links into it are text."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    assert "Project-URL" not in metadata
    assert "glossary" in metadata  # the text of a link stays
    assert links_of(metadata)
    assert not [link for link in links_of(metadata) if not link.startswith(("https://", "#"))]


def test_a_release_shows_links_into_its_repository_which_lead_to_files_that_are_there():
    github = {"GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": "some-owner/headrace"}
    version = run([sys.executable, "setup.py", "--version"], ROOT).stdout.split()[-1]
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in github.items():
            patch.setenv(variable, value)
        shown = run([sys.executable, "setup.py", "--long-description"], ROOT).stdout
    own = [link for link in links_of(shown) if link.startswith("https://forge.example/")]
    assert len(own) > 20
    for link in own:
        place, _, file = link.removeprefix("https://forge.example/some-owner/headrace/").partition(f"/v{version}/")
        assert place in ("blob", "raw"), link
        assert (ROOT / file.partition("#")[0]).exists(), link


# --- from where it is imported ------------------------------------------------------------------------------------------
def kernels(environment: Environment, cwd: Path) -> list[str]:
    done = environment.run(IMPORT, cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_installed_wheel_runs_with_its_compiled_kernels(wheel, tmp_path):
    made = environment(tmp_path)
    made.install(wheel)
    found = kernels(made, Path("/"))
    assert len(found) == 4
    assert all(kernel.startswith(str(made.site_packages)) and kernel.endswith(".so") for kernel in found)


def test_from_anywhere_the_installed_one_runs_compiled(installed):
    place = installed.checkout if installed.editable else installed.environment.site_packages
    found = kernels(installed.environment, Path("/"))
    assert all(kernel.startswith(str(place)) and kernel.endswith(".so") for kernel in found)


def test_from_the_checkouts_folder_the_checkout_runs_compiled(installed):
    found = kernels(installed.environment, installed.checkout)
    assert all(kernel.startswith(str(installed.checkout)) and kernel.endswith(".so") for kernel in found)


@pytest.mark.parametrize("in_checkout", [False, True], ids=["from anywhere", "from the checkout's folder"])
def test_spark_finds_the_format(installed, in_checkout):
    done = installed.environment.run(LOOK_UP, installed.checkout if in_checkout else Path("/"))
    assert done.stdout.split() == ["headrace"], done.stderr


def test_no_pth_file_of_ours_and_no_tree_of_links_is_left(installed):
    site_packages = installed.environment.site_packages
    by_setuptools = {file.name for file in site_packages.glob("__editable__.headrace-*.pth")}
    assert {file.name for file in site_packages.glob("*.pth")} == {"borrowed.pth"} | by_setuptools
    assert len(by_setuptools) == installed.editable
    for name in by_setuptools:
        assert (site_packages / name).read_text().splitlines() == [str(installed.checkout)]
    assert not [path for path in site_packages.rglob("*") if path.is_symlink()]


def test_a_module_that_was_deleted_since_the_last_build_is_not_installed(installed):
    assert (installed.environment.site_packages / "headrace").is_dir() is not installed.editable
    assert not (installed.environment.site_packages / "headrace" / "deleted.py").exists()


def test_a_kernel_of_another_source_is_not_imported_from_the_checkout(installed):
    source = installed.checkout / "connectors" / "kafka" / "format" / "decode.py"
    before = source.read_bytes()
    try:
        source.write_bytes(before + b"# edited\n")
        done = installed.environment.run("import headrace.kafka", installed.checkout)
    finally:
        source.write_bytes(before)
    assert done.returncode == 1
    assert "was compiled from another decode.py" in done.stderr.splitlines()[-1]


# --- what is declared is enough -----------------------------------------------------------------------------------------
def declared(wheel: Path, extra: str) -> set[str]:
    """What a folder of packages has after `pip install headrace[extra]`: the files and folders of all that is required."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (zipfile.Path(archive, name) for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        left = [(text, extra) for text in PathDistribution(metadata.parent).requires or ()]
    names, seen = set(), set()
    while left:
        text, asked = left.pop()
        wanted = Requirement(text)
        if (str(wanted), asked) in seen or (wanted.marker and not wanted.marker.evaluate({"extra": asked})):
            continue
        seen.add((str(wanted), asked))
        with suppress(PackageNotFoundError):  # then what needs it fails
            found = distribution(wanted.name)
            names |= {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
            left += [(each, more) for each in found.requires or () for more in ("", *wanted.extras)]
    return names


class GuidesCopy:
    """The guide's own lines, with the test's broker and topics, in an environment that finds nothing else on its path."""

    def __init__(self, made: Environment, folder: Path, names: dict[str, str]) -> None:
        guide = (ROOT / "docs" / "how-to" / "run-without-an-engine.md").read_text()
        for there, here in names.items():
            assert there in guide
            guide = guide.replace(there, here)
        (job,) = re.findall(r"```python\n# copy_topic.py\n(.*?)```", guide, re.DOTALL)
        session = r"```console\n\$ (headrace run .*)\n\$ (headrace verify .*)\n(.*)\n```"
        self._run, self._verify, self.verified = re.findall(session, guide)[0]
        (folder / "copy_topic.py").write_text(job)
        self._programs, self._folder, self.log = made.home / "bin", folder, folder / "log"

    def _command(self, line: str) -> list[str]:
        name, *words = shlex.split(line, comments=True)
        return [str(self._programs / name), *words]

    def start(self) -> subprocess.Popen[bytes]:
        assert shutil.which("java", path=str(self._programs)) is None
        with self.log.open("ab") as log:
            command, environment = self._command(self._run), {"PATH": str(self._programs)}
            return subprocess.Popen(command, cwd=self._folder, env=environment, stdout=log, stderr=log)

    def verify(self) -> str:
        return run(self._command(self._verify), self._folder).stdout.strip()


@pytest.mark.broker
def test_the_guides_lines_copy_a_topic_once_with_4_workers_killed_and_restarted_where_there_is_no_java_and_no_spark(
    wheel: Path, broker: BrokerCluster, topic: Callable[[], str], tmp_path: Path
) -> None:
    made = environment(tmp_path, only=declared(wheel, "run"))
    made.install(wheel)
    assert "ModuleNotFoundError" in made.run("import pyspark", tmp_path).stderr
    numbers, copied = topic(), topic()
    for name in (numbers, copied):
        create_topic(broker.bootstrap, name, 4)
    names = {"127.0.0.1:9092": broker.bootstrap, '"numbers"': f'"{numbers}"', '"copy"': f'"{copied}"'}
    names["--input numbers --output copy"] = f"--input {numbers} --output {copied}"
    names["1000 records in, 1000"] = "3000 records in, 3000"
    lines = GuidesCopy(made, tmp_path, names)

    def write(first: int) -> None:
        for partition in range(4):
            values = [{"value": b"%d" % number} for number in range(first + partition, first + 1000, 4)]
            write_records(broker.bootstrap, numbers, values, partition)

    def check(count: int) -> None:
        assert process.poll() is None, lines.log.read_text()
        if len(read_pairs(broker.bootstrap, copied)) < count:
            raise RetriableError(lines.log.read_text())

    process = lines.start()
    try:
        write(0)
        wait_until(lambda: check(1), "the first records", 60.0)
        write(1000)
        process.kill()
        process.wait()
        assert len(read_pairs(broker.bootstrap, copied)) < 2000  # so it was in the middle
        process = lines.start()
        write(2000)
        wait_until(lambda: check(3000), "all records", 60.0)
        assert lines.verify() == lines.verified
        process.send_signal(signal.SIGTERM)
        assert process.wait(60.0) == 0, lines.log.read_text()
    finally:
        process.kill()
        process.wait()
    assert Counter(int(value) for _, value in read_pairs(broker.bootstrap, copied)) == Counter(range(3000))


# --- a checkout that was never built ------------------------------------------------------------------------------------
def test_a_checkout_that_was_never_built_runs_uncompiled_where_cython_is(unbuilt, tmp_path):
    found = kernels(environment(tmp_path), unbuilt)
    folders = ("kafka/format", "formats/avro")
    assert found == [f"{unbuilt}/headrace/connectors/{folder}/{name}.py" for folder in folders for name in ("decode", "encode")]


@pytest.mark.parametrize("module", ["headrace.kafka", "headrace.connectors.kafka.format.encode"])
def test_a_checkout_that_was_never_built_says_what_to_do_where_no_cython_is(unbuilt, tmp_path, module):
    done = environment(tmp_path, without=["cython"]).run(f"import {module}", unbuilt)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: headrace's record decoder and encoder are not compiled for Python 3.")
    assert f"{unbuilt}/headrace/connectors/kafka/format" in last
    assert "run `pip install -e .` in the checkout" in last
