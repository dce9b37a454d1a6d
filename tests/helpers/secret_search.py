"""Servers that ask for a password, and a search for it in all that is left lying about."""

from collections.abc import Iterable
from pathlib import Path

USER, PASSWORD, REGISTRY_PASSWORD = "alice", "hunter2-of-kafka", "hunter3-of-the-registry"
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def login(password: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="{USER}" password="{password}";'
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}


def files_with(secrets: Iterable[str], folder: Path) -> list[str]:
    """Those below the folder that hold one of them."""
    wanted = [secret.encode() for secret in secrets]
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return sorted(str(path.relative_to(folder)) for path, data in files.items() if any(each in data for each in wanted))
