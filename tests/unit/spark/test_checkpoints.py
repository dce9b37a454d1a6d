"""`headrace checkpoint`: what is read from a checkpoint of Spark's, what is said of it, and what copies hold.

`golden/spark_checkpoint` was written by PySpark 4.3: batches 2 and 3 by the JVM connector, 4 and 5 by headrace, which has taken
the query over.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.cli.checkpoints import parse_positions
from headrace.cli.output import epoch_ms, instant
from headrace.connectors.base.commit import StaleEpochError
from headrace.connectors.base.sink import Attempt
from headrace.connectors.files.store import LocalStore
from headrace.connectors.kafka.client.cluster import shared_cluster
from headrace.connectors.kafka.read.split import KafkaSplitSerializer
from headrace.enumerator.checkpoint import CheckpointSerializer
from headrace.enumerator.errors import DataLossError, StateError, UsageError
from headrace.kafka import KafkaSource
from headrace.postgresql import ChangesSource
from headrace.runners.local.savepoints import fetch_savepoint
from headrace.runners.spark.offset_log import LOCK_NAME, OffsetLog
from headrace.runners.spark.split_state import STAGE, ReadingFormat
from headrace.runners.spark.supervision.lock import is_held
from headrace.runners.spark.writers import PreparedMessage, StreamWriter
from headrace.spark.checkpoints import targets
from headrace.spark.checkpoints.copies import batch_at, export_to_jvm, forget_topic, fork, rewind, set_offsets, write_copy
from headrace.spark.checkpoints.findings import FindingKind, findings_of
from headrace.spark.checkpoints.logs import fsspec_address, read_checkpoint
from headrace.spark.checkpoints.positions import OffsetForm, stored_positions
from headrace.spark.checkpoints.savepoints import savepoint_of
from headrace.spark.checkpoints.targets import UNFINISHED
from headrace.spark.kafka_offsets import OURS
from headrace.testing import FakeKafka
from headrace.testing.memory_sink import MemorySink, MemoryTransactionLog
from tests.helpers.envelopes import body_of, sealed
from tests.helpers.python_path import python_path

GOLDEN = Path(__file__).parents[1] / "golden" / "spark_checkpoint"
TOPIC = "test-it-goes-on-where-the-jvm-connector-was-stopped-fe714f3c-0"
TOPIC_ID = "20441b02-4c02-45bd-b026-70d0657674e9"
LONG_AGO = 1_700_000_000


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)


@pytest.fixture
def checkpoint(tmp_path):
    """A copy whose query was stopped long ago."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN, folder)
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


def command(*words):
    return CliRunner().invoke(app, ["checkpoint", *map(str, words)])


def positions(folder, batch=None, source=0):
    found = stored_positions(read_checkpoint(str(folder)).batch(batch).sources[source].text)
    return {(split.topic, split.partition): split.next_offset for split in found}


def kinds(folder):
    return {finding.where: finding.kind for finding in findings_of(read_checkpoint(str(folder)))}


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


# --- reading ----------------------------------------------------------------------------------------------------------


def test_all_of_sparks_own_checkpoint_is_read(checkpoint):
    found = read_checkpoint(str(checkpoint))
    assert found.query_id == json.loads((GOLDEN / "metadata").read_text())["id"]
    assert list(found.planned) == list(found.committed) == [2, 3, 4, 5]
    assert found.damaged == found.state_operators == ()
    forms = [stored_positions(batch.sources[0].text).form for batch in found.planned.values()]
    assert forms == [OffsetForm.JVM] * 2 + [OffsetForm.HEADRACE] * 2
    assert positions(checkpoint) == {(TOPIC, 0): 16, (TOPIC, 1): 10, (TOPIC, 2): 6}
    assert positions(checkpoint, 3) == {(TOPIC, 0): 10, (TOPIC, 1): 10}


def test_an_entry_is_written_as_spark_has_written_it(checkpoint):
    for number, batch in read_checkpoint(str(checkpoint)).planned.items():
        assert batch.content(batch.sources) == (checkpoint / "offsets" / str(number)).read_bytes()


def test_sources_with_names_are_read_and_written():
    text = 'v2\n{"batchTimestampMs":7,"batchWatermarkMs":0}\nflights:{"t":{"0":5}}\nrate:-'
    (batch,) = read_checkpoint(planned_at_memory("named", text)).planned.values()
    assert [(source.name, source.text) for source in batch.sources] == [("flights", '{"t":{"0":5}}'), ("rate", None)]
    assert batch.content(batch.sources) == text.encode()


def planned_at_memory(name, text):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/{name}/metadata", b'{"id":"q"}')
    memory.pipe_file(f"/{name}/offsets/0", text.encode())
    return f"memory://{name}"


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="there is no checkpoint in"):
            read_checkpoint(str(folder))


