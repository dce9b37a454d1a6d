"""Message types in a set of descriptors: found by name or by a registry's indices, and with some of their fields only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.connectors.formats.protobuf.compiler import runtime
from headrace.enumerator.errors import UsageError

_ALL = "*"
_GROUP, _MESSAGE = 10, 11  # FieldDescriptorProto.Type


def first_message(files: bytes) -> str:
    """The full name of the first message type of the last file: what Confluent's serializers mean by default.

    Raises UsageError where that file has none.
    """
    return message_at(files, (0,))


def message_at(files: bytes, indices: Sequence[int]) -> str:
    """The full name of the message type at these indices in the last file: of the file, then of each type in the previous one.

    Raises UsageError where there is none.
    """
    file = runtime().FileDescriptorSet.FromString(files).file[-1]
    inside, names = file.message_type, [file.package] * bool(file.package)
    for index in indices:
        if not 0 <= index < len(inside):
            raise UsageError(f"the Protobuf schema has no message type at {list(indices)}")
        names.append(inside[index].name)
        inside = inside[index].nested_type
    return ".".join(names)


def indices_of(files: bytes, message: str) -> tuple[int, ...]:
    """The indices of a message type of the last file. Raises UsageError where it has none of this name."""
    file = runtime().FileDescriptorSet.FromString(files).file[-1]
    found = next((indices for name, _, indices in _messages([file]) if name == message), None)
    if found is None:
        raise UsageError(f"message {message} is not in the Protobuf schema itself, but in one that it imports")
    return found


def only(files: bytes, message: str, fields: Sequence[str] | None) -> bytes:
    """The same set, with only these fields of a message; a dotted name means one field of a field, and None all.

    A type that is used in two places keeps what is asked for in either. Raises UsageError for a message type or a field that
    there is not, and for what cannot be read: groups, and files of an edition.
    """
    parsed = runtime().FileDescriptorSet.FromString(files)
    types = {name: each for name, each, _ in _messages(parsed.file)}
    if message not in types:
        raise UsageError(f"the Protobuf schema has no message type {message}; there are: {', '.join(sorted(types))}")
    kept: dict[str, set[str]] = {}
    _keep(types, message, [_ALL] if fields is None else fields, kept, set())
    for file in parsed.file:
        if file.syntax not in ("", "proto2", "proto3"):
            raise UsageError(f"the Protobuf schema {file.name} is of an edition; proto2 and proto3 can be read")
        del file.extension[:], file.service[:]
    for name, each in types.items():
        del each.extension[:]
        if name in kept or not each.options.map_entry:  # an entry has both of its fields, or is none
            _drop(each, kept.get(name, set()))
    return bytes(parsed.SerializeToString())


def renamed(files: bytes, message: str, name: str) -> bytes:
    """The same set of what `only` gives, in which a message type has another name within its package, if it has that type.

    Its bytes stay the same, and a library that has a special type for the old name takes it for any other message.
    """
    parsed = runtime().FileDescriptorSet.FromString(files)
    new = f"{message.rpartition('.')[0]}.{name}"
    for found, each, _ in list(_messages(parsed.file)):
        if found == message:
            each.name = name
        for field in each.field:
            if field.type_name == f".{message}":
                field.type_name = f".{new}"
    return bytes(parsed.SerializeToString())


def _messages(files: Sequence[Any]) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    for file in files:
        yield from _within(file.message_type, file.package, ())


def _within(types: Sequence[Any], scope: str, indices: tuple[int, ...]) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    for index, each in enumerate(types):
        name = f"{scope}.{each.name}" if scope else each.name
        yield name, each, (*indices, index)
        yield from _within(each.nested_type, name, (*indices, index))


def _keep(types: dict[str, Any], message: str, paths: Sequence[str], kept: dict[str, set[str]], done: set[Any]) -> None:
    """Note which fields of which types are needed for these dotted names. `done`: what was noted before."""
    if (message, *paths) in done:
        return
    done.add((message, *paths))
    there = {each.name: each for each in types[message].field}
    wanted: dict[str, list[str]] = {}
    for path in there if _ALL in paths else paths:
        head, dot, rest = path.partition(".")
        wanted.setdefault(head, []).append(rest if dot else _ALL)
    for name, inside in wanted.items():
        if name not in there:
            raise UsageError(f"message {message} has the fields {', '.join(there)}; asked for: {name!r}")
        field = there[name]
        if field.type == _GROUP:
            raise UsageError(f"field {name!r} of message {message} is a group, which cannot be read; ask for other fields")
        if field.type != _MESSAGE and inside != [_ALL]:
            raise UsageError(f"field {name!r} of message {message} has no fields; asked for: {name + '.' + inside[0]!r}")
        kept.setdefault(message, set()).add(name)
        if field.type == _MESSAGE:
            inner = field.type_name.removeprefix(".")
            is_map = types[inner].options.map_entry
            _keep(types, inner, _of_entry(inside) if is_map else inside, kept, done)


def _of_entry(paths: Sequence[str]) -> list[str]:
    """Of a map: its key, and of its values what is asked for."""
    return ["key", *("value" if path == _ALL else f"value.{path}" for path in paths)]


def _drop(message: Any, names: set[str]) -> None:  # noqa: ANN401 - a DescriptorProto
    """Leave only these fields, and the groups of alternatives that have any."""
    fields = [each for each in message.field if each.name in names]
    numbers = sorted({each.oneof_index for each in fields if each.HasField("oneof_index")})
    for each in fields:
        if each.HasField("oneof_index"):
            each.oneof_index = numbers.index(each.oneof_index)
    fields, oneofs = [_copy(each) for each in fields], [_copy(message.oneof_decl[number]) for number in numbers]
    del message.field[:], message.oneof_decl[:]
    message.field.extend(fields)
    message.oneof_decl.extend(oneofs)


def _copy(message: Any) -> Any:  # noqa: ANN401 - a message
    copied = type(message)()
    copied.CopyFrom(message)
    return copied
