"""What the fuzzers have kept, again, and what they have found; the fuzzers themselves are run by `make fuzz`."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.files.handles import FileHandleSerializer
from headrace.connectors.formats.value_format import BadValue, DecodedValues, without
from headrace.connectors.kafka.format import decode as kernel
from headrace.connectors.kafka.write.handles import KafkaHandleSerializer
from headrace.connectors.kafka.write.list_records import whole
from headrace.connectors.security.tokens import ClientCredentials
from headrace.connectors.sql.url import product_of
from headrace.enumerator.errors import CorruptDataError, StateError, UsageError
from headrace.formats import AvroFormat
from headrace.runners.beam.shard import ShardStateSerializer
from headrace.spark.options import Option, json_object
from tests.fuzz import avro_values, flood, run, table
from tests.fuzz.target import GOLDEN, TARGETS, Finding, Target, load, read_corpus
from tests.helpers.envelopes import enveloped, resealed

RESULTS = Path(run.__file__).parent / "results"


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_corpus_meet_only_errors_that_are_documented(name):
    target = load(name)
    inputs = [*target.seeds().values(), *read_corpus(name)]
    assert inputs
    for data in inputs:
        target.check(data)


@pytest.mark.parametrize("name", TARGETS)
def test_every_committed_figure_is_without_a_finding(name):
    figures = json.loads((RESULTS / f"{name}.json").read_text())
    assert figures["executions"] > 0
    assert figures["findings"] == []


# --- the checkers see injected bugs ---
def test_a_wrong_error_is_kept_with_its_input_and_its_place_once(tmp_path):
    def wrong(data: bytes) -> None:
        if b"x" in data:
            raise IndexError("injected")

    checked = run.keeping(wrong, tmp_path)
    for data in (b"a", b"first x", b"second x"):
        checked(data)
    (found,) = tmp_path.glob("finding-*.bin")
    assert found.read_bytes() == b"first x"
    assert found.with_suffix(".txt").read_text().startswith("IndexError in wrong of test_fuzz.py:")


def test_inputs_of_findings_are_kept_whatever_the_space(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "write_corpus", lambda name, inputs: kept.append((name, inputs)))
    kept: list[tuple[str, list[bytes]]] = []
    target = Target("t", lambda _: None, lambda: {"seed": b"s"}, ())
    run.keep("t", [b"s", b"aa", b"a", b"x" * run.KEPT_BYTES], [b"f" * 100], target)
    assert kept == [("t", [b"f" * 100, b"a", b"aa"])]


def few(monkeypatch):
    monkeypatch.setattr(flood, "CHUNK", 200)
    return flood.new_counts(0)


def test_a_chunk_of_the_flood_is_the_same_each_time_and_meets_every_outcome(monkeypatch):
    first, second = few(monkeypatch), few(monkeypatch)
    flood.run_chunk("test", 0, first)
    flood.run_chunk("test", 0, second)
    assert first["outcomes"] == second["outcomes"]
    assert first["outcomes"].keys() == {"decoded", "refused", "refused after rows", "no rows"}


def raises(data, **options):
    yield from ()
    raise MemoryError


def stands_still(data, **options):
    for decoded in kernel.decode(data, **options):
        yield decoded._replace(next_offset=options["start"])


def names_no_place(data, **options):
    yield from ()
    raise CorruptDataError("bad")


@pytest.mark.parametrize("injected", [raises, stands_still, names_no_place])
def test_the_flood_sees_a_decoder_that_does_what_it_may_not(monkeypatch, injected):
    with pytest.raises(Finding):
        flood.run_chunk("test", 0, few(monkeypatch), decode=injected)


def test_the_flood_sees_a_decoder_that_is_slow(monkeypatch):
    def slow(data, **options):
        until = time.thread_time() + 2e-4
        while time.thread_time() < until:
            pass
        yield from kernel.decode(data, **options)

    monkeypatch.setattr(flood, "SLOW_S", 1e-4)
    with pytest.raises(Finding, match=r"s for [0-9a-f]+"):
        flood.run_chunk("test", 0, few(monkeypatch), decode=slow)


HANGS = """
from tests.fuzz import flood
flood.HANG_S = 0.1
def run_chunk(*_, **__):
    while True: pass