def damage(checkpoint, name, data):
    path = checkpoint / name
    path.write_bytes(data)
    os.utime(path, (LONG_AGO, LONG_AGO))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("offsets/4", b"", "it is empty"),
        ("offsets/4", b"v1\n{}", "ends before the first source"),
        ("offsets/4", b"v9\n{}\n-", "version v9"),
        ("offsets/4", b"\xff\xfe", "utf-8"),
        ("offsets/4", b"v1\n[1]\n-", "not a JSON object"),
        ("offsets/4", b"v2\n{}\nnothing", "names no source"),
        ("commits/4", b"v1\n{", "property name"),
        ("commits/4", b"{}", "not with a version"),
        ("commits/4", "v²\n{}".encode(), "not with a version"),
        ("metadata", b"{}", "no query id"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(checkpoint, name, data, why):
    damage(checkpoint, name, data)
    (damaged,) = read_checkpoint(str(checkpoint)).damaged
    assert damaged.name == name
    assert why in damaged.why


@pytest.mark.parametrize("name", ["metadata", "offsets/5", "commits/5"])
def test_a_file_that_does_not_match_its_checksums_is_damaged(checkpoint, name):
    data = bytearray((checkpoint / name).read_bytes())
    data[-3] ^= 1
    (checkpoint / name).write_bytes(data)
    (damaged,) = read_checkpoint(str(checkpoint)).damaged
    assert (damaged.name, "checksums" in damaged.why) == (name, True)


def test_a_source_that_is_not_kafkas_has_no_positions():
    for text in (None, "17", '{"logOffset":3}'):
        assert stored_positions(text).form is OffsetForm.OTHER
    with pytest.raises(StateError):
        stored_positions('{"t":{"0":-3}}')


def test_offsets_of_another_source_that_are_objects_in_an_object_are_no_damage(checkpoint):
    kinesis = '{"metadata":{"streamName":"s"},"shardId-0":{"iteratorType":"AFTER_SEQUENCE_NUMBER","iteratorPosition":"49"}}'
    damage(checkpoint, "offsets/5", f"v1\n{{}}\n{kinesis}".encode())
    assert kinds(checkpoint) == {}
    assert f"other\t0\t{kinesis}" in command("show", checkpoint).stdout.splitlines()


# --- verify -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_whose_batches_are_all_committed_is_good(checkpoint):
    assert kinds(checkpoint) == {}
    done = command("verify", checkpoint)
    assert (done.exit_code, "the query can continue" in done.output) == (0, True)


def test_a_batch_that_is_planned_and_not_committed_is_run_again(checkpoint):
    (checkpoint / "commits" / "5").unlink()
    assert kinds(checkpoint) == {"offsets/5": FindingKind.NOTE}
    assert command("verify", checkpoint).exit_code == 0


@pytest.mark.parametrize(
    ("gone", "where"),
    [
        (["metadata"], "metadata"),
        (["offsets/4"], "offsets/4"),
        (["offsets/5", "offsets/4"], "commits/5"),
        (["commits/5", "commits/4"], "commits/4"),
        (["offsets/2", "offsets/3", "offsets/4", "offsets/5"], "offsets"),
    ],
)
def test_what_keeps_a_query_from_going_on_is_named(checkpoint, gone, where):
    for name in gone:
        (checkpoint / name).unlink()
    assert kinds(checkpoint)[where] is FindingKind.REFUSED
    done = command("verify", checkpoint)
    assert (done.exit_code, "cannot continue" in done.output) == (1, True)


def test_damage_within_a_sources_offsets_is_named(checkpoint):
    whole = (checkpoint / "offsets" / "5").read_text()
    for old, new in (('\\"version\\":1', '\\"version\\":7'), ('"0": 16', '"0": 15'), ('\\"0\\":10', '\\"0\\":11')):
        assert old in whole
        damage(checkpoint, "offsets/5", whole.replace(old, new).encode())
        assert kinds(checkpoint) == {"offsets/5, source 0": FindingKind.DAMAGED}


def test_state_is_named_and_not_looked_at(checkpoint):
    (checkpoint / "state" / "0" / "0").mkdir(parents=True)
    assert kinds(checkpoint) == {"state": FindingKind.NOTE}


@pytest.fixture
def kafka():
    with FakeKafka() as cluster:
        yield cluster


def against(kafka, checkpoint, *records, partitions=3):
    """Verify, with a topic of the same name in the cluster, whose partition 0 has this many records."""
    kafka.create_topic(TOPIC, partitions)
    for number, count in enumerate(records):
        kafka.append(TOPIC, *[b"x"] * count, partition=number)
    return command("verify", checkpoint, "--bootstrap", kafka.bootstrap, "--json")


def test_topics_and_offsets_are_looked_at_in_the_cluster(kafka, checkpoint):
    forget_ids(checkpoint)
    assert against(kafka, checkpoint, 16, 10, 6).exit_code == 0
    shown = json.loads(command("show", checkpoint, "--bootstrap", kafka.bootstrap, "--json").stdout)
    assert [(row["offset"], row["end"], row["lag"]) for row in shown["offset"]] == [(16, 16, 0), (10, 10, 0), (6, 6, 0)]


def forget_ids(checkpoint, number=5):
    change_rest(checkpoint, f"offsets/{number}", lambda rest: rest["topic_ids"].clear())


def change_rest(checkpoint, name, change):
    """What is ours alone in the offsets of a batch, under a checksum that holds."""
    *head, line = (checkpoint / name).read_text().split("\n")
    shown = json.loads(line)
    (own,) = (key for key in shown if key.startswith(OURS))
    rest = body_of(own.removeprefix(OURS))
    change(rest)
    del shown[own]
    whole = {**shown, OURS + sealed("headrace-offsets", rest).decode(): {}}
    damage(checkpoint, name, "\n".join([*head, json.dumps(whole)]).encode())


def test_the_cluster_may_be_named_by_the_environment_and_by_properties(kafka, checkpoint, monkeypatch):
    by_property = command("verify", checkpoint, "--property", f"bootstrap.servers={kafka.bootstrap}")
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", kafka.bootstrap)
    for done in (by_property, command("verify", checkpoint)):
        assert done.stdout.count("it is gone, which is data loss") == 3
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "Findings" in command("verify", checkpoint).stdout  # a table, as on a terminal


def test_an_offset_behind_the_end_of_the_log_is_refused(kafka, checkpoint):
    forget_ids(checkpoint)
    done = against(kafka, checkpoint, 15, 10, 6)
    (finding,) = json.loads(done.stdout)["finding"]
    assert (done.exit_code, finding["where"]) == (1, f"{TOPIC}-0")
    assert "the log ends at 15" in finding["what"]


def begins_of(kafka, checkpoint, *firsts):
    """What keeps the query from continuing where the partitions' logs start at these offsets."""
    for partition, first in enumerate(firsts):
        kafka.delete_records(TOPIC, partition, before=first)
    done = command("verify", checkpoint, "--bootstrap", kafka.bootstrap, "--json")
    found = [finding["what"] for finding in json.loads(done.stdout)["finding"] if finding["kind"] == "refused"]
    assert done.exit_code == bool(found)
    return found


def test_what_is_gone_of_a_batch_that_is_to_be_run_again_keeps_the_query_from_going_on(kafka, checkpoint):
    for number in (4, 5):
        forget_ids(checkpoint, number)
    assert against(kafka, checkpoint, 16, 10, 6).exit_code == 0
    assert begins_of(kafka, checkpoint, 13, 10, 3) == []
    (checkpoint / "commits" / "5").unlink()
    assert begins_of(kafka, checkpoint, 13, 10, 3) == []
    lost = [f"offset {n} is next, and the log starts at {n + 1}: what is between is lost" for n in (13, 3)]
    assert begins_of(kafka, checkpoint, 14, 10, 4) == lost


def test_a_batch_after_one_of_the_jvm_connectors_starts_where_that_has_ended_and_new_partitions_where_they_were_found(
    kafka, checkpoint
):
    for name in ("offsets/5", "commits/5", "commits/4"):
        (checkpoint / name).unlink()
    forget_ids(checkpoint, 4)
    assert against(kafka, checkpoint, 16, 10, 6).exit_code == 0
    assert [what.partition(" is next")[0] for what in begins_of(kafka, checkpoint, 11, 10, 1)] == ["offset 10", "offset 0"]


def test_a_topic_that_was_created_again_is_refused(kafka, checkpoint):
    done = against(kafka, checkpoint, 16, 10, 6)
    assert done.exit_code == 1
    assert all("created again" in finding["what"] for finding in json.loads(done.stdout)["finding"])


def test_a_topic_and_a_partition_that_are_gone_are_refused(kafka, checkpoint):
    done = command("verify", checkpoint, "--bootstrap", kafka.bootstrap, "--json")
    assert [finding["what"] for finding in json.loads(done.stdout)["finding"]] == ["it is gone, which is data loss"] * 3
    forget_ids(checkpoint)
    done = against(kafka, checkpoint, 16, 10, partitions=2)
    assert [finding["where"] for finding in json.loads(done.stdout)["finding"]] == [f"{TOPIC}-2"]


# --- show and diff ----------------------------------------------------------------------------------------------------


def test_show_prints_lines_for_scripts(checkpoint):
    lines = command("show", checkpoint).stdout.splitlines()
    query_id = json.loads((GOLDEN / "metadata").read_text())["id"]
    assert lines[0] == f"query\t{query_id}\t4\t4\t0"
    assert [line.split("\t")[:3] for line in lines[1:5]] == [["batch", str(number), "committed"] for number in (2, 3, 4, 5)]
    assert lines[5] == f"offset\t0\theadrace\t{TOPIC}\t{TOPIC_ID}\t0\t16"


def test_show_names_damage_and_sources_that_are_not_kafkas(checkpoint):
    damage(checkpoint, "offsets/5", b"v1\n{}\n17")
    damage(checkpoint, "commits/5", b"")
    lines = command("show", checkpoint).stdout.splitlines()
    assert "other\t0\t17" in lines
    assert lines[-1].startswith("damaged\tcommits/5\tit is empty")


def test_a_batch_that_is_not_there_is_refused_by_its_number(checkpoint):
    assert "no readable batch 9; it has 2 to 5" in str(command("show", checkpoint, "--batch", "9").exception)


def test_diff_shows_what_differs_and_nothing_else(checkpoint, tmp_path):
    assert (command("diff", checkpoint, GOLDEN).exit_code, command("diff", checkpoint, GOLDEN).stdout) == (0, "")
    plan = set_offsets(read_checkpoint(str(checkpoint)), {(TOPIC, 1): 3})
    write_copy(read_checkpoint(str(checkpoint)), str(tmp_path / "copy"), plan)
    done = command("diff", checkpoint, tmp_path / "copy")
    assert (done.exit_code, done.stdout) == (1, f"offset\t0\t{TOPIC}\t{TOPIC_ID}\t1\t10\t3\t-7\n")


def test_a_source_that_is_not_kafkas_and_has_read_on_is_a_difference(tmp_path):
    text = 'v1\n{"batchTimestampMs":7,"batchWatermarkMs":0}\n{"logOffset":%d}'
    first, second = (planned_at_memory(f"other-{at}", text % at) for at in (3, 9))
    assert command("diff", first, first).exit_code == 0
    done = command("diff", first, second)
    assert (done.exit_code, done.stdout) == (1, 'other\t0\t{"logOffset":3}\t{"logOffset":9}\n')


# --- copies -----------------------------------------------------------------------------------------------------------


def copied(checkpoint, tmp_path, plan):
    write_copy(read_checkpoint(str(checkpoint)), str(tmp_path / "copy"), plan(read_checkpoint(str(checkpoint))))
    assert not read_checkpoint(str(tmp_path / "copy")).damaged
    return tmp_path / "copy"


def differing(before, after):
    left, right = files(before), files(after)
    return {name for name in {*left, *right} if left.get(name) != right.get(name)}


def test_a_fork_differs_by_its_query_alone(checkpoint, tmp_path):
    copy = copied(checkpoint, tmp_path, fork)
    assert differing(checkpoint, copy) == {"metadata", ".metadata.crc"}
    assert read_checkpoint(str(copy)).query_id != read_checkpoint(str(checkpoint)).query_id


@pytest.mark.parametrize("snapshot", ["initial", "never", "only"])
def test_of_a_query_that_reads_a_slot_no_fork_is_made(checkpoint, snapshot):
    """The server keeps one position of a slot: whichever query comes second would lose changes."""
    source = ChangesSource("postgresql://h/db", tables=["t"], publication="p", slot="headrace_s", snapshot=snapshot)
    offset = json.loads(ReadingFormat(source.source_of(0, None)).initial_mark())
    text = STAGE.seal({"stage": 0, "after": None, "offset": offset}).decode()
    planned = checkpoint / "offsets" / "5"
    *head, _ = planned.read_text().split("\n")
    planned.write_text("\n".join([*head, text]))
    planned.with_name(".5.crc").unlink(missing_ok=True)
    refused = pytest.raises(StateError, match="reads a replication slot, and only one query can")
    with nullcontext() if snapshot == "only" else refused:  # which has no slot
        fork(read_checkpoint(str(checkpoint)))


def test_a_fork_may_be_made_of_a_batch_that_is_not_committed(checkpoint, tmp_path):
    (checkpoint / "commits" / "5").unlink()
    assert read_checkpoint(str(copied(checkpoint, tmp_path, fork))).last_planned == 5


@pytest.mark.parametrize("batch", [2, 3, 4, 5])
def test_a_rewound_copy_continues_where_that_batch_has_ended_and_is_of_a_new_query(checkpoint, tmp_path, batch):
    copy = copied(checkpoint, tmp_path, lambda found: rewind(found, batch))
    assert read_checkpoint(str(copy)).query_id != read_checkpoint(str(checkpoint)).query_id
    assert [positions(copy, number) for number in (2, 3, 4, 5)] == [
        positions(checkpoint, min(number, batch)) for number in (2, 3, 4, 5)
    ]
    later = {f"offsets/{name}" for number in range(batch + 1, 6) for name in (f"{number}", f".{number}.crc")}
    assert differing(checkpoint, copy) == {"metadata", ".metadata.crc", *later}
    assert kinds(copy) == {}


def test_a_rewound_query_continues_with_a_number_that_no_sink_has_written(checkpoint, tmp_path):
    """Spark's file sinks know no query, and skip the batches whose numbers they have; so do writes by `txnAppId`."""
    found = read_checkpoint(str(copied(checkpoint, tmp_path, lambda found: rewind(found, 3))))
    assert (found.last_planned, found.last_committed) == (5, 5)


def test_what_cannot_be_rewound_is_refused(checkpoint):
    with pytest.raises(UsageError, match="no readable batch 9"):
        rewind(read_checkpoint(str(checkpoint)), 9)
    (checkpoint / "state" / "0").mkdir(parents=True)
    with pytest.raises(StateError, match="keeps state"):
        rewind(read_checkpoint(str(checkpoint)), 4)
    damage(checkpoint, "offsets/4", b"v1\n{}\n17")
    (checkpoint / "state" / "0").rmdir()
    with pytest.raises(StateError, match="not Kafka's"):
        rewind(read_checkpoint(str(checkpoint)), 4)


def test_set_offsets_moves_those_partitions_and_forgets_what_was_known_of_them(checkpoint, tmp_path):
    copy = copied(checkpoint, tmp_path, lambda found: set_offsets(found, {(TOPIC, 0): 2}))
    assert positions(copy) == positions(checkpoint) | {(TOPIC, 0): 2}
    (source,) = read_checkpoint(str(copy)).batch(None).sources
    assert {split.partition: split.last_epoch for split in stored_positions(source.text)} == {0: None, 1: 0, 2: 0}
    assert differing(checkpoint, copy) == {"offsets/5", "offsets/.5.crc"}


def test_what_is_pinned_of_the_formats_of_values_stays(checkpoint, tmp_path):
    pinned = {"value": {"format": "avro", "id": "7", "fingerprint": "0123456789abcdef", "type": {"a": "int32"}}}
    change_rest(checkpoint, "offsets/5", lambda rest: rest.update(formats=pinned))
    copy = copied(checkpoint, tmp_path, lambda found: set_offsets(found, {(TOPIC, 0): 2}))
    (source,) = read_checkpoint(str(copy)).batch(None).sources
    assert stored_positions(source.text).formats == pinned


def test_set_offsets_of_the_jvm_connectors_stay_in_its_form(checkpoint, tmp_path):
    for name in ("offsets/4", "offsets/5", "commits/4", "commits/5"):
        (checkpoint / name).unlink()
    copy = copied(checkpoint, tmp_path, lambda found: set_offsets(found, {(TOPIC, 1): 7}))
    assert (copy / "offsets" / "3").read_text().endswith(f'\n{{"{TOPIC}":{{"0":10,"1":7}}}}')


@pytest.mark.parametrize("place", [("other", 0), (TOPIC, 3)])
def test_partitions_that_are_not_stored_are_refused(checkpoint, place):
    with pytest.raises(UsageError, match="not stored in any source"):
        set_offsets(read_checkpoint(str(checkpoint)), {place: 1})


def test_a_topic_is_forgotten_with_all_that_is_stored_of_it(checkpoint, tmp_path):
    copy = copied(checkpoint, tmp_path, lambda found: forget_topic(found, TOPIC))
    assert positions(copy) == {}
    assert TOPIC not in (copy / "offsets" / "5").read_text()
    with pytest.raises(UsageError, match="other: not stored"):
        forget_topic(read_checkpoint(str(checkpoint)), "other")


def test_an_export_has_no_key_that_the_jvm_connector_does_not_know(checkpoint, tmp_path):
    copy = copied(checkpoint, tmp_path, export_to_jvm)
    assert differing(checkpoint, copy) == {"offsets/4", "offsets/.4.crc", "offsets/5", "offsets/.5.crc"}
    assert (copy / "offsets" / "5").read_text().endswith(f'\n{{"{TOPIC}":{{"0":16,"1":10,"2":6}}}}')
    assert positions(copy) == positions(checkpoint)
    with pytest.raises(UsageError, match="nothing to export"):
        export_to_jvm(read_checkpoint(str(copy)))


CHANGES = {
    "set-offsets": lambda found: set_offsets(found, {(TOPIC, 0): 2}),
    "forget-topic": lambda found: forget_topic(found, TOPIC),
    "export": export_to_jvm,
}


def write_epoch(sink, location, epoch):
    """As a query of this checkpoint does it, with a sink that keeps the batch's entry in the offset log."""
    job = read_checkpoint(str(location)).query_id
    with sink.begin(Attempt(job, epoch, 0, 0)) as transaction:
        transaction.write(pa.RecordBatch.from_pydict({"value": [epoch]}))
        said = [PreparedMessage(job, epoch, transaction.prepare())]
    StreamWriter(sink, ["value"], OffsetLog(str(location))).commit(said, epoch)


@pytest.mark.parametrize("name", CHANGES)
def test_a_supervised_query_continues_from_a_copy_whose_last_offsets_were_changed(checkpoint, tmp_path, name):
    """A supervised driver compares the last batch with what the sink has recorded of it, before the query starts."""
    sink, job = MemorySink(log := MemoryTransactionLog()), read_checkpoint(str(checkpoint)).query_id
    write_epoch(sink, checkpoint, 5)
    copy = copied(checkpoint, tmp_path, CHANGES[name])
    StreamWriter(sink, ["value"], OffsetLog(str(copy))).recover(job, lambda: 5)
    write_epoch(sink, copy, 6)
    assert [row["value"] for row in log.rows()] == [5, 6]


@pytest.mark.parametrize("name", CHANGES)
def test_a_last_batch_that_is_to_be_run_again_from_other_offsets_is_refused(checkpoint, tmp_path, name):
    sink, job = MemorySink(MemoryTransactionLog()), read_checkpoint(str(checkpoint)).query_id
    write_epoch(sink, checkpoint, 5)
    copy = copied(checkpoint, tmp_path, CHANGES[name])
    (copy / "commits" / "5").unlink()
    with pytest.raises(StaleEpochError, match="from another plan"):
        StreamWriter(sink, ["value"], OffsetLog(str(copy))).recover(job, lambda: 5)


# --- to headrace run --------------------------------------------------------------------------------------------------

SPLITS = CheckpointSerializer("kafka", KafkaSplitSerializer())


def exported(path):
    return fetch_savepoint(Path(path)).positions(SPLITS)


def test_a_querys_positions_become_a_savepoint_of_headrace_run_by_topic_id(checkpoint, tmp_path):
    (tmp_path / "savepoints").mkdir()
    os.utime(tmp_path / "savepoints", (LONG_AGO, LONG_AGO))  # a folder of long ago says nothing of the time
    before = files(checkpoint)
    done = command("export", "--to", "run", checkpoint, tmp_path / "savepoints")
    assert done.exit_code == 0, done.output
    found = exported(done.stdout.strip())
    splits = [state.split for state in found.splits]
    offsets = {(split.topic, str(split.topic_id), split.partition): split.next_offset for split in splits}
    assert offsets == {(TOPIC, TOPIC_ID, 0): 16, (TOPIC, TOPIC_ID, 1): 10, (TOPIC, TOPIC_ID, 2): 6}
    assert (found.checkpoint_id, found.exhausted, any(state.finished for state in found.splits)) == (5, False, False)
    assert files(checkpoint) == before


def test_a_savepoint_has_no_leader_epochs_of_spark_which_are_not_those_of_the_records_before(checkpoint):
    """A reader names the epoch of the record before its position; Spark's is of the leader that reported the end."""
    stored = stored_positions(read_checkpoint(str(checkpoint)).batch(None).sources[0].text)
    assert {split.last_epoch for split in stored} == {0}
    found = savepoint_of(read_checkpoint(str(checkpoint)), None).positions(SPLITS)
    assert {state.split.last_epoch for state in found.splits} == {None}


def test_the_jvm_connectors_positions_get_the_ids_of_the_topics_that_there_are(checkpoint, tmp_path):
    for name in ("offsets/5", "commits/5", "offsets/4", "commits/4"):
        (checkpoint / name).unlink()
    assert "give --bootstrap" in str(command("export", "--to", "run", checkpoint, tmp_path / "savepoints").exception)
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC, partitions=2)
        done = command("export", "--to", "run", checkpoint, tmp_path / "savepoints", "--bootstrap", kafka.bootstrap)
        assert done.exit_code == 0, done.output
        source = KafkaSource(kafka.bootstrap, topics=[TOPIC])
        ids = source.create_discovery().topic_ids([(TOPIC, 0), (TOPIC, 1)])
        splits = [state.split for state in exported(done.stdout.strip()).splits]
        found = {(split.topic, split.partition): (split.topic_id, split.next_offset) for split in splits}
        assert found == {tp: (ids[tp], 10) for tp in ids}
        kafka.delete_topic(TOPIC)
        kafka.create_topic(TOPIC, partitions=1)
        with pytest.raises(DataLossError, match=f"partitions that are gone: {TOPIC}-1"):
            savepoint_of(read_checkpoint(str(checkpoint)), shared_cluster(source.config))


