"""What processes that a test starts can import."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python_path(*folders: Path) -> str:
    """A PYTHONPATH: these folders first, then this checkout, then what is there already."""
    return os.pathsep.join([*map(str, folders), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def started(job: Path, log: Path) -> subprocess.Popen[bytes]:
    """A script that runs with this checkout, in its own session; what it prints is added to a file."""
    with log.open("ab") as file:
        environment = os.environ | {"PYTHONPATH": python_path()}
        return subprocess.Popen([sys.executable, job], stdout=file, stderr=file, env=environment, start_new_session=True)


def printed(code: str, folder: Path | None = None) -> str:
    """What a new Python process prints that runs this code, by default in this folder."""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    return out.stdout.strip()
