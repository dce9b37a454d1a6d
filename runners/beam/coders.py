"""How Arrow batches and elements cross stages, and how the two restrictions lie in a runner's checkpoints."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, Generic

import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry

from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.errors import StateError
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import Source
from headrace.enumerator.split import SplitT
from headrace.runners.beam.reader_restriction import ReaderRestriction
from headrace.runners.beam.split_restriction import Enumerated, Enumeration, Fresh, HandedOn

_FRESH = {"format": "headrace-fresh", "version": 1}
_HANDED_ON = {"format": "headrace-handed-on", "version": 1}
_READER = b"headrace-reader "
_LEDGER = b"headrace-ledger "


class FixedCoder(Coder):
    """A coder without parameters: all of its class are equal, and encode equal values to the same bytes."""

    def is_deterministic(self) -> bool:
        """Yes: a runner may compare encoded values."""
        return True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class RecordBatchCoder(FixedCoder):
    """An Arrow record batch as one Arrow IPC stream, uncompressed. The same bytes for the same batch."""

    def encode(self, value: pa.RecordBatch) -> bytes:
        """Schema and batch."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        """The batch, over the bytes themselves: no column is copied."""
        with pa.ipc.open_stream(encoded) as reader:
            return reader.read_next_batch()

    def to_type_hint(self) -> type:
        """What pipelines name in their type hints."""
        return pa.RecordBatch  # type: ignore[no-any-return]


registry.register_coder(pa.RecordBatch, RecordBatchCoder)


@dataclass(frozen=True, slots=True)
class Element:
    """What the splittable stages get: nothing yet for the enumerating one, a reader's splits for the reading one.

    our own type, with its own coder, because Flink's runner names the coder of an element with its restriction after
    the element's coder alone: of two splittable DoFns in a pipeline that both took bytes, one would get the other's restriction
    coder. Ours all have the same one, bytes; so nothing can be mixed up, however many sources a pipeline reads.
    """

    state: bytes


class ElementCoder(FixedCoder):
    """The bytes themselves."""

    def encode(self, value: Element) -> bytes:
        """As they are."""
        return value.state

    def decode(self, encoded: bytes) -> Element:
        """As they are."""
        return Element(encoded)


registry.register_coder(Element, ElementCoder)


class _StateFormat:
    """State of one source, in the versioned form of the core's checkpoints: readable JSON with a checksum."""

    def __init__(self, source: Source[Any]) -> None:
        self._serializer: CheckpointSerializer[Any] = CheckpointSerializer(source.name, source.split_serializer)


class EnumerationFormat(_StateFormat, Generic[SplitT]):
    """The enumerating stage's restriction. Raises StateError for what is damaged, newer, or of another source.

    A ledger is a line with its version, 2, then a checkpoint, packed; version 1 was the checkpoint alone.
    """

    def encode(self, value: Enumeration[SplitT]) -> bytes:
        """Newest version."""
        match value:
            case Fresh():
                return json.dumps(_FRESH).encode()
            case HandedOn():
                return json.dumps(_HANDED_ON).encode()
            case Enumerated(checkpoint):
                return _LEDGER + b"2\n" + zlib.compress(self._serializer.serialize(checkpoint))

    def decode(self, encoded: bytes) -> Enumeration[SplitT]:
        """Every version ever written."""
        tag = _tag(encoded)
        if tag == _FRESH:
            return Fresh()
        if tag == _HANDED_ON:
            return HandedOn()
        if not encoded.startswith(_LEDGER):
            return Enumerated(self._serializer.deserialize(encoded))
        version, _, rest = encoded.removeprefix(_LEDGER).partition(b"\n")
        if version != b"2":
            found = version.decode(errors="replace")
            raise StateError(f"this headrace reads ledgers up to version 2, and this is of version {found!r}")
        return Enumerated(self._serializer.deserialize(_unpacked(rest)))


class ReaderFormat(_StateFormat, Generic[SplitT]):
    """The reading stage's restriction, which is also what crosses from stage to stage.

    Version 3: a line with the version, then a checkpoint, packed; splits that are finished in it are those whose last position
    is not published. What is behind it is white space. Version 2 was not packed. Version 1 had no line, and was a checkpoint of
    one split, of which nothing was left when it was finished.
    """

    def encode(self, value: ReaderRestriction[SplitT]) -> bytes:
        """Newest version."""
        reading = tuple(SplitState(split, finished=False) for split in value.reading)
        unpublished = tuple(SplitState(split, finished=True) for split in value.unpublished)
        checkpoint = Checkpoint(0, reading + unpublished, exhausted=True)
        return _READER + b"3\n" + zlib.compress(self._serializer.serialize(checkpoint))

    def decode(self, encoded: bytes) -> ReaderRestriction[SplitT]:
        """Every version ever written."""
        if not encoded.startswith(_READER):
            return self._decode_v1(encoded)
        version, _, rest = encoded.removeprefix(_READER).partition(b"\n")
        match version:
            case b"2":
                checkpoint = rest
            case b"3":
                checkpoint = _unpacked(rest)
            case _:
                found = version.decode(errors="replace")
                raise StateError(f"this headrace reads a reader's splits up to version 3, and these are of version {found!r}")
        states = self._serializer.deserialize(checkpoint).splits
        reading = tuple(state.split for state in states if not state.finished)
        return ReaderRestriction(reading, tuple(state.split for state in states if state.finished))

    def _decode_v1(self, encoded: bytes) -> ReaderRestriction[SplitT]:
        states = self._serializer.deserialize(encoded).splits
        if len(states) != 1:
            raise StateError(f"the state of a split holds {len(states)} splits")
        return ReaderRestriction(tuple(state.split for state in states if not state.finished))


def _unpacked(data: bytes) -> bytes:
    """Packed, as Beam's Flink runner keeps the bytes of every call for ever (Beam #27648). White space may come behind."""
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(data)
    except zlib.error as error:
        raise StateError(f"the state of a source is damaged: {error}") from error
    if not unpacking.eof or unpacking.unused_data.strip(b" "):
        raise StateError("the state of a source is damaged: it does not end where it should")
    return unpacked


def _tag(encoded: bytes) -> object:
    try:
        return json.loads(encoded)
    except (ValueError, RecursionError):
        return None  # the serializer says what is wrong with it