def test_no_savepoint_is_made_of_a_query_that_runs_or_keeps_state_or_has_a_batch_not_committed(checkpoint, tmp_path):
    def refused(message):
        assert message in str(command("export", "--to", "run", checkpoint, tmp_path / "savepoints").exception)
        assert not list(tmp_path.glob("savepoints/*"))

    (checkpoint / "state").mkdir()
    (checkpoint / "state" / "0").mkdir()
    refused("keeps state")
    shutil.rmtree(checkpoint / "state")
    (checkpoint / "commits" / "5").rename(tmp_path / "5")
    refused("batch 5 is not committed")
    (tmp_path / "5").rename(checkpoint / "commits" / "5")
    os.utime(checkpoint / "commits" / "5")
    refused("so its query may be running")
    text = (checkpoint / "offsets" / "5").read_text()
    (checkpoint / "offsets" / "5").write_text(f"{text}\n{text.splitlines()[2]}")
    (checkpoint / "offsets" / ".5.crc").unlink(missing_ok=True)
    refused("a pipeline has one source")


def store_topic_twice(checkpoint, name):
    """As while a topic that was created again has not been dropped yet."""
    topic_id = f"{TOPIC_ID[:-1]}0"
    again = f"{TOPIC}@{topic_id}"

    def store(rest):
        rest["offsets"][again], rest["began"][again], rest["topic_ids"][again] = {"0": 1}, {"0": 0}, topic_id

    change_rest(checkpoint, name, store)


