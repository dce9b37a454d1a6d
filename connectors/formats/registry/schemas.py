"""What a registry knows: a schema under an id, with the texts of those that it refers to; and how subjects are named."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from headrace.enumerator.errors import PeerError, UsageError

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
class SchemaRule:
    """A rule of a schema's `ruleSet` that is active: an encryption, a condition in CEL, a migration. None is executed here.

    `kind`: the type of its executor, such as ENCRYPT. `modes`: WRITE, READ, UPGRADE and DOWNGRADE, as far as its failure there
    is an error: what a client without the executor refuses.
    https://docs.confluent.io/platform/current/schema-registry/fundamentals/data-contracts.html#rules
    """

    name: str
    kind: str
    modes: frozenset[str]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as a registry has it. `kind` is AVRO, JSON or PROTOBUF.

    `references`: full names and texts of the schemas that it uses, each after those that it uses itself. Travels with a plan.
    `uses`: where those that its own text names are registered. `SchemaRegistry.compose` makes one that is not registered yet.
    `subject`: the one under which it was looked up, if any. `rules`: what values need besides the schema.
    """

    id: SchemaId
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    uses: tuple[SchemaReference, ...] = field(default=(), compare=False)
    subject: str | None = field(default=None, compare=False)
    rules: tuple[SchemaRule, ...] = field(default=(), compare=False)

    def rule_of(self, modes: Collection[str]) -> str | None:
        """The first rule that values need in one of these modes, in words; None if there is none."""
        rule = next((each for each in self.rules if not each.modes.isdisjoint(modes)), None)
        if rule is None:
            return None
        of = f" of subject '{self.subject}'" if self.subject else ""
        return f"schema {self.id}{of} has the rule '{rule.name}' ({rule.kind}), which headrace cannot execute"

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


def context_of(subject: str | None) -> str:
    """The context of a subject that starts with one, as `:.plant:`; "" is the default one. Ids and names count in a context."""
    parts = (subject or "").split(":", 2)
    is_qualified = len(parts) == 3 and not parts[0] and parts[1] != "."
    return f":{parts[1]}:" if is_qualified else ""


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
