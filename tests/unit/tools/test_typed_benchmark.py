"""The benchmark of typed values: what its systems decode is compared with what was written."""

import json

import pyarrow as pa
import pytest

pytest.importorskip("psutil")

from benchmarks import typed_systems
from benchmarks.harness import Context
from benchmarks.typed_systems import TYPED_LOCAL_SYSTEMS, typed_decode
from benchmarks.typed_topics import TypedShape
from headrace.formats import AvroFormat, JsonFormat

ALL, TWO = TypedShape("avro", 10, 40), TypedShape("avro", 10, 40, wanted=2)


@pytest.mark.parametrize("system", TYPED_LOCAL_SYSTEMS)
@pytest.mark.parametrize("shape", [ALL, TWO], ids=str)
def test_each_system_decodes_all_of_it(system, shape):
    typed_systems._compared.clear()
    measured = typed_decode(Context(system, "", ""), shape)
    assert measured.records == measured.expected == 40
    assert typed_systems._compared == {(system, shape)}


def test_both_formats_of_a_topic_have_the_same_rows():
    avro = AvroFormat(ALL.writer, header_bytes=5)
    rows, bad = avro.decode(pa.array(ALL.values()[:20]))
    texts = JsonFormat(avro.arrow_type).decode(pa.array(TypedShape("json", 10, 40).values()[:20]))
    assert not bad
    assert not texts.bad
    assert texts.values.to_pylist() == rows.to_pylist()
    assert json.loads(TWO.reader)["fields"] == [json.loads(ALL.writer)["fields"][number] for number in (0, 5)]


@pytest.mark.parametrize(("rows", "said"), [
    (lambda rows: rows[:-1], "did not decode what was written"),
    (lambda rows: [{**row, "f0": 0} for row in rows], "did not decode what was written"),
    (lambda rows: [{"f0": row["f0"]} for row in rows], r"decoded the fields \['f0'\]"),
])  # fmt: skip
def test_a_system_that_decodes_something_else_is_seen(monkeypatch, rows, said):
    real = typed_systems._DECODERS["headrace"]
    monkeypatch.setattr(typed_systems, "_DECODERS", {"headrace": lambda *given: lambda: rows(real(*given)().to_pylist())})
    typed_systems._compared.clear()
    with pytest.raises(RuntimeError, match=said):
        typed_decode(Context("headrace", "", ""), ALL)
