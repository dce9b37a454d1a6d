"""Exactly-once writing under checkpoints: what a shard commits, when, and through which troubles; and that the checker sees."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import pytest

from headrace.connectors.base.commit import CleanedUp, CleanUp, Copied, Copy, End, Ended
from headrace.connectors.base.sink import Outcome
from headrace.connectors.kafka.write.handles import KafkaHandle, KafkaHandleSerializer, WrittenRange
from headrace.connectors.kafka.write.transactions import Producer, TransactionProtocol
from headrace.enumerator.errors import ProtocolViolationError, StateError
from headrace.runners.beam.flink_options import RULES
from headrace.runners.beam.shard import (
    CLEAN_UP_S,
    SHARD_TRANSITIONS,
    SPARE_SLOTS,
    BundleFinalised,
    CallFailed,
    CallStarted,
    PreparedTransaction,
    Return,
    RowsWritten,
    Shard,
    ShardCall,
    ShardEvent,
    ShardPhase,
    ShardState,
    ShardStateSerializer,
    Write,
)
from headrace.testing.memory_sink import MemoryHandle, MemoryHandleSerializer
from tests.helpers.envelopes import enveloped, resealed, sealed
from tests.helpers.tables import arrows, arrows_followed
from tests.simulation.bugs.shards import INJECTED
from tests.simulation.checkpoints import BrokenPromiseError, Engine, schedule

GOLDEN = Path(__file__).parents[1] / "golden" / "beam_writer_v1.json"
TOPIC_ID = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
_HANDLE = KafkaHandle(
    Producer("headrace.run-3.0.1.77", 4000, 2),
    TransactionProtocol.V2,
    1_700_000_000_000,
    900_000,
    (WrittenRange("out", TOPIC_ID, 1, 5, 9, 5),),
)
GOLDEN_STATE = ShardState("run", 9, (PreparedTransaction(8, _HANDLE), PreparedTransaction(9, _HANDLE, copied=True)))
EVENTS: dict[type, Any] = {
    CallStarted: CallStarted(),
    CleanedUp: CleanedUp(),
    Ended: Ended(MemoryHandle(0), Outcome.COMMITTED),
    Copied: Copied((MemoryHandle(0),)),
    RowsWritten: RowsWritten(None),
    CallFailed: CallFailed(),
    BundleFinalised: BundleFinalised(),
}
TROUBLES = (
    *("restore", "zombie", "expired prepared", "expired open", "copy", "checkpoint", "aborted checkpoint", "savepoint"),
    *(f"died {when}" for when in ("before CleanUp", "before End", "before Copy", "before Write", "in Write")),
    *(f"failed {command}" for command in ("CleanUp", "End", "Copy", "Write")),
)


class Caller:
    """Calls one shard and answers it: handles count from 0; what is in `aborted` was."""

    def __init__(self) -> None:
        self.shard: Shard[MemoryHandle] = Shard()
        self.state: ShardState[MemoryHandle] = ShardState("run")
        self.aborted: set[MemoryHandle] = set()
        self.handles = 0
        self.now_s = 0.0

    def call(self, *, has_rows: bool = False) -> tuple[list[Any], Any]:
        """The commands, and the callback."""
        call = self.shard.call(self.state, self.now_s, has_rows=has_rows)
        waiting, commands = deque(call.handle(CallStarted())), []
        while not isinstance(command := waiting.popleft(), Return):
            commands.append(command)
            waiting.extend(call.handle(self.answer(command)))
        self.state = command.state
        return commands, partial(call.handle, BundleFinalised()) if command.awaits_finalisation else None

    def answer(self, command: Any) -> Any:
        match command:
            case CleanUp():
                return CleanedUp()
            case End(handle):
                return Ended(handle, Outcome.ABORTED if handle in self.aborted else Outcome.COMMITTED)
        handle = MemoryHandle(self.handles)
        self.handles += 1
        return RowsWritten(handle) if isinstance(command, Write) else Copied((handle,))


@pytest.fixture
def caller() -> Caller:
    return Caller()


def durable(caller: Caller) -> None:
    """Two checkpoints, each with a call between."""
    for _ in range(2):
        _, callback = caller.call()
        if callback is not None:
            callback()


def test_a_transaction_is_committed_once_a_later_bundle_is_finalised_and_then_forgotten(caller: Caller) -> None:
    commands, first = caller.call(has_rows=True)
    assert commands == [CleanUp(()), Write(0)]
    first()
    commands, second = caller.call()
    assert commands == []  # Flink finalises bundles that no checkpoint covers
    second()
    commands, third = caller.call()
    assert commands == [End(MemoryHandle(0))]
    assert caller.state == ShardState("run", 1)
    assert third is None


def test_a_restored_shard_cleans_up_first_keeping_what_its_state_names(caller: Caller) -> None:
    caller.state = ShardState("run", 7, (PreparedTransaction(7, MemoryHandle(70)),))
    commands, _ = caller.call(has_rows=True)
    assert commands == [CleanUp((MemoryHandle(70),)), Write(0)]


def test_what_a_restored_state_names_is_committed_by_later_checkpoints_without_any_rows(caller: Caller) -> None:
    caller.state = ShardState("run", 7, (PreparedTransaction(7, MemoryHandle(70)),))
    durable(caller)
    commands, _ = caller.call()
    assert commands == [End(MemoryHandle(70))]


def test_a_process_that_continues_after_an_older_savepoint_trusts_nothing_it_knew(caller: Caller) -> None:
    older = caller.state
    for _ in range(3):
        caller.call(has_rows=True)[1]()
    durable(caller)
    caller.state = older
    commands, callback = caller.call(has_rows=True)
    assert commands[0] == CleanUp(())
    callback()
    commands, _ = caller.call()
    assert commands == []


def test_a_finalisation_of_the_time_before_a_restore_proves_nothing(caller: Caller) -> None:
    older = caller.state
    _, first = caller.call(has_rows=True)
    first()
    _, late = caller.call(has_rows=True)
    caller.state = older
    caller.call(has_rows=True)
    late()
    commands, _ = caller.call()
    assert commands == []


def test_a_transaction_is_forgotten_once_a_later_one_than_its_end_is_durable(caller: Caller) -> None:
    caller.state = ShardState("run", 7, (PreparedTransaction(7, MemoryHandle(70)),))
    durable(caller)
    commands, _ = caller.call()
    assert commands == [End(MemoryHandle(70))]
    durable(caller)
    assert caller.shard.lifetime.first() == 7  # the last checkpoint may be older than the call
    caller.call(has_rows=True)[1]()
    durable(caller)
    assert caller.shard.lifetime.first() == 8


def test_transactions_that_are_not_ended_have_slots_of_their_own_and_slots_are_used_again(caller: Caller) -> None:
    assert [caller.call(has_rows=True)[0][-1] for _ in range(3)] == [Write(0), Write(1), Write(2)]
    used = []
    for _ in range(50):
        durable(caller)
        used.append(caller.call(has_rows=True)[0][-1].slot)
    assert len(set(used)) < 20
    assert 0 in used


def test_a_slot_is_left_alone_for_a_while_as_its_commit_may_not_be_through(caller: Caller) -> None:
    released: list[int] = []
    for _ in range(50):
        durable(caller)
        commands, _ = caller.call(has_rows=True)
        slot = commands[-1].slot
        released.append(slot)
        assert slot not in released[-SPARE_SLOTS - 1 : -1]


@pytest.mark.parametrize("end", [RowsWritten(None), CallFailed()], ids=["wrote nothing", "failed"])
def test_a_slot_that_wrote_nothing_or_failed_is_free_again(end: RowsWritten[Any] | CallFailed) -> None:
    shard: Shard[Any] = Shard()
    slots = []
    for number in range(3 * SPARE_SLOTS):
        call = shard.call(ShardState("run"), number * CLEAN_UP_S, has_rows=True)
        assert call.handle(CallStarted()) == [CleanUp(())]
        (write,) = call.handle(CleanedUp())
        slots.append(write.slot)
        call.handle(end)
    assert slots == [number % (SPARE_SLOTS + 1) for number in range(3 * SPARE_SLOTS)]


def test_what_timed_out_is_copied_and_the_copy_waits_for_its_checkpoint(caller: Caller) -> None:
    caller.call(has_rows=True)[1]()
    caller.aborted.add(MemoryHandle(0))
    caller.call()[1]()
    commands, callback = caller.call()
    assert commands == [End(MemoryHandle(0)), Copy((MemoryHandle(0),))]
    assert caller.state.entries == (PreparedTransaction(2, MemoryHandle(1), copied=True),)
    callback()
    caller.call()[1]()
    commands, _ = caller.call()
    assert commands == [End(MemoryHandle(1))]


def test_a_shard_cleans_up_again_and_again_for_what_a_zombie_worker_started(caller: Caller) -> None:
    caller.call()
    caller.now_s = CLEAN_UP_S
    commands, _ = caller.call()
    assert commands == [CleanUp(())]


def test_histories_with_every_trouble_keep_the_promise_and_follow_every_arrow_of_the_table() -> None:
    happened: dict[str, int] = {}
    with arrows_followed(ShardCall) as followed:
        for seed in range(600):
            for what, times in schedule(seed).items():
                happened[what] = happened.get(what, 0) + times
    assert [trouble for trouble in TROUBLES if not happened.get(trouble)] == []
    assert followed == arrows(SHARD_TRANSITIONS)


def test_there_is_an_example_of_every_event() -> None:
    assert set(EVENTS) == {getattr(kind, "__origin__", kind) for kind in get_args(ShardEvent)}


@pytest.mark.parametrize(("phase", "event"), [key for key in product(ShardPhase, EVENTS) if key not in SHARD_TRANSITIONS])
def test_what_is_not_in_the_table_is_refused(phase: ShardPhase, event: type) -> None:
    call = Shard[MemoryHandle]().call(ShardState("run"), 0.0, has_rows=True)
    call.phase = phase
    with pytest.raises(ProtocolViolationError, match=f"{phase.name}: {event.__name__}"):
        call.handle(EVENTS[event])
    assert call.phase is phase


def play_all(*injected: type[Shard[Any]], **engine: Engine) -> None:
    for seed in range(2000):
        schedule(seed, *injected, **engine)


@pytest.mark.parametrize("injected", INJECTED, ids=lambda injected: injected.__name__)
def test_the_checker_finds(injected: type[Shard[Any]]) -> None:
    with pytest.raises(BrokenPromiseError):
        play_all(injected)


REFUSED = {
    "min_pause_between_checkpoints": Engine(pause=False),
    "num_concurrent_checkpoints": Engine(concurrent=2),
    "checkpointing_mode": Engine(aligned=False),
}


@pytest.mark.parametrize("option", REFUSED)
def test_under_an_option_that_is_refused_the_promise_is_broken(option: str) -> None:
    assert option in {rule.option for rule in RULES}
    with pytest.raises(BrokenPromiseError):
        play_all(engine=REFUSED[option])


def test_a_shard_whose_calls_are_spread_over_processes_never_commits() -> None:
    """Flink's --load_balance_bundles: none of them hears of two checkpoints in a row without a call in the other."""
    shards: list[Shard[MemoryHandle]] = [Shard(), Shard()]
    caller, callbacks = Caller(), []
    for number in range(100):
        caller.shard = shards[number % 2]
        _, callback = caller.call(has_rows=True)
        if callback is not None:
            callbacks.append(callback)
        while callbacks:
            callbacks.pop()()
    assert len(caller.state.entries) == 100
    assert "load_balance_bundles" in {rule.option for rule in RULES}


