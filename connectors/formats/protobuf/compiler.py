"""From the text of a Protobuf schema to descriptors, by protoc. What is registered as descriptors is read.

A schema may come from a registry that any process writes to: so it is compiled in a process and its own folder.
"""

from __future__ import annotations

import base64
import functools
import importlib
import re
import subprocess
import sys
import tempfile
from binascii import Error as NoBase64
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from headrace.enumerator.errors import RetriableError, UsageError

_MAIN = "headrace_schema.proto"
_PROTOC_S = 30.0
_LONGEST_ERROR = 500
_TRIES = 5
_PAUSES = wait_exponential(multiplier=1.0, max=8.0)
"""A compiler that dies or is too slow says nothing of a schema: memory is short, the machine is busy or stops. But there are
schemas that are too much for it, which would restart a job for ever: so it is tried again here, in one process, for at least
15 s (pauses of 1, 2, 4 and 8 s), and then it is the schema's fault."""

_COMPILERS_OWN = re.compile(r"WARNING: |[IWE]\d{4} |.*: warning: ")
"""Lines of protoc's that tell nothing of an error."""

_NOT_THERE = re.compile(r"No module named '?grpc_tools")

_KNOWN = re.compile(r"google/(protobuf|type)/[a-z_]+\.proto")
"""Files that Python packages bring, and no schema has to."""

_META = """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
_OF_CONFLUENT = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
    "confluent/type/variant.proto": """syntax = "proto3";
package confluent.type;
message Variant { bytes metadata = 1; bytes value = 2; }
""",
}
"""Files that Confluent's registry has built in, so that no schema names them as references. No package here has them."""


def runtime() -> Any:  # noqa: ANN401 - a module
    """`google.protobuf.descriptor_pb2`. Raises UsageError where Protobuf's libraries are not installed."""
    try:
        import ptars  # noqa: F401
        from google.protobuf import descriptor_pb2
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name or error} is not installed; run: pip install 'headrace[protobuf]'") from error
    return descriptor_pb2


def descriptor_set(schema: str | bytes, references: Mapping[str, str] | None = None) -> bytes:
    """A serialized FileDescriptorSet with all that the schema uses, its own file last.

    `schema`: the text of a `.proto` file, or a FileDescriptorSet as `protoc --include_imports --descriptor_set_out` writes it.
    `references`: the texts of the files that it imports, by the names by which it does; files of Google's that Python packages
    bring are known. Raises UsageError for what is none of these, with the compiler's words, and where a library is missing;
    A compiler that dies or takes longer than 30 s says nothing of the schema and is tried again, which takes up to 3 minutes;
    after 5 tries that is a UsageError, too. RetriableError if it could not be started.
    """
    if isinstance(schema, str):
        return _compiled(schema, tuple((references or {}).items()))
    files = runtime().FileDescriptorSet()
    from google.protobuf.message import DecodeError

    try:
        files.ParseFromString(schema)
    except DecodeError as error:
        raise UsageError("this is not a FileDescriptorSet, as protoc --descriptor_set_out writes it") from error
    if not files.file:
        raise UsageError("this FileDescriptorSet has no file in it")
    return schema