def test_a_topic_that_is_stored_twice_is_not_exported(checkpoint):
    store_topic_twice(checkpoint, "offsets/5")
    with pytest.raises(StateError, match="was created again"):
        export_to_jvm(read_checkpoint(str(checkpoint)))


def test_an_older_batch_with_a_topic_that_is_stored_twice_does_not_stand_in_the_way_of_an_export(checkpoint, tmp_path):
    """Spark keeps a hundred batches: "read on until the older one is dropped" took as many."""
    store_topic_twice(checkpoint, "offsets/4")
    copy = copied(checkpoint, tmp_path, export_to_jvm)
    assert (copy / "offsets" / "4").read_bytes() == (checkpoint / "offsets" / "4").read_bytes()
    assert (copy / "offsets" / "5").read_text().endswith(f'\n{{"{TOPIC}":{{"0":16,"1":10,"2":6}}}}')


@pytest.mark.parametrize("plan", [lambda c: rewind(c, 4), lambda c: set_offsets(c, {(TOPIC, 0): 1}), export_to_jvm])
def test_while_the_last_batch_is_not_committed_only_a_fork_is_possible(checkpoint, plan):
    (checkpoint / "commits" / "5").unlink()
    with pytest.raises(StateError, match="batch 5 is not committed"):
        plan(read_checkpoint(str(checkpoint)))


