"""How Arrow batches and elements cross stages, and how the two restrictions lie in a runner's checkpoints."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

import pyarrow as pa
from apache_beam.coders import Coder
from apache_beam.coders.typecoders import registry

from headrace.enumerator.checkpoint import Checkpoint, CheckpointSerializer
from headrace.enumerator.envelope import Envelope
from headrace.enumerator.ledger import SplitState
from headrace.enumerator.source import Source
from headrace.enumerator.split import SplitT
from headrace.runners.beam.reader_restriction import ReaderRestriction
from headrace.runners.beam.split_restriction import Enumerated, Enumeration, Fresh, HandedOn

_READER = Envelope("headrace-reader", "state of a source's reader")
_LEDGER = Envelope("headrace-ledger", "state of a source")
_WHERE = "the runner's checkpoint"


class FixedCoder(Coder):
    """A coder without parameters: all of its class are equal, and encode equal values to the same bytes."""

    def is_deterministic(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class RecordBatchCoder(FixedCoder):
    """An Arrow record batch as one Arrow IPC stream, uncompressed. The same bytes for the same batch."""

    def encode(self, value: pa.RecordBatch) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def decode(self, encoded: bytes) -> pa.RecordBatch:
        with pa.ipc.open_stream(encoded) as reader:
            return reader.read_next_batch()

    def estimate_size(self, value: pa.RecordBatch) -> int:
        """Without the schema. Beam counts the bytes of what a stage gives, and would encode each batch for that."""
        return pa.ipc.get_record_batch_size(value)  # type: ignore[no-any-return]

    def to_type_hint(self) -> type:
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
        return value.state

    def decode(self, encoded: bytes) -> Element:
        return Element(encoded)


registry.register_coder(Element, ElementCoder)


class _StateFormat:
    """State of one source in an envelope (`headrace.enumerator.envelope`) of version 1, packed."""

    def __init__(self, source: Source[Any]) -> None:
        self._serializer: CheckpointSerializer[Any] = CheckpointSerializer(source.name, source.split_serializer)

    def _checkpoint(self, envelope: Envelope, body: Mapping[str, Any]) -> Checkpoint[Any]:
        with envelope.reading(_WHERE):
            return self._serializer.deserialize(body["checkpoint"], _WHERE)


class EnumerationFormat(_StateFormat, Generic[SplitT]):
    """The enumerating stage's restriction. Raises StateError for what is damaged, newer, or of another source."""

    def encode(self, value: Enumeration[SplitT]) -> bytes:
        match value:
            case Fresh():
                return _packed(_LEDGER, {"state": "fresh"})
            case HandedOn():
                return _packed(_LEDGER, {"state": "handed on"})
            case Enumerated(checkpoint):
                return _packed(_LEDGER, {"state": "enumerated", "checkpoint": self._serializer.serialize(checkpoint).decode()})

    def decode(self, encoded: bytes) -> Enumeration[SplitT]:
        body = _unpacked(_LEDGER, encoded)
        with _LEDGER.reading(_WHERE):
            match body["state"]:
                case "fresh":
                    return Fresh()
                case "handed on":
                    return HandedOn()
                case "enumerated":
                    return Enumerated(self._checkpoint(_LEDGER, body))
            raise ValueError(f"a state {body['state']!r}")


class ReaderFormat(_StateFormat, Generic[SplitT]):
    """The reading stage's restriction, which is also what crosses from stage to stage.

    Splits that are finished in its checkpoint are those whose last position is not published. What is behind it is white space.
    """

    def encode(self, value: ReaderRestriction[SplitT]) -> bytes:
        reading = tuple(SplitState(split, finished=False) for split in value.reading)
        unpublished = tuple(SplitState(split, finished=True) for split in value.unpublished)
        checkpoint = Checkpoint(0, reading + unpublished, exhausted=True)
        return _packed(_READER, {"checkpoint": self._serializer.serialize(checkpoint).decode()})

    def decode(self, encoded: bytes) -> ReaderRestriction[SplitT]:
        states = self._checkpoint(_READER, _unpacked(_READER, encoded)).splits
        reading = tuple(state.split for state in states if not state.finished)
        return ReaderRestriction(reading, tuple(state.split for state in states if state.finished))


def _packed(envelope: Envelope, body: Mapping[str, Any]) -> bytes:
    """Packed, as Beam's Flink runner keeps the bytes of every call for ever (Beam #27648)."""
    return zlib.compress(envelope.seal(body))


def _unpacked(envelope: Envelope, data: bytes) -> Mapping[str, Any]:
    unpacking = zlib.decompressobj()
    with envelope.reading(_WHERE):
        try:
            unpacked = unpacking.decompress(data)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not unpacking.eof or unpacking.unused_data.strip(b" "):
            raise ValueError("it does not end where it should")
    return envelope.open(unpacked, _WHERE)