def test_a_state_survives_its_serialisation() -> None:
    serializer = ShardStateSerializer(MemoryHandleSerializer())
    state = ShardState(
        "run", 9, (PreparedTransaction(8, MemoryHandle(3)), PreparedTransaction(9, MemoryHandle(4), copied=True))
    )
    assert serializer.deserialize(serializer.serialize(state), "here") == state


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"{", "not JSON"),
        (enveloped(GOLDEN.read_bytes(), version=2), "a newer headrace wrote it: version 2"),
        (resealed(GOLDEN.read_bytes(), handle_version=9), "a newer headrace wrote it: version 9"),
        (sealed("other", {}), "its format is 'other'"),
        (resealed(GOLDEN.read_bytes(), entries=[[1]]), "damaged"),
        (GOLDEN.read_bytes().replace(b'"count":9', b'"count":8'), "checksum"),
    ],
)
def test_a_state_that_cannot_be_read_is_said_with_its_place(data: bytes, named: str) -> None:
    with pytest.raises(StateError, match=f"^shard 3: the state of a writer cannot be read: .*{named}"):
        ShardStateSerializer(KafkaHandleSerializer()).deserialize(data, "shard 3")


def test_the_golden_state_is_read_and_written() -> None:
    """A difference here means that the format has changed, and needs a new version."""
    serializer = ShardStateSerializer(KafkaHandleSerializer())
    assert serializer.deserialize(GOLDEN.read_bytes(), "golden") == GOLDEN_STATE
    assert serializer.serialize(GOLDEN_STATE) == GOLDEN.read_bytes()
