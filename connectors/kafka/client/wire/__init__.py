"""Connections to single brokers: handshake, framing, messages, failures, a pool.

kafka-python connects, negotiates API versions, and does TLS and SASL; its protocol classes encode requests and decode
responses. None of that is its public API: hence the bound on its version, checked here, before any of it is imported.
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # Its schemas are read with an old call, 200 times: no matter of our users', who may have made warnings errors.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.version import __version__ as kafka_python_version


def _check_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not (3, 0, 12) <= numbers < (3, 1):
        raise ImportError(
            f"headrace needs kafka-python >=3.0.12,<3.1 and found {version}: it uses parts that are not kafka-python's public "
            "API. Install it with: pip install 'kafka-python>=3.0.12,<3.1'"
        )


_check_version(kafka_python_version)

if not __debug__:  # Python's -O takes away an assertion in which kafka-python reads a byte of answers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.protocol.schemas.fields.codecs.tagged_fields import TaggedFields, UnsignedVarInt32
    TaggedFields.decode_empty = UnsignedVarInt32.decode
