"""What is stored in an envelope, changed: the body under a checksum that holds, or the envelope around it."""

import json
from typing import Any

from headrace.enumerator.envelope import Envelope

NO_ENVELOPES = (b"", b"{}", b"[]", b"null", b"7", b"\xff\xfe\x00", b"[" * 100_000)


def body_of(data: bytes | str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(data)["body"]
    return body


def resealed(data: bytes | str, **changes: object) -> bytes:
    """With these fields of the body changed, under a checksum that holds."""
    return sealed(json.loads(data)["format"], body_of(data) | changes)


def without(data: bytes | str, *fields: str) -> bytes:
    """Without these fields of the body, under a checksum that holds."""
    return sealed(json.loads(data)["format"], {key: value for key, value in body_of(data).items() if key not in fields})


def sealed(name: str, body: Any) -> bytes:
    """This body, whatever it is, in version 1 of the format."""
    return Envelope(name, "").seal(body)


def enveloped(data: bytes | str, **changes: object) -> bytes:
    """With these fields of the envelope changed."""
    return json.dumps(json.loads(data) | changes).encode()
