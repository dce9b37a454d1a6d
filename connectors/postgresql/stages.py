"""The snapshot and the log as two sources, for engines whose readers last no longer than a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from headrace.connectors.postgresql import catalog
from headrace.connectors.postgresql.connection import connect, translated
from headrace.connectors.postgresql.discovery import ChunkDiscovery, Described, LogDiscovery, start_of_log
from headrace.connectors.postgresql.log_reader import SlotPlace, confirm_later
from headrace.connectors.postgresql.splits import ChangesSplit, ChangesSplitSerializer, LogSplit
from headrace.enumerator.source import Boundedness, JsonObject, Source, SourceReader


class Whole(Described, Protocol):
    """The source that has the stages."""

    discovery_interval_s: float | None

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def split_serializer(self) -> ChangesSplitSerializer: ...

    def create_reader(self) -> SourceReader[ChangesSplit]: ...

    def create_replay_reader(self) -> SourceReader[ChangesSplit]: ...


class ChangesStage(Source[ChangesSplit]):
    """One stage of a source of changes. Named by the kind of snapshot, too: state of one kind is not read as another's."""

    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self.name: str = f"{whole.name}-{whole.snapshot}"
        self.discovery_interval_s: float | None = whole.discovery_interval_s

    @property
    def schema(self) -> pa.Schema:
        """As of the whole source."""
        return self._whole.schema

    @property
    def split_serializer(self) -> ChangesSplitSerializer:
        """As of the whole source."""
        return self._whole.split_serializer

    def create_reader(self) -> SourceReader[ChangesSplit]:
        """As of the whole source."""
        return self._whole.create_reader()


class SnapshotStage(ChangesStage):
    """The rows of the tables, in chunks."""

    @property
    def boundedness(self) -> Boundedness:
        """BOUNDED."""
        return Boundedness.BOUNDED

    @property
    def repeatable(self) -> bool:
        """False: a chunk has the rows as they are when it is read."""
        return False

    def create_discovery(self) -> ChunkDiscovery:
        """Makes the slot, if a log follows, and cuts the tables."""
        return ChunkDiscovery(self._whole)

    def end(self, cursor: JsonObject | None, splits: Sequence[ChangesSplit]) -> JsonObject:
        """Where the log starts, and what the chunks have of it."""
        return start_of_log(splits)


class LogStage(ChangesStage):
    """The log. `end`: of the snapshot before it, or None."""

    def __init__(self, whole: Whole, number: int, end: JsonObject | None) -> None:
        super().__init__(whole)
        self._number, self._end = number, end

    @property
    def boundedness(self) -> Boundedness:
        """UNBOUNDED."""
        return Boundedness.UNBOUNDED

    @property
    def repeatable(self) -> bool:
        """Whether rows of a table that is added are not read by the log's reader, too."""
        return self._whole.snapshot == "never"

    def repeats(self, splits: Sequence[ChangesSplit]) -> bool:
        """Whether no rows of a table are missing, which are as they are when they are read."""
        logs = [split for split in splits if isinstance(split, LogSplit)]
        return all(split.has_rows_of(each.table.oid) for split in logs for each in self._whole.followed)

    def create_replay_reader(self) -> SourceReader[ChangesSplit]:
        """Of the log alone: it leaves out tables whose rows are missing, as these have been added since."""
        return self._whole.create_replay_reader()

    def create_discovery(self) -> LogDiscovery:
        """Gives the log's one split. Makes the slot where no snapshot came before."""
        return LogDiscovery(self._whole, self._number, self._end)

    def checkpoint_completed(self, splits: Sequence[ChangesSplit]) -> None:
        """The server may forget the log before these: no reader is connected between two tasks, so the slot is moved.

        Of the server that they are of only: another one, or another timeline, may have a slot of this name, too.
        """
        for split in splits:
            if isinstance(split, LogSplit):
                with translated(self._whole.url, "moving the slot"), connect(self._whole.url) as connection:
                    server = catalog.read_server(connection)
                    if (str(server.system_identifier), server.timeline) == (split.position.system, split.position.timeline):
                        catalog.advance_slot(connection, self._whole.slot, split.position.lsn)


class WholeLog(ChangesStage):
    """The log of a slot, and the tables' rows, which its reader reads first: for engines that do not read stage by stage."""

    @property
    def boundedness(self) -> Boundedness:
        """UNBOUNDED."""
        return Boundedness.UNBOUNDED

    def create_discovery(self) -> LogDiscovery:
        """Makes the slot. Gives the log's one split, which lacks all rows, where they are wanted."""
        return LogDiscovery(self._whole, 0, None, tables=None if self._whole.snapshot == "never" else ())

    def checkpoint_completed(self, splits: Sequence[ChangesSplit]) -> None:
        """The server may forget the log before these. Called in a process that reads it; in others it does nothing."""
        place = SlotPlace(self._whole.url, self._whole.slot, self._whole.publication)
        for split in splits:
            if isinstance(split, LogSplit):
                confirm_later(place, split.position.lsn)
