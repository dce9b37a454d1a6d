"""What a registry knows: a schema under an id, with the texts of those that it refers to; and how subjects are named."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from headrace.enumerator.errors import PeerError, UsageError

__all__ = ["RegisteredSchema", "SchemaId", "SchemaReference", "SubjectStrategy", "UnknownSchemaError", "subject_name"]

SchemaId: TypeAlias = int | UUID
"""How a record names its schema: a number of the registry's, or the schema's own id, which newer writers put into headers."""


class UnknownSchemaError(PeerError):
    """The registry has no such schema, subject or version. Every one of its urls has said so."""


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """How a schema in a registry refers to another: by what `name` its own text means it, and where it is registered.

    `name`: a type's full name in Avro, an import's path in Protobuf, what `$ref` says in JSON Schema.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as a registry has it. `kind` is AVRO, JSON or PROTOBUF.

    `references`: full names and texts of the schemas that it uses, each after those that it uses itself. Travels with a plan.
    `uses`: where those that its own text names are registered. `SchemaRegistry.compose` makes one that is not registered yet.
    """

    id: SchemaId
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    uses: tuple[SchemaReference, ...] = field(default=(), compare=False)

    @property
    def fingerprint(self) -> str:
        """Distinguishes schemas  that have the same id in two registries: 16 hexadecimal digits."""
        parts = [self.kind, self.text, *(part for reference in self.references for part in reference)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class SubjectStrategy(StrEnum):
    """Under which subject a writer registers its schema, by the names that Confluent's clients have for it."""

    TOPIC_NAME = "TopicNameStrategy"
    RECORD_NAME = "RecordNameStrategy"
    TOPIC_RECORD_NAME = "TopicRecordNameStrategy"


def subject_name(strategy: SubjectStrategy, topic: str | None, *, field: str, record: str | None) -> str:
    """The subject for the `field` ("key" or "value") of a topic's records.

    `topic`: None where it is not known, or is not one. `record`: the full name of their Avro type or Protobuf message, or the
    title of their JSON Schema. Raises UsageError where the strategy needs what is None.
    """
    if strategy is not SubjectStrategy.RECORD_NAME and topic is None:
        raise UsageError(f"{strategy} names a subject after a topic, and there is none, or there are several")
    if strategy is SubjectStrategy.TOPIC_NAME:
        return f"{topic}-{field}"
    if record is None:
        where = "of the records" if topic is None else f"of topic {topic}"
        raise UsageError(f"{strategy} names a subject after a record, and the schema {where} is none, or is not known")
    return record if strategy is SubjectStrategy.RECORD_NAME else f"{topic}-{record}"
