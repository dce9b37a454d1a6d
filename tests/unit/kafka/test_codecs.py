"""What is compiled for processes before they are forked: all that a first batch sends, in the versions that it is sent in."""

from __future__ import annotations

from headrace.connectors.kafka.client.wire import protocol
from headrace.kafka import KafkaSource
from headrace.testing import FakeKafka
from tests.helpers.sink_rig import committer, kafka_sink, prepared


def compiled():
    """What is compiled of requests to encode them, and of their responses to decode them, by name."""
    found = {}
    for kind in protocol._OF_QUERIES:
        request = kind()
        request.API_VERSION = kind.max_version
        request.with_header(correlation_id=0, client_id="")
        response = request.header.get_response_class()[None]
        for one, is_own in ((kind, lambda key: key[0] != "decode"), (response, lambda key: key[0] == "decode")):
            found[one] = set(filter(is_own, one._struct._compiled_encoders))  # the Kafka of this process does the opposite
    return found


def test_a_first_batch_compiles_nothing_that_was_not_compiled_beforehand(monkeypatch):
    for message in compiled():
        monkeypatch.setattr(message._struct, "_compiled_encoders", {})
    protocol.compile_codecs()
    beforehand = compiled()
    assert {message.__name__: len(made) for message, made in beforehand.items() if len(made) != 1} == {"FetchResponse": 0}
    with FakeKafka() as kafka:
        kafka.create_topic("out")
        sink = kafka_sink(kafka.bootstrap, "out", "commits")
        committer(sink, "job").recover()
        committer(sink, "job").commit(0, prepared(sink, "job", 0, ["x"]))
        assert KafkaSource(kafka.bootstrap, topics=["out"]).create_discovery().initial().added
        used = compiled()
    more = {message.__name__: made - beforehand[message] for message, made in used.items() if made - beforehand[message]}
    assert set(more) <= {"ApiVersionsRequest", "ApiVersionsResponse"}  # of which a connection tries several versions