def test_of_a_damaged_checkpoint_no_changed_copy_is_made(checkpoint):
    damage(checkpoint, "commits/2", b"")
    with pytest.raises(StateError, match="commits/2 is damaged"):
        export_to_jvm(read_checkpoint(str(checkpoint)))


def test_a_checkpoint_that_was_just_written_to_is_a_running_querys(checkpoint, tmp_path):
    (checkpoint / "commits" / "5").touch()
    assert "its query may be running" in str(command("fork", checkpoint, tmp_path / "copy").exception)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert command("fork", checkpoint, tmp_path / "copy", "--stopped").exit_code == 0


@pytest.mark.skipif(sys.platform != "linux", reason="supervision is for Linux")
def test_a_supervised_query_that_has_found_nothing_to_read_for_long_is_noticed_and_keeps_its_lock(checkpoint, tmp_path):
    script = "import sys\nfrom headrace.runners.spark.supervision import lock, process_tree\n" + (
        "lock.CheckpointLock(sys.argv[1]).take(process_tree.new_tree())\nprint(flush=True)\nsys.stdin.read()"
    )
    (tmp_path / "savepoints").mkdir()
    run = [sys.executable, "-c", script, str(checkpoint)]
    pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": python_path()}
    with subprocess.Popen(run, stdin=pipe, stdout=pipe, text=True, env=environment) as driver:
        assert driver.stdout.readline() == "\n"
        for name, words in {**COMMANDS, "export": ("--to", "run")}.items():
            done = command(name, checkpoint, tmp_path / "savepoints" / name, *words)
            assert "a supervised driver is running with" in str(done.exception), name
        assert is_held(str(checkpoint))
        assert command("fork", checkpoint, tmp_path / "fork", "--stopped").exit_code == 0
        driver.communicate()
    assert not is_held(str(checkpoint))
    assert command("fork", checkpoint, tmp_path / "copy").exit_code == 0


