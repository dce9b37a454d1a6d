"""Transforms of pipelines in tests: their processes import them from here."""

import pyarrow as pa
import pyarrow.compute as pc


def narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["key", "value", "partition"])


def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A bug of the user's."""
    raise ValueError("a bug of the user's")


def one_more(batch: pa.RecordBatch) -> pa.RecordBatch:
    more = pc.add(pc.struct_field(batch.column("value"), "a"), 1)
    return pa.record_batch({"value": pa.StructArray.from_arrays([more], names=["sum"]), "partition": batch.column("partition")})


def parted(batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    odd = pa.array([int(value) % 2 == 1 for value in batch.column("value").to_pylist()])
    return {"odd": narrow(batch.filter(odd)), "even": narrow(batch.filter(pc.invert(odd)))}
