"""Java programs from Maven Central: resolved once per user by the Ivy inside PySpark, then taken from a cache directory."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from headrace.enumerator.errors import PeerError, UsageError
from headrace.runners.user_cache import beside, cache_directory, find_java, locked

__all__ = ["Bundle", "find_ivy", "find_java", "installed"]

IVY_FILE = """\
<ivy-module version="2.0">
  <info organisation="headrace" module="harness"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
EXCLUSION = '    <exclude org="{}"/>'
DEPENDENCY = '    <dependency org="{}" name="{}" rev="{}" conf="default->{}"/>'
# How Ivy reports, per jar: that it knows it, and that it has it.
FOUND, FETCHED = "\tfound ", "\t[SUCCESSFUL ]"
TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Bundle:
    """A Java program and the jars it needs.

    name: for messages, with its version. folder: of the cache directory. modules: `organisation:artifact:version`, the program
    itself first. jars, size: about how many it takes, and of what size, for a message. instead: what to do where
    it cannot be downloaded, as the end of a message. without: organisations whose artifacts are left out. configuration: Ivy's,
    of each module; `default` brings what the modules need, `master` themselves alone.
    """

    name: str
    folder: str
    modules: tuple[str, ...]
    jars: int
    size: str
    instead: str = ""
    without: tuple[str, ...] = ()
    configuration: str = "default"

    @property
    def main_jar(self) -> str:
        _, artifact, version = self.modules[0].split(":")
        return f"{artifact}-{version}.jar"


def find_ivy(bundle: Bundle) -> Path:
    """The Ivy jar inside PySpark, which is located and not imported. Raises UsageError without PySpark."""
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise UsageError(
        f"{bundle.name} cannot be downloaded: PySpark, whose Ivy does it, is not installed. "
        f"Install it (pip install 'headrace[spark]'){bundle.instead}"
    )


def installed(bundle: Bundle) -> Path:
    """The directory holding the bundle's jars; downloads them when this user has none yet, with a progress bar on stderr.

    Safe with concurrent processes: one downloads, the others wait for it. The directory appears complete or not at all.
    Raises UsageError without Java or PySpark, PeerError when the download fails.
    """
    jars = cache_directory() / bundle.folder
    if not jars.is_dir():
        java, ivy = find_java(bundle.name), find_ivy(bundle)
        with locked(beside(jars, "lock")):
            if not jars.is_dir():
                _download(java, ivy, bundle, jars)
    return jars


def _download(java: Path, ivy: Path, bundle: Bundle, jars: Path) -> None:
    # The name is fixed, and Ivy's cache inside it: an interrupted download is continued, not started again.
    partial = beside(jars, "partial")
    partial.mkdir(exist_ok=True)
    ivy_file = partial / "ivy.xml"
    dependencies = [DEPENDENCY.format(*module.split(":"), bundle.configuration) for module in bundle.modules]
    dependencies += [EXCLUSION.format(organisation) for organisation in bundle.without]
    ivy_file.write_text(IVY_FILE.format(dependencies="\n".join(dependencies)))
    shutil.rmtree(partial / "jars", ignore_errors=True)
    pattern = f"{partial}/jars/[artifact]-[revision].[ext]"
    arguments: list[str | Path] = ["-cache", partial / "ivy", "-ivy", ivy_file, "-retrieve", pattern]
    status, lines = _run_ivy([java, "-cp", ivy, "org.apache.ivy.Main", *arguments], bundle)
    if status or not (partial / "jars" / bundle.main_jar).is_file():
        tail = "\n".join(lines[-TAIL_LINES:])
        raise PeerError(f"downloading {bundle.name} failed (Ivy ended with {status}):\n{tail}")
    (partial / "jars").rename(jars)
    shutil.rmtree(partial)


def _run_ivy(command: list[str | Path], bundle: Bundle) -> tuple[int, list[str]]:
    """Ivy's exit status and what it said. A jar counts twice in the bar: when it is known, and when it is there."""
    lines: list[str] = []
    terminal = Console(stderr=True)
    with (
        Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as bar,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy,  # noqa: S603 - our own command
    ):
        if not terminal.is_terminal:
            terminal.print(f"Downloading {bundle.name} ({bundle.size}, once) ...", highlight=False, soft_wrap=True)
        task = bar.add_task(f"Downloading {bundle.name} ({bundle.size}, once)", total=2 * bundle.jars)
        assert ivy.stdout is not None
        for line in ivy.stdout:
            lines.append(line.rstrip())
            if line.startswith((FOUND, FETCHED)):
                bar.advance(task)
    return ivy.returncode, lines