def test_a_query_that_continues_meanwhile_is_noticed_though_it_is_said_to_be_stopped(checkpoint, tmp_path, monkeypatch):
    read = LocalStore.open_to_read

    def goes_on(store, name):
        (checkpoint / "offsets" / "6").write_bytes((checkpoint / "offsets" / "5").read_bytes())
        return read(store, name)

    monkeypatch.setattr(LocalStore, "open_to_read", goes_on)
    found = read_checkpoint(str(checkpoint))
    with pytest.raises(StateError, match="has changed meanwhile"):
        write_copy(found, str(tmp_path / "copy"), fork(found), quiet_s=0.0)
    assert (checkpoint / "offsets" / "6").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


COMMANDS = {
    "fork": (),
    "rewind": ("--to-batch", "4"),
    "set-offsets": ("--offset", f"{TOPIC}:0=2"),
    "forget-topic": ("--topic", TOPIC),
    "export": ("--to", "jvm"),
}

KILLED_WITHIN = """
import json, os, sys, warnings
from typer.testing import CliRunner
from headrace.cli import app
from headrace.spark.checkpoints import copies  # before the first fork

CHANGING = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "open"}
checkpoint, copy = sys.argv[1:3]
left = None
CliRunner().invoke(app, ["checkpoint", "fork", checkpoint, f"{copy}-first"])  # loads the rest

def count(event, arguments):
    global left
    if left is None or event not in CHANGING or not str(arguments[0]).startswith(os.path.dirname(copy)):
        return
    if event == "open" and not arguments[2] & os.O_CREAT:
        return
    if left == 0:
        os.kill(os.getpid(), 9)
    left -= 1

sys.addaudithook(count)
for command, words in json.loads(sys.argv[3]).items():
    for nth in range(0, 1000, int(sys.argv[4])):
        child = os.fork()
        if child == 0:
            left = nth
            done = CliRunner().invoke(app, ["checkpoint", command, checkpoint, f"{copy}-{command}-{nth}", *words])
            os._exit(done.exit_code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(command, nth, status)
        if status != -9:
            break
"""


def killed_within(commands, checkpoint, folder, every):
    """Each command, killed at one of this many operations after the other, until it is done: statuses by command and number."""
    folder.mkdir()
    program = [sys.executable, "-c", KILLED_WITHIN, str(checkpoint), str(folder / "copy"), json.dumps(commands), str(every)]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = {(command, int(nth)): int(status) for command, nth, status in map(str.split, done.stdout.splitlines())}
    for name in commands:
        statuses = [status for (command, _), status in outcomes.items() if command == name]
        assert statuses == [-9] * (len(statuses) - 1) + [0]
        assert len(statuses) > 4
    return outcomes


@pytest.mark.full
def test_killed_in_the_middle_there_is_no_copy_and_the_checkpoint_is_as_it_was(checkpoint, tmp_path):
    before = files(checkpoint)
    outcomes = killed_within({name: COMMANDS[name] for name in ("fork", "export")}, checkpoint, tmp_path / "copies", 6)
    whole = {"copy-first", *(f"copy-{command}-{nth}" for (command, nth), status in outcomes.items() if status == 0)}
    assert {path.name for path in (tmp_path / "copies").iterdir() if not path.name.startswith(".")} == whole
    assert files(checkpoint) == before


@pytest.mark.full
def test_killed_in_the_middle_there_is_no_savepoint_or_a_whole_one_and_the_checkpoint_is_as_it_was(checkpoint, tmp_path):
    before = files(checkpoint)
    outcomes = killed_within({"export": ("--to", "run")}, checkpoint, tmp_path / "savepoints", 1)
    wanted = savepoint_of(read_checkpoint(str(checkpoint)), None)
    for (name, nth), status in outcomes.items():
        folder = tmp_path / "savepoints" / f"copy-{name}-{nth}"
        found = list(folder.glob("savepoint-*.json"))
        assert [fetch_savepoint(path) for path in found] in ([[wanted]] if status == 0 else [[], [wanted]])
        assert fetch_savepoint(Path(command("export", "--to", "run", checkpoint, folder).stdout.strip())) == wanted
    assert files(checkpoint) == before


class Dead(Exception):  # noqa: N818 - not an error of any process
    """It ends here, and whatever is tried afterwards does not happen."""


class Mortal:
    """Lets this many operations happen, and no more."""

    def __init__(self, monkeypatch, owner, names):
        self.left = 0
        for name in names:
            monkeypatch.setattr(owner, name, self._mortal(getattr(owner, name)))

    def _mortal(self, operation):
        def run(*arguments, **named):
            if self.left <= 0:
                raise Dead
            self.left -= 1
            return operation(*arguments, **named)

        return run


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_whichever_operation_a_command_ends_in_there_is_no_copy_and_it_can_be_made_again(
    checkpoint, tmp_path, monkeypatch, name
):
    before = files(checkpoint)
    with monkeypatch.context() as patched:
        lifetime = Mortal(patched, pathlib.Path, ("mkdir", "open", "rename", "unlink", "rmdir"))
        patched.setattr(targets.shutil, "rmtree", lambda *_, **__: None)
        for operations in range(0, 200, 1 if name == "fork" else 5):  # all write in the same way
            lifetime.left = operations
            done = command(name, checkpoint, tmp_path / "copy", *COMMANDS[name])
            if done.exit_code == 0:
                break
            assert isinstance(done.exception, Dead)
            assert not (tmp_path / "copy").exists()
    assert operations > 20
    assert files(checkpoint) == before
    assert not any(kind.prevents_restore for kind in kinds(tmp_path / "copy").values())


