"""`SplitDeadLetters`: bad records as their own output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.base.dead_letters import BAD_COLUMNS, DEAD_LETTER, LETTER_TYPE
from headrace.enumerator.errors import UsageError


class SplitDeadLetters(beam.PTransform[Any, Any]):
    """Splits batches of `ReadFromKafka(output="arrow", on_bad_record="keep")` into good records and dead letters.

    Gives two outputs, `records` and `dead_letters`, which may be unpacked in this order. `records` are batches without the
    columns that tell of bad records. `dead_letters` are batches with the columns key, value and headers: the original records
    with the headers of `headrace.connectors.base.dead_letters`, as `WriteToKafka` takes them. Both are of one read, so with
    exactly-once delivery both are committed by the same checkpoints.
    """

    main: ClassVar[str] = "records"
    dead: ClassVar[str] = "dead_letters"

    def expand(self, pcoll: Any) -> Any:
        """Called by Beam."""
        split = beam.ParDo(_Split()).with_output_types(pa.RecordBatch)
        return pcoll | "SplitDeadLetters" >> split.with_outputs(self.dead, main=self.main)


class _Split(beam.DoFn):
    def process(self, element: pa.RecordBatch) -> Iterator[Any]:
        if DEAD_LETTER not in element.schema.names:
            raise UsageError(
                f"SplitDeadLetters needs the column {DEAD_LETTER!r}: ReadFromKafka(..., output='arrow', on_bad_record='keep'), "
                "and where columns are named, this one, too"
            )
        column = element.column(DEAD_LETTER)
        good = element.filter(column.is_null()).drop_columns([name for name in BAD_COLUMNS if name in element.schema.names])
        if good.num_rows:
            yield good
        if column.null_count < len(column):
            found = column.drop_null()
            names = [each.name for each in LETTER_TYPE]
            batch = pa.record_batch([pc.struct_field(found, name) for name in names], names=names)
            yield beam.pvalue.TaggedOutput(SplitDeadLetters.dead, batch)
