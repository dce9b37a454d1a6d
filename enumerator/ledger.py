"""The ledger: every split of a source, and the one place in which it is (invariant I1).

A split is unassigned, assigned to a reader, or finished. Alongside its place the ledger keeps the split's *durable* position,
the one that the last completed checkpoint holds, because that is where reading continues when a reader is lost.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from headrace.enumerator.errors import ProtocolViolationError
from headrace.enumerator.split import SplitT


@dataclass(frozen=True, slots=True)
class Unassigned:
    """Waits for a reader."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Is being read by this reader."""

    reader: int


@dataclass(frozen=True, slots=True)
class FinishedBy:
    """Was read to its end by this reader, but no completed checkpoint says so yet: lost with the reader (FLINK-37416)."""

    reader: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Was read to its end, durably."""


Place = Unassigned | Assigned | FinishedBy | Finished

UNASSIGNED = Unassigned()
FINISHED = Finished()


@dataclass(frozen=True, slots=True)
class LedgerEntry(Generic[SplitT]):
    """One line of the ledger: the split at its durable position, its place, and whether discovery still sees it.

    `gone`: it is proven that it can never come back. Its reader may still deliver what it has fetched.
    """

    durable: SplitT
    place: Place
    missing: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class SplitState(Generic[SplitT]):
    """What a checkpoint stores of one split. Its reader is not stored: after a restore it has none."""

    split: SplitT
    finished: bool


class Ledger(Generic[SplitT]):
    """Mutable; owned by one enumerator. Every method is O(its arguments), none scans the ledger unless it says so."""

    def __init__(self, states: Iterable[SplitState[SplitT]] = ()) -> None:
        """An empty ledger, or the one that a checkpoint holds."""
        self._entries: dict[str, LedgerEntry[SplitT]] = {}
        # Dicts as ordered sets: assignment order is discovery order. What is emptied from the front is an OrderedDict,
        # because a dict walks past everything that was ever deleted there.
        self._unassigned: OrderedDict[str, None] = OrderedDict()
        self._held: dict[int, dict[str, None]] = {}
        self._reading: Counter[int] = Counter()
        self._unreported: dict[str, None] = {}
        self._unfinished = 0
        for state in states:
            self._insert(state.split, FINISHED if state.finished else UNASSIGNED)

    def __len__(self) -> int:
        """Number of splits in it: those ever discovered, without those that were forgotten."""
        return len(self._entries)

    def __contains__(self, split_id: str) -> bool:
        """True when the split was ever discovered, and is not forgotten."""
        return split_id in self._entries

    def __getitem__(self, split_id: str) -> LedgerEntry[SplitT]:
        """The entry of a split; KeyError when it is not in the ledger."""
        return self._entries[split_id]

    def __iter__(self) -> Iterator[LedgerEntry[SplitT]]:
        """Entries in the order of discovery."""
        return iter(self._entries.values())

    @property
    def unassigned(self) -> KeysView[str]:
        """Ids of the splits that wait for a reader, in the order they came: a live view, not a copy."""
        return self._unassigned.keys()

    @property
    def all_finished(self) -> bool:
        """True when every split was read to its end, durably or not."""
        return self._unfinished == 0

    @property
    def all_finished_durably(self) -> bool:
        """True when every split was read to its end, and a completed checkpoint says so of each."""
        return self._unfinished == 0 and not any(self._held.values())

    @property
    def unfinished(self) -> int:
        """Number of splits that are not read to their end."""
        return self._unfinished

    @property
    def unreported(self) -> list[SplitT]:
        """Those that were read to their end, durably, and that the source has not been notified of."""
        return [self._entries[split_id].durable for split_id in self._unreported]

    def held_by(self, reader: int) -> Sequence[str]:
        """Ids that this reader is assigned or has finished since the last completed checkpoint."""
        return list(self._held.get(reader, ()))

    def load(self, reader: int) -> int:
        """Number of splits `held_by` that reader."""
        return len(self._held.get(reader, ()))

    def reading(self, reader: int) -> int:
        """Number of splits that this reader is assigned and has not finished."""
        return self._reading[reader]

    def known(self) -> Mapping[str, SplitT]:
        """Every split at its durable position, but those that are gone. Scans the ledger."""
        return {split_id: entry.durable for split_id, entry in self._entries.items() if not entry.gone}

    def missing(self) -> list[SplitT]:
        """Those that discovery sees no longer, and that may come back. Scans the ledger."""
        return [entry.durable for entry in self._entries.values() if entry.missing and not entry.gone]

    def add(self, splits: Iterable[SplitT]) -> list[str]:
        """Enter new splits as unassigned; returns the ids that were new. A known split keeps its place and position.

        One that was gone and is found all the same was never gone: it continues where it was.
        """
        added: list[str] = []
        for split in splits:
            known = self._entries.get(split.split_id)
            if known is None:
                self._insert(split, UNASSIGNED)
                added.append(split.split_id)
            elif known.gone:
                self._entries[split.split_id] = replace(known, missing=False, gone=False)
        return added

    def assign(self, split_id: str, reader: int) -> SplitT:
        """Move an unassigned split to a reader; returns the split as the reader shall start it."""
        entry = self._expect(split_id, Unassigned)
        del self._unassigned[split_id]
        self._held.setdefault(reader, {})[split_id] = None
        self._reading[reader] += 1
        # not dataclasses.replace, which takes longer than all the rest of a restore
        self._entries[split_id] = LedgerEntry(entry.durable, Assigned(reader), entry.missing, entry.gone)
        return entry.durable

    def finish(self, split_id: str, reader: int) -> None:
        """The reader states that it has read its split to the end."""
        entry = self._expect(split_id, Assigned)
        if entry.place != Assigned(reader):
            raise ProtocolViolationError(f"reader {reader} finished split {split_id}, which is {entry.place}")
        self._entries[split_id] = replace(entry, place=FinishedBy(reader))
        self._reading[reader] -= 1
        self._unfinished -= 1

    def release(self, reader: int) -> list[str]:
        """A reader is lost: what it held is unassigned again, at the durable position; returns those ids."""
        released = list(self._held.pop(reader, ()))
        self._reading.pop(reader, None)
        for split_id in released:
            entry = self._entries[split_id]
            if isinstance(entry.place, FinishedBy):
                self._unfinished += 1
            self._entries[split_id] = replace(entry, place=UNASSIGNED)
            self._unassigned[split_id] = None
        return released

    def snapshot(self, reported: Mapping[str, SplitState[SplitT]]) -> list[SplitState[SplitT]]:
        """The ledger as a checkpoint stores it: what readers reported, else the durable position. Scans the ledger.

        Splits that are gone are left out: there is nothing more to read of them, and no discovery will find them again. So a
        checkpoint does not grow with topics that come and go.
        """
        return [
            reported.get(split_id) or SplitState(entry.durable, isinstance(entry.place, Finished))
            for split_id, entry in self._entries.items()
            if not entry.gone
        ]

    def make_durable(self, reported: Mapping[str, SplitState[SplitT]]) -> None:
        """A checkpoint with these states has completed: a lost reader's splits are read from there.

        Without those that were forgotten meanwhile: a reader that missed a completion reports them again.
        """
        for split_id, state in reported.items():
            if (entry := self._entries.get(split_id)) is None:
                continue
            self._entries[split_id] = replace(entry, durable=state.split)
            if state.finished:
                self._finish_durably(split_id, entry.place)

    def reported(self) -> list[SplitT]:
        """Those that were read to their end, durably, and that the source has been notified of. Scans the ledger."""
        return [
            entry.durable
            for split_id, entry in self._entries.items()
            if entry.place is FINISHED and split_id not in self._unreported
        ]

    def mark_reported(self, split_ids: Iterable[str]) -> list[SplitT]:
        """The source is notified that these are finished. Returns them."""
        splits = [self._expect(split_id, Finished).durable for split_id in split_ids]
        for split in splits:
            self._unreported.pop(split.split_id, None)
        return splits

    def forget(self, split_ids: Iterable[str]) -> None:
        """The same, where discovery will not find them again: nothing is left to be known of them."""
        for split_id in split_ids:
            self._expect(split_id, Finished)
            del self._entries[split_id]
            self._unreported.pop(split_id, None)

    def mark_missing(self, missing: Iterable[str]) -> list[SplitT]:
        """Record which known splits discovery no longer sees; returns those that were seen until now. Scans the ledger.

        A missing split keeps its place and its position, so a flapping metadata answer never makes it new (FLINK-39837).
        """
        now_missing = frozenset(missing)
        newly: list[SplitT] = []
        for split_id, entry in self._entries.items():
            if not entry.gone and entry.missing != (split_id in now_missing):
                self._entries[split_id] = replace(entry, missing=not entry.missing)
                if not entry.missing:
                    newly.append(entry.durable)
        return newly

    def mark_gone(self, split_ids: Iterable[str]) -> None:
        """It is proven that these can never come back."""
        for split_id in split_ids:
            self._entries[split_id] = replace(self._entries[split_id], missing=True, gone=True)

    def _insert(self, split: SplitT, place: Place) -> None:
        split_id = split.split_id
        if split_id in self._entries:
            raise ProtocolViolationError(f"split {split_id} is in the ledger twice")
        self._entries[split_id] = LedgerEntry(split, place)
        if place is UNASSIGNED:
            self._unassigned[split_id] = None
            self._unfinished += 1
        else:
            self._unreported[split_id] = None

    def _finish_durably(self, split_id: str, place: Place) -> None:
        match place:
            case Assigned():
                raise ProtocolViolationError(f"split {split_id} is finished in a completed checkpoint but is {place}")
            case FinishedBy(reader):
                del self._held[reader][split_id]
            case Unassigned():
                # its reader was lost after the snapshot that has now become durable
                self._unfinished -= 1
                del self._unassigned[split_id]
            case Finished():
                return
        self._unreported[split_id] = None
        self._entries[split_id] = replace(self._entries[split_id], place=FINISHED)

    def _expect(self, split_id: str, place: type[Place]) -> LedgerEntry[SplitT]:
        entry = self._entries.get(split_id)
        if entry is None:
            raise ProtocolViolationError(f"split {split_id} is not in the ledger")
        if not isinstance(entry.place, place):
            raise ProtocolViolationError(f"split {split_id} should be {place.__name__} but is {entry.place}")
        return entry