# --- other stores -----------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket():
    """An address in memory, and its filesystem."""
    import fsspec

    memory = fsspec.filesystem("memory")
    yield "memory://bucket", memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def stored(memory, folder):
    root = f"/bucket/{folder}"
    return {path.removeprefix(f"{root}/"): memory.cat_file(path) for path in memory.find(root)}


def test_a_copy_goes_into_another_store_changed_there_and_back(checkpoint, tmp_path, bucket):
    (url, memory), found = bucket, read_checkpoint(str(checkpoint))
    write_copy(found, f"{url}/first", set_offsets(found, {(TOPIC, 0): 2}))
    there = read_checkpoint(f"{url}/first")
    assert (there.query_id, there.damaged) == (found.query_id, ())
    write_copy(there, f"{url}/second", rewind(there, 4), quiet_s=0.0)
    write_copy(there, str(tmp_path / "back"), set_offsets(there, {(TOPIC, 0): 16}), quiet_s=0.0)
    changed = {"offsets/5", "offsets/.5.crc"}
    assert differing(checkpoint, tmp_path / "back") == changed - {"offsets/5"} | differing_text(checkpoint, tmp_path / "back")
    assert positions(tmp_path / "back") == positions(checkpoint)
    wanted = {f"offsets/{name}" for number in (2, 3, 4) for name in (f"{number}", f".{number}.crc")} | {"offsets/5"}
    assert {name for name in stored(memory, "second") if name.startswith("offsets")} == wanted
    assert command("fork", f"{url}/first", f"{url}/third", "--stopped").exit_code == 0
    assert read_checkpoint(f"{url}/third").query_id != found.query_id


def differing_text(before, after):
    """`set-offsets` forgets a leader's epoch, so there and back is not the same text."""
    return {"offsets/5"} if (before / "offsets" / "5").read_bytes() != (after / "offsets" / "5").read_bytes() else set()


def test_hadoops_name_of_a_store_is_understood():
    assert fsspec_address("s3a://bucket/x") == fsspec_address("s3n://bucket/x") == "s3://bucket/x"


def test_in_another_store_a_query_that_runs_is_noticed(checkpoint, bucket):
    (url, memory), found = bucket, read_checkpoint(str(checkpoint))
    write_copy(found, f"{url}/first", fork(found))
    there = read_checkpoint(f"{url}/first")
    with pytest.raises(StateError, match="may be running"):
        write_copy(there, f"{url}/second", fork(there))
    assert stored(memory, "second") == {}


def test_a_copy_into_another_store_that_ends_at_whichever_operation_is_refused_by_spark_or_whole(
    checkpoint, bucket, monkeypatch
):
    (url, memory), found = bucket, read_checkpoint(str(checkpoint))
    plan = set_offsets(found, {(TOPIC, 0): 2})
    lifetime = Mortal(monkeypatch, memory, ("open", "rm_file", "pipe_file"))
    outcomes = []
    for operations in range(100):
        lifetime.left = operations
        try:
            write_copy(found, f"{url}/{operations}", plan)
        except Dead:
            lifetime.left = 1000
            made = stored(memory, str(operations))
            assert not made or made["metadata"] == UNFINISHED
            if made:
                assert "metadata" in [finding.where for finding in findings_of(read_checkpoint(f"{url}/{operations}"))]
                with pytest.raises(UsageError, match="not finished: remove it first"):
                    write_copy(found, f"{url}/{operations}", plan)
            outcomes.append(bool(made))
        else:
            lifetime.left = 1000
            assert not findings_of(read_checkpoint(f"{url}/{operations}"))
            break
    assert outcomes.count(True) > 15


def test_a_copy_into_another_store_that_fails_is_taken_away(checkpoint, bucket, monkeypatch):
    url, memory = bucket
    (checkpoint / "commits" / "5").touch()
    found = read_checkpoint(str(checkpoint))
    with pytest.raises(StateError, match="may be running"):
        write_copy(found, f"{url}/copy", fork(found))
    assert stored(memory, "copy") == {}


def test_a_checkpoint_that_is_said_to_be_stopped_is_copied_though_the_stores_clock_seems_to_lag(checkpoint, tmp_path):
    found = read_checkpoint(str(checkpoint))
    soon = time.time() + 3600
    os.utime(checkpoint / "commits" / "5", (soon, soon))
    write_copy(found, str(tmp_path / "copy"), fork(found), quiet_s=0.0)
    assert not findings_of(read_checkpoint(str(tmp_path / "copy")))


# --- times ------------------------------------------------------------------------------------------------------------


def test_the_batch_at_a_time_is_the_last_before_the_first_that_was_planned_later(checkpoint):
    found = read_checkpoint(str(checkpoint))
    times = {number: batch.planned_ms for number, batch in found.planned.items()}
    assert [batch_at(found, times[number]) for number in times] == list(times)
    assert batch_at(found, times[5] - 1) == 4
    assert batch_at(found, times[5] + 10**9) == 5
    with pytest.raises(UsageError, match=r"no batch in .* was planned by"):
        batch_at(found, times[2] - 1)


def test_a_clock_that_went_back_between_two_batches_has_more_read_again_and_not_less(checkpoint):
    found = read_checkpoint(str(checkpoint))
    times = dict(zip(found.planned, (10, 30, 20, 40), strict=True))
    planned = {number: replace(batch, planned_ms=times[number]) for number, batch in found.planned.items()}
    assert batch_at(replace(found, planned=planned), 25) == 2
    planned[3] = replace(planned[3], planned_ms=None)
    assert batch_at(replace(found, planned=planned), 99) == 2


def test_a_checkpoint_is_rewound_to_a_time(checkpoint, tmp_path):
    planned_ms = read_checkpoint(str(checkpoint)).planned[4].planned_ms
    shown = instant(planned_ms)
    assert epoch_ms(shown) == planned_ms
    done = command("rewind", checkpoint, tmp_path / "copy", "--to-timestamp", shown)
    assert (done.exit_code, "after batch 4, as a new query, with number 6" in done.output) == (0, True)
    assert positions(tmp_path / "copy") == positions(checkpoint, 4)


