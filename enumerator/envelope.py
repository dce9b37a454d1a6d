"""The envelope of everything that headrace stores: one line of JSON with the format, its version, a checksum and the body.

    {"format": "headrace-checkpoint", "version": 1, "checksum": 1517087066, "body": {...}}

People can read it, for when a restore has failed. The checksum is the CRC-32 of the body as `json.dumps` writes it without
spaces, so a file that an editor has indented is still whole. All readers refuse what they cannot read with the same text. It
says what was to be read, where it is, what is wrong and what to do.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.enumerator.errors import StateError

_OTHER_PLACE = "Check that this is the place that was meant"
_OTHER_PLACE_OR_DAMAGED = f"{_OTHER_PLACE}, or put back a copy that is not damaged"


class _OtherContentError(ValueError):
    """It may not be damaged, but is not what was to be read."""

    def __init__(self, problem: str, what_to_do: str) -> None:
        super().__init__(problem)
        self.what_to_do = what_to_do


@dataclass(frozen=True, slots=True)
class Envelope:
    """A format of headrace. `name` is stored with it, `noun` is for error messages: "checkpoint"."""

    name: str
    noun: str
    version: int = 1

    def seal(self, body: Mapping[str, Any]) -> bytes:
        """The body, which is of values that JSON can hold, in its envelope: ASCII, one line, no line break."""
        text = compact(body)
        head = compact({"format": self.name, "version": self.version, "checksum": checksum(text)})
        return f'{head[:-1]},"body":{text}}}'.encode()

    def open(self, data: bytes | str, where: str) -> Mapping[str, Any]:
        """The body that `seal` was given. Raises StateError, naming `where`, for anything else."""
        with self.reading(where):
            return self._opened(data)

    @contextmanager
    def reading(self, where: str) -> Iterator[None]:
        """Around whatever takes a body apart: makes a StateError, naming `where`, of what that raises for damaged values."""
        try:
            yield
        except _OtherContentError as error:
            raise StateError(f"{where}: the {self.noun} cannot be read: {error}. {error.what_to_do}") from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise StateError(
                f"{where}: the {self.noun} cannot be read: it is damaged ({type(error).__name__}: {error}). Put back a copy "
                "that is not damaged"
            ) from error

    def _opened(self, data: bytes | str) -> Mapping[str, Any]:
        try:
            envelope = json.loads(data)
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are both ValueErrors
            raise _OtherContentError(f"it is not JSON ({error})", _OTHER_PLACE_OR_DAMAGED) from error
        if not isinstance(envelope, dict) or "format" not in envelope:
            problem = f"headrace did not write it: it is a JSON {type(envelope).__name__} without a format"
            raise _OtherContentError(problem, _OTHER_PLACE_OR_DAMAGED)
        if envelope["format"] != self.name:
            raise _OtherContentError(f"its format is {envelope['format']!r}, not {self.name!r}", _OTHER_PLACE)
        readable_version(envelope["version"], self.version)
        body: Mapping[str, Any] = envelope["body"]
        if not isinstance(body, dict):
            raise TypeError(f"its body is a JSON {type(body).__name__}")
        if checksum(compact(body)) != envelope["checksum"]:
            raise ValueError("its checksum does not match")
        return body


def readable_version(version: object, newest: int) -> int:
    """A stored version that is read. Raises ValueError for others; `Envelope.reading` says what to do about a newer one."""
    if type(version) is not int or version < 1:
        raise ValueError(f"version {version!r}")
    if version > newest:
        raise _OtherContentError(
            f"a newer headrace wrote it: version {version}, and this one reads up to {newest}",
            "Continue with the headrace that wrote it, or with a newer one",
        )
    return version


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def stored_text(value: object) -> str:
    """The value, if it is a text as JSON has it. Raises ValueError otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def stored_number(value: object) -> int:
    """The value, if it is a whole number from 0 as JSON has it. Raises ValueError otherwise: nothing is converted."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0")
    return value


def stored_object(value: object) -> Mapping[str, Any]:
    """The value, if it is an object as JSON has it. Raises ValueError otherwise."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not an object")
    return value


def stored_truth(value: object) -> bool:
    """The value, if it is true or false as JSON has it. Raises ValueError otherwise: bool("false") is True."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value
