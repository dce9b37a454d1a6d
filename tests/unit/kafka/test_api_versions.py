"""The table of versions of Kafka's APIs: it names every API that the client sends, and only versions that can be encoded."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from headrace.connectors.kafka.client import api_versions
from headrace.connectors.kafka.client.api_versions import API_VERSIONS, Versions
from headrace.connectors.kafka.client.wire import protocol

KAFKA = Path(__file__).parents[3] / "connectors" / "kafka"
NARROWER = {
    "Fetch": [api_versions.FETCH_BY_NAME], "Produce": [api_versions.PRODUCE_BY_NAME, api_versions.PRODUCE_V1],
    "EndTxn": [api_versions.END_TXN_V1, api_versions.END_TXN_V2], "ListOffsets": [api_versions.LIST_OFFSETS_COMMITTED],
}  # fmt: skip


def sent() -> set[str]:
    """The requests that the client makes, by the names of their APIs."""
    return {
        node.func.id.removesuffix("Request")
        for path in KAFKA.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Request")
    }


def test_every_request_of_the_client_has_its_versions_in_the_table():
    assert sent() == API_VERSIONS.keys()


@pytest.mark.parametrize("name", API_VERSIONS)
def test_kafka_python_has_all_versions_of_the_table(name: str):
    own, request = API_VERSIONS[name], getattr(protocol, f"{name}Request")
    assert protocol.versions_of(request) == protocol.versions_of(request()) == own
    assert request.min_version <= own.lowest <= own.highest <= request.max_version
    for narrower in NARROWER.get(name, []):
        assert own.lowest <= narrower.lowest <= narrower.highest <= own.highest


def test_an_api_without_a_row_has_the_versions_of_kafka_python():
    assert "DeleteRecords" not in API_VERSIONS
    assert protocol.versions_of(protocol.DeleteRecordsRequest) == Versions(0, 2, "")