flood.CHUNKS["batches"] = run_chunk
flood.work("batches", "test", 0, 1, None)
"""


def test_a_decoder_that_hangs_ends_its_process_and_shows_where():
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGPROF
    assert "in run_chunk" in done.stderr


def few_values(decode=AvroFormat.decode, seed="test"):
    """One batch of each schema of a chunk."""
    settings = flood.new_counts(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_values, "BATCHES", 1)
        avro_values.run_chunk(seed, 0, settings, decode=decode)
    return settings


def test_a_chunk_of_avro_values_is_the_same_each_time_and_reads_each_way():
    first, second = few_values(), few_values()
    assert first["outcomes"] == second["outcomes"]
    assert first["outcomes"]["decoded"] > first["buffers"] // 16
    assert first["outcomes"]["refused"] > first["buffers"] // 16
    found = [each for number in range(4) for each in avro_values.drawn(f"test-{number}")]
    ways = {(each.fields is None, each.reader is each.writer) for each in found}
    assert ways == {(True, True), (True, False), (False, True)}


def no_reason(avro, column):
    values, bad = avro.decode(column)
    return DecodedValues(values, [BadValue(each.row, "bad") for each in bad])


def refuses_neighbours(avro, column):
    values, bad = avro.decode(column)
    refused = {each.row: each for each in bad} | {row: BadValue(row, bad[0].reason) for row in (16, 17) if bad}
    return DecodedValues(without(values, refused), [refused[row] for row in sorted(refused)])


def takes_anothers_bytes(avro, column):
    return avro.decode(column.take(pa.array([*range(len(column) - 1, -1, -1)])))


def keeps_what_is_bad(avro, column):
    values, _ = avro.decode(column)
    good = next(row for row in range(len(values)) if values[row].is_valid)
    return DecodedValues(values.take(pa.array([good if not each.is_valid else row for row, each in enumerate(values)])), [])


def runs_out(avro, column):
    raise MemoryError


@pytest.mark.parametrize(("injected", "said"), [
    (no_reason, "a reason that is none"), (refuses_neighbours, "is a value, and was refused"),
    (takes_anothers_bytes, "was read|was refused"), (keeps_what_is_bad, "is not a value, and was read"),
    (runs_out, "MemoryError"),
])  # fmt: skip
def test_the_flood_of_avro_values_sees_a_decoder_that_does_what_it_may_not(injected, said):
    with pytest.raises(Finding, match=said):
        few_values(injected)


@pytest.mark.parametrize("name", ["flood", "flood_avro"])
def test_the_figures_of_a_flood_are_without_a_finding(name):
    figures = json.loads((RESULTS / f"{name}.json").read_text())
    assert figures["buffers"] >= 10_000_000
    assert figures["findings"] == []


LIMITS = ("ARROW_LIMIT", "RESIDENT_LIMIT")


@pytest.mark.parametrize("limit", LIMITS)
def test_the_flood_sees_memory_above_a_limit(monkeypatch, limit):
    settings = few(monkeypatch)
    flood.run_chunk("test", 0, settings)
    for name in LIMITS:  # the peaks are those of this process, whatever other tests did in it
        monkeypatch.setattr(flood, name, 1 << 60)
    flood.check_memory(settings)
    monkeypatch.setattr(flood, limit, 1000)
    with pytest.raises(Finding, match="more than 1000"):
        flood.check_memory(settings)


# --- what was found ---
def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text())


NO_NUMBERS = [float("inf"), float("nan"), 1.5, True, -1, "1", None, [], {}]


@pytest.mark.parametrize("wrong", NO_NUMBERS, ids=str)
@pytest.mark.parametrize("name", ["epoch", "task", "number", "rows", "size"])
def test_what_is_no_number_in_a_files_handle_is_said_to_be_none(name, wrong):
    with pytest.raises(ValueError, match="not a whole number"):
        FileHandleSerializer().deserialize(1, golden("file_handle_v1") | {name: wrong})


@pytest.mark.parametrize("wrong", NO_NUMBERS, ids=str)
@pytest.mark.parametrize("name", ["pid", "epoch", "protocol", "started", "timeout"])
def test_what_is_no_number_in_a_kafka_handle_is_said_to_be_none(name, wrong):
    handle = golden("kafka_commit_list_v1")["body"]["handles"][0]
    with pytest.raises(ValueError, match="not a whole number"):
        KafkaHandleSerializer().deserialize(1, handle | {name: wrong})


@pytest.mark.parametrize("wrong", [5, {}, None, ["a"]], ids=str)
def test_a_kafka_handle_without_a_name_is_no_handle(wrong):
    handle = golden("kafka_commit_list_v1")["body"]["handles"][0]
    with pytest.raises(ValueError, match="is not text"):
        KafkaHandleSerializer().deserialize(1, handle | {"id": wrong})
    topic, topic_id, ranges = handle["topics"][0]
    for changed in ([wrong, topic_id, ranges], [topic, 5, ranges]):
        with pytest.raises(ValueError, match="is not text"):
            KafkaHandleSerializer().deserialize(1, handle | {"topics": [changed]})


LIST = (CommitListSerializer, "kafka_commit_list_v1", "list of transactions")
STATE = (ShardStateSerializer, "beam_writer_v1", "state of a writer")


@pytest.mark.parametrize(("stored", "field"), [
    (LIST, "version"), (LIST, "handle_version"), (LIST, "epoch"), (STATE, "version"), (STATE, "handle_version"),
    (STATE, "count"),
], ids=lambda value: value if isinstance(value, str) else value[1])  # fmt: skip
def test_a_list_or_a_writers_state_whose_numbers_are_none_is_damaged(stored, field):
    serializer, name, what = stored
    for data in without_numbers(name, field):
        with pytest.raises(StateError, match=rf"here: the {what} cannot be read: it is damaged \(ValueError"):
            serializer(KafkaHandleSerializer()).deserialize(data, "here")


def without_numbers(name: str, field: str) -> list[bytes]:
    change = enveloped if field == "version" else resealed
    stored = (GOLDEN / f"{name}.json").read_bytes()
    return [change(stored, **{field: wrong}) for wrong in NO_NUMBERS]


@pytest.mark.parametrize("url", ["https://[o/", "https://h:99999/", "https://h:x/", "https://h:0/", "file:///etc/passwd"])
def test_a_token_endpoint_that_is_no_address_is_refused_by_name(url):
    with pytest.raises(UsageError, match=r"token\.endpoint\.url must be like https://host/path"):
        ClientCredentials(url=url, client_id="i", client_secret="s")


@pytest.mark.parametrize(
    "address", ["sqlite://host/db", "sqlite://u:secret@host/db", "sqlite://host:1/db", "sqlite://:secret@/db"]
)
def test_a_server_of_sqlite_is_refused_with_the_form_that_it_has(address):
    with pytest.raises(UsageError, match=r"SQLite is a file: sqlite:////path/to/file") as raised:
        product_of(address)
    assert "secret" not in str(raised.value)


DEEP = "[" * 100_000


def test_json_that_is_nested_too_deep_is_damage():
    coders = pytest.importorskip("headrace.runners.beam.coders")
    source = pytest.importorskip("headrace.kafka").KafkaSource("127.0.0.1:1", topics=["t"])
    with pytest.raises(StateError):
        coders.EnumerationFormat(source).decode(DEEP.encode())
    with pytest.raises(UsageError, match="must be JSON like"):
        json_object('{"a": 1}')(Option("properties", str, ""), DEEP)
    head = b'{"format": "headrace-commit-list-parts", "x": ' + DEEP.encode()
    assert whole("key", {"key": head}) == head


def test_the_table_in_the_readme_is_that_of_the_figures():
    assert table.drawn(table.README.read_text()) == table.README.read_text()
