"""A compiled module is used only with the source that it was compiled from."""

import hashlib
import mmap
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

MARK = b"headrace: compiled from source with sha256 "
"""setup.py puts it into a compiled module, followed by the digest of the source."""
_DIGITS = 64


def not_compiled(what: str, folder: str) -> str:
    """What is said where a checkout is imported that was never built, or was built with another Python."""
    return (
        f"headrace's {what} are not compiled for Python {sys.version_info[0]}.{sys.version_info[1]} "
        f"(in {folder}), and without Cython they do not run uncompiled: run `pip install -e .` in the checkout, "
        "which compiles them; or `pip install Cython`, to run them uncompiled, which is slow"
    )


def check_compiled(source: Path) -> None:
    """Raise ImportError if the module alongside this source was compiled from another one, as after an edit or a pull.

    Python would import the compiled one without a word. The source's C types, in a .pxd, are a part of it.
    """
    compiled = next((file for suffix in EXTENSION_SUFFIXES if (file := source.with_suffix(suffix)).exists()), None)
    if compiled is None or not source.exists():
        return
    digest = _digest_in(compiled)
    if digest is None:  # by an older setup.py, or by hand
        is_its_own = compiled.stat().st_mtime >= source.stat().st_mtime
    else:
        types = source.with_suffix(".pxd")
        content = source.read_bytes() + (types.read_bytes() if types.exists() else b"")
        is_its_own = digest == hashlib.sha256(content).hexdigest().encode()
    if not is_its_own:
        raise ImportError(
            f"{compiled} was compiled from another {source.name} than the one alongside it: run `pip install -e .` in the "
            "checkout, which compiles it again"
        )


def _digest_in(compiled: Path) -> bytes | None:
    with compiled.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(MARK)
        return None if at < 0 else content[at + len(MARK) : at + len(MARK) + _DIGITS]
