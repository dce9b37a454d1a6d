"""Where the schemas of a query's state are: files in its checkpoint, which Spark names by their whole paths.

`transformWithState` keeps them. What names them is `state/<operator>/_metadata/v2/<batch>`: the line `v2`, and JSON with
`stateSchemaFilePaths` for each store. In a copy these would be those of the checkpoint that it was made of: without that one
the copy's query does not start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.connectors.files.store import Store, is_local

_METADATA = re.compile(r"state/\d+/_metadata/v2/\d+")
_SCHEMA = re.compile(r".*/(state/\d+/_stateSchema/[^/]+/[^/]+)")


def schemas_of_copy(source: Store, names: Iterable[str], copy: str) -> Mapping[str, bytes]:
    """The files that name schemas, as a copy at this path or address is to have them. One of an unknown form stays as it is."""
    there = f"file:{copy}" if is_local(copy) else copy
    found = {name: _moved(source.read(name).decode(), there) for name in names if _METADATA.fullmatch(name)}
    return {name: text.encode() for name, text in found.items() if text is not None}


def _moved(text: str, there: str) -> str | None:
    """None where it names no schema."""
    version, _, body = text.partition("\n")
    try:
        document = json.loads(body)
        stores = [store for store in document["stateStoreInfo"] if store["stateSchemaFilePaths"]]
        for store in stores:
            store["stateSchemaFilePaths"] = [_in_copy(path, there) for path in store["stateSchemaFilePaths"]]
    except (ValueError, KeyError, TypeError):
        return None
    return f"{version}\n{_compact(document)}" if stores else None


def _in_copy(path: str, there: str) -> str:
    found = _SCHEMA.fullmatch(path)
    return path if found is None else f"{there}/{found[1]}"


def _compact(document: Any) -> str:  # noqa: ANN401 - any JSON
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
