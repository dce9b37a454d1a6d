"""Where a schema of JSON Schema is, and what its `$ref` leads to: `referencing` knows the rules of each dialect."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urljoin

from referencing import Registry, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT3, DRAFT4, DRAFT7, DRAFT201909, DRAFT202012, specification_with

from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from referencing._core import Resolver

_NOT_A_SCHEMA = (AttributeError, LookupError, TypeError, ValueError)
"""What referencing raises where a document is not built as a schema is."""


@dataclass(frozen=True, eq=False)
class Location:
    """Where a schema is: what its references are relative to, and the dialect, which is draft 7 if none is named.

    `_documents`: those that there are, by the names that were given for them, which a `$ref` may use as they are.
    """

    _resolver: Resolver[Any]
    _documents: Mapping[str, tuple[Any, Location]]
    _dialect: Specification[Any]

    @property
    def applies_siblings(self) -> bool:
        """Whether words alongside a `$ref` count, as they do from JSON Schema 2019-09 on."""
        return self._dialect in (DRAFT201909, DRAFT202012)

    def inside(self, schema: Any) -> Location:  # noqa: ANN401 - JSON
        """That of a schema within the one here, which may have its own `$id`."""
        if not isinstance(schema, dict):
            return self
        dialect, resolver = _dialect(schema, self._dialect), self._resolver
        resource = dialect.create_resource(schema)
        with contextlib.suppress(*_NOT_A_SCHEMA):
            # jsonschema.net writes the schema's path there. It is not allowed from 2019-09 on, and gives no base before.
            resolver = resolver if (resource.id() or "#").startswith("#") else resolver.in_subresource(resource)
        return replace(self, _resolver=resolver, _dialect=dialect)

    def document(self, url: str) -> tuple[Any, Location]:
        """The document, or the schema with its own `$id`, that has this address. Raises LookupError if there is none."""
        try:
            found, at = self._found(url)
        except LookupError:
            return self._documents[url]
        # by its own $id, also where it was found by another address
        return next((each for each in self._documents.values() if each[0] is found), (found, at))

    def part(self, fragment: str) -> tuple[Any, Location]:
        """What a path such as `/$defs/x`, or an anchor, leads to in this document. Raises LookupError if there is none."""
        return self._found(f"#{fragment}")

    def _found(self, ref: str) -> tuple[Any, Location]:
        try:
            found = self._resolver.lookup(ref)
        except (Unresolvable, *_NOT_A_SCHEMA) as error:
            raise LookupError(ref) from error
        return found.contents, replace(self, _resolver=found.resolver, _dialect=_dialect(found.contents, self._dialect))


def located(document: Any, references: Mapping[str, Any]) -> Location:  # noqa: ANN401 - JSON
    """The location of a document, which refers to others by their names, also relative to its `$id`, or by their own `$id`.

    Raises UsageError where two have one address.
    """
    dialect, root = _dialect(document, DRAFT7), _own_id(document)
    every = {"": document, **references}
    addresses = {name: _joined(root, name) if name else "" for name in every}
    registry: Registry[Any] = Registry()
    for name, each in reversed(every.items()):  # of one $id that is there twice, the document has it
        registry = registry.with_resource(addresses[name], _dialect(each, dialect).create_resource(each))
        # Once for all references. Where it fails, those to what is within a document are refused when they are read.
        with contextlib.suppress(*_NOT_A_SCHEMA):
            registry = registry.crawl()
    documents: dict[str, tuple[Any, Location]] = {}
    for name, each in every.items():
        bases = (_joined(addresses[name], _own_id(each)), addresses[name])
        base = next((url for url in bases if url in registry and registry.contents(url) == each), None)
        if base is None:
            raise UsageError(f"two of the JSON Schemas have the address {bases[0]!r}: give each another $id")
        documents[name] = (each, Location(registry.resolver(base), documents, _dialect(each, dialect)))
    return documents[""][1]


def _own_id(document: Any) -> str:  # noqa: ANN401 - JSON
    if not isinstance(document, dict):
        return ""
    found = document.get("id" if _dialect(document, DRAFT7) in (DRAFT3, DRAFT4) else "$id")
    return _joined("", found) if isinstance(found, str) else ""


def _joined(base: str, url: str) -> str:
    """As it is if it is not a URL."""
    try:
        return urldefrag(urljoin(base, url)).url
    except ValueError:
        return url


def _dialect(schema: Any, around: Specification[Any]) -> Specification[Any]:  # noqa: ANN401 - JSON
    """The dialect that a schema names; that of the schema around it if it names none."""
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(name, str):
        return around
    return specification_with(name, default=DRAFT202012 if "/draft/20" in name else DRAFT7)
