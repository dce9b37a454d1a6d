"""A compiled module is used only with the source that it was compiled from."""

from __future__ import annotations

import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from headrace.connectors.base.compiled import MARK, check_compiled
from headrace.connectors.kafka import format as kafka_format
from headrace.connectors.kafka.format import decode, encode
from tests.helpers.python_path import printed

SOURCE = b"VALUE = 1\n"


@pytest.fixture
def source(tmp_path) -> Path:
    source = tmp_path / "decode.py"
    source.write_bytes(SOURCE)
    return source


def compiled(source: Path, content: bytes, *, older_s: float = 0) -> None:
    file = source.with_suffix(EXTENSION_SUFFIXES[0])
    file.write_bytes(content)
    at = source.stat().st_mtime - older_s
    os.utime(file, (at, at))


def stamped(source: bytes) -> bytes:
    return b"\x7fELF..." + MARK + hashlib.sha256(source).hexdigest().encode() + b"\0..."


def test_one_of_this_source_is_used_whichever_is_newer(source):
    compiled(source, stamped(SOURCE), older_s=1000)
    check_compiled(source)


def test_one_of_another_source_is_refused_and_the_way_out_is_said(source):
    """After an edit or a pull it was imported silently."""
    compiled(source, stamped(b"VALUE = 0\n"))
    with pytest.raises(ImportError, match=r"compiled from another decode\.py.*pip install -e"):
        check_compiled(source)


@pytest.mark.parametrize("older_s", [0, 1000])
def test_one_that_does_not_say_its_source_is_used_unless_it_is_older(source, older_s):
    compiled(source, b"\x7fELF", older_s=older_s)
    if older_s:
        with pytest.raises(ImportError, match="compiled from another"):
            check_compiled(source)
    else:
        check_compiled(source)


def test_the_types_of_a_source_are_a_part_of_it(source):
    source.with_suffix(".pxd").write_bytes(b"cdef int VALUE\n")
    compiled(source, stamped(SOURCE + b"cdef int VALUE\n"))
    check_compiled(source)
    source.with_suffix(".pxd").write_bytes(b"cdef long VALUE\n")
    with pytest.raises(ImportError, match="compiled from another"):
        check_compiled(source)


def test_a_source_alone_and_a_compiled_module_alone_are_used(source):
    check_compiled(source)
    compiled(source, stamped(b"other"))
    source.unlink()
    check_compiled(source)


@pytest.mark.parametrize("module", [decode, encode])
def test_what_setup_py_has_compiled_says_its_source(module):
    file = Path(module.__file__)
    if file.suffix == ".py":
        pytest.skip("the modules of this checkout are not compiled")
    source = Path(kafka_format.__path__[0], f"{module.__name__.rpartition('.')[2]}.py")
    content = source.read_bytes() + source.with_suffix(".pxd").read_bytes()
    assert MARK + hashlib.sha256(content).hexdigest().encode() in file.read_bytes()


@pytest.mark.parametrize("module", ["decode", "encode"])
def test_running_a_compiled_module_does_not_import_cython(module):
    name = f"headrace.connectors.kafka.format.{module}"
    code = f"import sys, {name}; print([m for m in ('cython', 'Cython') if m in sys.modules])"
    assert printed(code, Path(__file__).parent) == "[]"