@pytest.mark.parametrize("text", ["yesterday", "2026-11-22T10:00:00", "-5", ""])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="is not a time"):
        epoch_ms(text)


@pytest.mark.parametrize("options", [(), ("--to-batch", "4", "--to-timestamp", "0")])
def test_a_rewind_is_to_a_batch_or_to_a_time(checkpoint, tmp_path, options):
    assert "either --to-batch or --to-timestamp" in str(command("rewind", checkpoint, tmp_path / "copy", *options).exception)


def test_a_copy_goes_into_a_new_folder(checkpoint, tmp_path):
    found = read_checkpoint(str(checkpoint))
    for to, why in ((tmp_path, "is there already"), (checkpoint / "x", "within the checkpoint")):
        with pytest.raises(UsageError, match=why):
            write_copy(found, str(to), fork(found))


def test_a_link_leads_no_copy_into_the_checkpoint_itself(checkpoint, tmp_path):
    (tmp_path / "link").symlink_to(checkpoint)
    for location, to in ((tmp_path / "link", checkpoint / "x"), (checkpoint, tmp_path / "link" / "x")):
        found = read_checkpoint(str(location))
        with pytest.raises(UsageError, match="within the checkpoint"):
            write_copy(found, str(to), fork(found))
    assert not (checkpoint / "x").exists()


def test_a_folder_behind_a_link_is_named_and_not_left_out_of_the_copy(checkpoint, tmp_path):
    """State on its own disk, say: the copy had none."""
    (tmp_path / "disk").mkdir()
    (checkpoint / "state").symlink_to(tmp_path / "disk")
    found = read_checkpoint(str(checkpoint))
    with pytest.raises(StateError, match=rf"{checkpoint}/state is a link, to {tmp_path}/disk"):
        write_copy(found, str(tmp_path / "copy"), fork(found), quiet_s=0)
    assert not (tmp_path / "copy").exists()


def test_the_lock_of_a_supervised_query_is_not_taken_over(checkpoint, tmp_path):
    (checkpoint / LOCK_NAME).write_text("a process tree")
    found = read_checkpoint(str(checkpoint))
    write_copy(found, str(tmp_path / "copy"), fork(found), quiet_s=0)
    assert (tmp_path / "copy" / "metadata").exists()
    assert not (tmp_path / "copy" / LOCK_NAME).exists()


SCHEMAS = (
    'v2\n{"operatorInfo":{"operatorId":0,"operatorName":"transformWithStateInPandasExec"},"stateStoreInfo":[{"storeName":'
    '"default","numColsPrefixKey":0,"numPartitions":2,"stateSchemaFilePaths":["file:/old/state/0/_stateSchema/default/0_a"]}],'
    '"operatorPropertiesJson":"{\\"timeMode\\":\\"NoTime\\"}"}'
)
"""As Spark 4.3 writes it for `transformWithState`, but for the path."""


def test_a_copy_names_the_schemas_of_its_own_state_and_not_those_of_the_checkpoint_that_it_was_made_of(
    checkpoint, tmp_path, bucket
):
    named = "state/0/_metadata/v2/0"
    for name, text in ((named, SCHEMAS), ("state/0/_metadata/v2/.0.crc", "sums"), ("state/0/_stateSchema/default/0_a", "")):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    copy = copied(checkpoint, tmp_path, fork)
    assert (copy / named).read_text() == SCHEMAS.replace("file:/old", f"file:{copy}")
    assert not (copy / "state/0/_metadata/v2/.0.crc").exists()
    (url, memory), found = bucket, read_checkpoint(str(checkpoint))
    write_copy(found, f"{url}/copy", fork(found), quiet_s=0.0)
    assert stored(memory, "copy")[named].decode() == SCHEMAS.replace("file:/old", f"{url}/copy")


@pytest.mark.parametrize("text", ["v3\nwhatever", 'v2\n{"stateStoreInfo":[{"storeName":"a"}]}', "v2\n[]", ""])
def test_what_names_schemas_in_a_form_that_is_not_known_is_copied_as_it_is(checkpoint, tmp_path, text):
    path = checkpoint / "state" / "0" / "_metadata" / "v2" / "0"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert (copied(checkpoint, tmp_path, fork) / path.relative_to(checkpoint)).read_text() == text


def test_positions_are_given_by_topic_partition_and_offset():
    assert parse_positions(["a:0=5", "b.c:12=0"]) == {("a", 0): 5, ("b.c", 12): 0}
    for text in ("a", "a:0", "a=5", "a:-1=5", "a:0=x", ":0=1"):
        with pytest.raises(UsageError, match="is not TOPIC:PARTITION=OFFSET"):
            parse_positions([text])
    with pytest.raises(UsageError, match="twice"):
        parse_positions(["a:0=5", "a:0=6"])
    for text in (f"a:0={2**63}", f"a:0={'9' * 5000}", f"a:{'9' * 5000}=0"):
        with pytest.raises(UsageError, match=r"at most 2\*\*63 - 1"):
            parse_positions([text])


def test_every_command_writes_its_copy(checkpoint, tmp_path):
    for name, options in COMMANDS.items():
        done = command(name, checkpoint, tmp_path / name, *options)
        assert done.exit_code == 0, done.output
        assert f"written to {tmp_path / name}" in done.output
    assert differing(checkpoint, GOLDEN) == set()


def test_a_place_that_cannot_be_used_is_named(checkpoint, tmp_path, monkeypatch):
    """A library of a store raises what it likes, as for credentials that are not there."""
    (tmp_path / "file").write_text("")
    failed = command("fork", checkpoint, tmp_path / "file" / "copy", "--stopped").exception
    assert (type(failed), str(tmp_path / "file" / "copy") in str(failed)) == (UsageError, True)

    def refuse(*_):
        raise LookupError("no credentials")

    monkeypatch.setattr("headrace.spark.checkpoints.logs.open_store", refuse)
    failed = command("fork", "s3://bucket/there", tmp_path / "copy").exception
    assert str(failed) == "s3://bucket/there: the checkpoint cannot be read or written there: LookupError: no credentials"


def test_a_store_is_no_folder_for_savepoints(checkpoint, tmp_path, monkeypatch):
    """A local folder of that name was made."""
    monkeypatch.chdir(tmp_path)
    refused = command("export", checkpoint, "s3://bucket/savepoints", "--to", "run", "--stopped").exception
    assert isinstance(refused, UsageError)
    assert not list(tmp_path.glob("s3:*"))