@functools.lru_cache(maxsize=256)
def _compiled(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    pb2 = runtime()
    own = _serialized(text)
    texts, kept = {}, {}
    for name, each in references:
        found = _serialized(each)
        if found is None:
            texts[name] = each
        else:
            found.name = name
            kept[name] = found
    if own is None:
        confluents = {name: each for name, each in _OF_CONFLUENT.items() if name not in kept}
        return _protoc({**confluents, **texts, _MAIN: text}, kept.values())
    if texts:
        raise UsageError("a Protobuf schema that is a descriptor has references that are texts; give all in one form")
    kept = {name: each for name, each in kept.items() if name != own.name}
    return bytes(pb2.FileDescriptorSet(file=[*_with_known([*kept.values(), own]), own]).SerializeToString())


def _serialized(text: str) -> Any:  # noqa: ANN401 - a FileDescriptorProto, or None
    """The file that a text is in base64; None for a text of Protobuf's language, which has blanks and braces."""
    file = runtime().FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        found = file.FromString(base64.b64decode(text, validate=True))
    except (NoBase64, ValueError, DecodeError):
        return None
    return found if found.name and (found.message_type or found.enum_type or found.public_dependency) else None


def _with_known(files: Iterable[Any]) -> list[Any]:
    """The files but the last, each after those that it imports, with those that Python packages bring."""
    given, found, under_way = {each.name: each for each in files}, dict[str, Any](), set[str]()
    *_, last = given.values()

    def add(name: str) -> None:
        if name in found:
            return
        if name in under_way:
            raise UsageError(f"the Protobuf schema imports itself by {name}")
        under_way.add(name)
        file = given.get(name) or _known(name)
        for each in file.dependency:
            add(each)
        found[name] = file

    for each in last.dependency:
        add(each)
    return list(found.values())


def _known(name: str) -> Any:  # noqa: ANN401 - a FileDescriptorProto
    if name in _OF_CONFLUENT:
        file = runtime().FileDescriptorSet.FromString(_compiled(_OF_CONFLUENT[name], ())).file[-1]
        file.name = name
        return file
    try:
        if _KNOWN.fullmatch(name) is None:
            raise ModuleNotFoundError(name)
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ModuleNotFoundError as error:
        raise UsageError(f"the Protobuf schema imports {name}, which is not among its references") from error
    return runtime().FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _protoc(texts: Mapping[str, str], kept: Iterable[Any]) -> bytes:
    """The compiled form of the text under _MAIN. `kept`: descriptors of files that it may import, too."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "in")
        for name, text in texts.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.name:
                raise UsageError(f"a Protobuf schema refers to a file named {name!r}, which is not a path below its own")
            there = root.joinpath(*path.parts)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(text, encoding="utf-8")
        out, known = Path(folder, "out"), Path(folder, "known")
        known.write_bytes(runtime().FileDescriptorSet(file=_all_known(kept)).SerializeToString())
        _run(root, known, out)
        return out.read_bytes()


def _all_known(kept: Iterable[Any]) -> list[Any]:
    """Descriptors of what any schema may import, and of what these import."""
    files: dict[str, Any] = {each.name: each for each in kept}
    names = ("any", "api", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type", "wrappers")
    types = (
        *("calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction", "interval", "latlng"),
        *("localized_text", "money", "month", "phone_number", "postal_address", "quaternion", "timeofday"),
    )
    for name in [*(f"google/protobuf/{each}.proto" for each in names), *(f"google/type/{each}.proto" for each in types)]:
        files.setdefault(name, _known(name))
    files.setdefault("google/protobuf/descriptor.proto", _known("google/protobuf/descriptor.proto"))
    return list(files.values())


class _NoResultError(Exception):
    """The compiler has ended without a word of the schema."""


def _run(root: Path, known: Path, out: Path) -> None:
    attempts = Retrying(
        retry=retry_if_exception_type(_NoResultError), wait=_PAUSES, stop=stop_after_attempt(_TRIES), reraise=True
    )
    try:
        attempts(_run_once, root, known, out)
    except _NoResultError as error:
        raise UsageError(
            f"protoc could not compile a Protobuf schema in {_TRIES} tries, the last of which {error}. The schema is too much "
            "for it, or this machine has too little memory or time for it"
        ) from error


def _run_once(root: Path, known: Path, out: Path) -> None:
    options = [f"--proto_path={root}", f"--descriptor_set_in={known}", "--include_imports", f"--descriptor_set_out={out}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *options, _MAIN]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROTOC_S, check=False)  # noqa: S603 - our own
    except subprocess.TimeoutExpired as error:
        raise _NoResultError(f"took longer than {_PROTOC_S:g} s") from error
    except OSError as error:
        raise RetriableError(f"protoc could not be started: {error}") from error
    if done.returncode == 0:
        return
    if _NOT_THERE.search(done.stderr):
        raise UsageError("grpcio-tools is not installed; run: pip install 'headrace[protobuf]'")
    said = done.stderr.replace(f"{root}/", "")
    reported = [line for line in said.splitlines() if _COMPILERS_OWN.match(line) is None]
    is_result = done.returncode == 1 and any(line.startswith(f"{_MAIN}:") for line in reported)
    if not is_result:  # of a signal, of Python, of the loader, of the disk
        raise _NoResultError(f"ended with status {done.returncode}: {' '.join(reported[-3:])[:_LONGEST_ERROR]}")
    raise UsageError(f"this is not a Protobuf schema: {' '.join(reported).replace(f'{_MAIN}:', 'line ')[:_LONGEST_ERROR]}")
