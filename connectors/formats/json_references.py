"""Where a schema of JSON Schema is, and what its `$ref` leads to: `referencing` knows the rules of each dialect."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urljoin

from referencing import Registry, Resource, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT3, DRAFT4, DRAFT7, DRAFT201909, DRAFT202012, specification_with

from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from referencing._core import Resolver

_NOT_A_SCHEMA = (AttributeError, LookupError, TypeError, ValueError)
"""What referencing raises where a document is not built as a schema is."""


def _definitions(schema: Any) -> list[Any]:  # noqa: ANN401 - JSON
    found = schema.get("$defs") if isinstance(schema, dict) else None
    return [*found.values()] if isinstance(found, dict) else []


def _in_definition(segments: Sequence[int | str], resolver: Resolver[Any], subresource: Resource[Any]) -> Resolver[Any]:
    older = ["definitions" if each == "$defs" else each for each in segments]
    return DRAFT7.maybe_in_subresource(older, resolver, subresource)


_UNNAMED: Specification[Any] = Specification(  # type: ignore[call-arg]  # made by attrs
    name="draft-07 with $defs and $anchor",
    id_of=DRAFT7.id_of,
    subresources_of=lambda schema: [*DRAFT7.subresources_of(schema), *_definitions(schema)],
    anchors_in=lambda _, schema: [*DRAFT7.anchors_in(schema), *DRAFT202012.anchors_in(schema)],
    maybe_in_subresource=_in_definition,
)
"""Of a schema without `$schema`: pydantic writes them for 2020-12, others for draft 7."""


@dataclass(frozen=True, eq=False)
class Location:
    """Where a schema is: what its references are relative to, and the dialect.

    `_documents`: those that there are, by the names that were given for them, which a `$ref` may use as they are.
    `_written`: those of each own `$id`, as it is written. `_shared`: the addresses that several of them have.
    """

    _resolver: Resolver[Any]
    _documents: Mapping[str, tuple[Any, Location]]
    _written: Mapping[str, Sequence[tuple[Any, Location]]]
    _shared: Set[str]
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
        """The document, or the schema with its own `$id`, that has this name or address.

        Raises LookupError if there is none, and UsageError if there are several.
        """
        if url in self._documents:
            return self._documents[url]
        written = self._written.get(url, ())
        try:
            found, at = self._found(url)
        except LookupError:
            if not written:
                raise
        else:
            if at._resolver._base_uri not in self._shared:
                # by its own $id, also where it was found by another address
                return next((each for each in self._documents.values() if each[0] is found), (found, at))
        # a relative $id as it is written, or that of draft 6 in a document of draft 4
        if not written or any(each[0] != written[0][0] for each in written):
            raise UsageError(f"two of the JSON Schemas have the address {url!r}: give each another $id")
        return written[0]

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
    """The location of a document, which refers to others by their names, also relative to its `$id`, or by their own `$id`."""
    dialect = _dialect(document, _UNNAMED)
    root = _own_id(document, dialect)
    every = {"": document, **references}
    addresses = {name: _joined(root, name) if name else "" for name in every}
    registry: Registry[Any] = Registry()
    for name, each in reversed(every.items()):  # of one $id that is there twice, the document has it
        registry = _with(registry, addresses[name], _dialect(each, dialect).create_resource(each))
    documents: dict[str, tuple[Any, Location]] = {}
    written: dict[str, list[tuple[Any, Location]]] = {}
    shared: set[str] = set()
    for name, each in every.items():
        own, resolving = _dialect(each, dialect), registry
        own_id = _own_id(each, own)
        bases = (_joined(addresses[name], own_id), addresses[name])
        base = next((url for url in bases if url in registry and registry.contents(url) == each), None)
        if base is None:
            base, resolving = bases[0], _with(registry, bases[0], own.create_resource(each))
            shared.update(bases)
        documents[name] = (each, Location(resolving.resolver(base), documents, written, shared, own))
        written.setdefault(own_id, []).append(documents[name])
    return documents[""][1]


def _with(registry: Registry[Any], url: str, resource: Resource[Any]) -> Registry[Any]:
    """One that has this document at the address, whatever else was there."""
    registry = (registry.remove(url) if url in registry else registry).with_resource(url, resource)
    # Once for all references. Where it fails, those to what is within a document are refused when they are read.
    with contextlib.suppress(*_NOT_A_SCHEMA):
        return registry.crawl()
    return registry


def _own_id(document: Any, dialect: Specification[Any]) -> str:  # noqa: ANN401 - JSON
    """Documents of draft 4 have it under its later name, too."""
    if not isinstance(document, dict):
        return ""
    names = ("id", "$id") if dialect in (DRAFT3, DRAFT4) else ("$id",)
    return next((_joined("", document[name]) for name in names if isinstance(document.get(name), str)), "")


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
