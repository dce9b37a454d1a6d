"""Exactly-once writing under checkpoints: what a shard commits, when, and through which troubles; and that the checker sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace.connectors.commit import Copy, End, Sweep
from headrace.connectors.kafka.write.handles import KafkaHandle, KafkaHandleSerializer, WrittenRange
from headrace.connectors.kafka.write.transactions import Producer, TransactionProtocol
from headrace.connectors.sink import Outcome
from headrace.enumerator.errors import StateError
from headrace.runners.beam.flink_options import RULES
from headrace.runners.beam.shard import (
    SPARE_SLOTS,
    SWEEP_SECONDS,
    VERSION,
    PreparedTransaction,
    Shard,
    ShardState,
    ShardStateSerializer,
    Write,
)
from headrace.testing.memory_sink import MemoryHandle, MemoryHandleSerializer
from tests.helpers.checkpoint_simulator import BrokenPromiseError, Engine, history
from tests.helpers.planted_shards import PLANTED

GOLDEN = Path(__file__).parent / "golden"
TOPIC_ID = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
_HANDLE = KafkaHandle(
    Producer("headrace.run-3.0.1.77", 4000, 2),
    TransactionProtocol.V2,
    1_700_000_000_000,
    900_000,
    (WrittenRange("out", TOPIC_ID, 1, 5, 9, 5),),
)
GOLDEN_STATES = {1: ShardState("run", 9, (PreparedTransaction(8, _HANDLE), PreparedTransaction(9, _HANDLE, copied=True)))}
TROUBLES = (
    "restore",
    "died before Sweep",
    "died before End",
    "died before Copy",
    "died before Write",
    "died in Write",
    "zombie",
    "expired prepared",
    "expired open",
    "copy",
    "checkpoint",
    "aborted checkpoint",
    "savepoint",
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
        steps = self.shard.call(self.state, self.now_s, has_rows=has_rows)
        commands, answer = [], None
        while True:
            try:
                commands.append(steps.send(answer))
            except StopIteration as ended:
                self.state, callback = ended.value
                return commands, callback
            match commands[-1]:
                case Write() | Copy():
                    answer = MemoryHandle(self.handles)
                    self.handles += 1
                case End(handle):
                    answer = Outcome.ABORTED if handle in self.aborted else Outcome.COMMITTED
                case _:
                    answer = None


def durable(caller: Caller) -> None:
    """Two checkpoints, each with a call between."""
    for _ in range(2):
        _, callback = caller.call()
        if callback is not None:
            callback()


def test_a_transaction_is_committed_once_a_later_bundle_is_finalised_and_then_forgotten() -> None:
    caller = Caller()
    commands, first = caller.call(has_rows=True)
    assert commands == [Sweep(()), Write(0)]
    first()
    commands, second = caller.call()
    assert commands == []  # Flink finalises bundles that no checkpoint covers
    second()
    commands, third = caller.call()
    assert commands == [End(MemoryHandle(0))]
    assert caller.state == ShardState("run", 1)
    assert third is None


def test_a_restored_shard_sweeps_first_keeping_what_its_state_names() -> None:
    caller = Caller()
    caller.state = ShardState("run", 7, (PreparedTransaction(7, MemoryHandle(70)),))
    commands, _ = caller.call(has_rows=True)
    assert commands == [Sweep((MemoryHandle(70),)), Write(0)]


def test_what_a_restored_state_names_is_committed_by_later_checkpoints_without_any_rows() -> None:
    caller = Caller()
    caller.state = ShardState("run", 7, (PreparedTransaction(7, MemoryHandle(70)),))
    durable(caller)
    commands, _ = caller.call()
    assert commands == [End(MemoryHandle(70))]


def test_a_process_that_goes_on_after_an_older_savepoint_trusts_nothing_it_knew() -> None:
    caller = Caller()
    older = caller.state
    for _ in range(3):
        _, callback = caller.call(has_rows=True)
        callback()
    durable(caller)
    caller.state = older
    commands, callback = caller.call(has_rows=True)
    assert commands[0] == Sweep(())
    callback()
    commands, _ = caller.call()
    assert commands == []


def test_a_finalisation_of_the_time_before_a_restore_proves_nothing() -> None:
    caller = Caller()
    older = caller.state
    _, first = caller.call(has_rows=True)
    first()
    _, late = caller.call(has_rows=True)
    caller.state = older
    caller.call(has_rows=True)
    late()
    commands, _ = caller.call()
    assert commands == []


def test_transactions_that_are_not_ended_have_slots_of_their_own_and_slots_are_used_again() -> None:
    caller = Caller()
    assert [caller.call(has_rows=True)[0][-1] for _ in range(3)] == [Write(0), Write(1), Write(2)]
    used = []
    for _ in range(50):
        durable(caller)
        used.append(caller.call(has_rows=True)[0][-1].slot)
    assert len(set(used)) < 20
    assert 0 in used


def test_a_slot_is_left_alone_for_a_while_as_its_commit_may_not_be_through() -> None:
    caller = Caller()
    released: list[int] = []
    for _ in range(50):
        durable(caller)
        commands, _ = caller.call(has_rows=True)
        slot = commands[-1].slot
        released.append(slot)
        assert slot not in released[-SPARE_SLOTS - 1 : -1]


def test_a_slot_that_wrote_nothing_or_failed_is_free_again() -> None:
    shard: Shard[Any] = Shard()
    slots = []
    for _ in range(3 * SPARE_SLOTS):
        steps = shard.call(ShardState("run"), 0.0, has_rows=True)
        assert next(steps) == Sweep(())
        slots.append(steps.send(None).slot)
        steps.close()
    assert slots == [number % (SPARE_SLOTS + 1) for number in range(3 * SPARE_SLOTS)]


def test_what_timed_out_is_copied_and_the_copy_waits_for_its_checkpoint() -> None:
    caller = Caller()
    _, callback = caller.call(has_rows=True)
    callback()
    caller.aborted.add(MemoryHandle(0))
    _, callback = caller.call()
    callback()
    commands, callback = caller.call()
    assert commands == [End(MemoryHandle(0)), Copy((MemoryHandle(0),))]
    assert caller.state.entries == (PreparedTransaction(2, MemoryHandle(1), copied=True),)
    callback()
    _, callback = caller.call()
    callback()
    commands, _ = caller.call()
    assert commands == [End(MemoryHandle(1))]


def test_a_shard_looks_again_and_again_for_what_a_dead_worker_began() -> None:
    caller = Caller()
    caller.call()
    caller.now_s = SWEEP_SECONDS
    commands, _ = caller.call()
    assert commands == [Sweep(())]


def test_histories_with_every_trouble_keep_the_promise() -> None:
    happened: dict[str, int] = {}
    for seed in range(600):
        for what, times in history(seed).items():
            happened[what] = happened.get(what, 0) + times
    assert [trouble for trouble in TROUBLES if not happened.get(trouble)] == []


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_the_checker_finds(planted: type[Shard[Any]]) -> None:
    def play() -> None:
        for seed in range(2000):
            history(seed, planted)

    with pytest.raises(BrokenPromiseError):
        play()


REFUSED = {
    "min_pause_between_checkpoints": Engine(pause=False),
    "num_concurrent_checkpoints": Engine(concurrent=2),
    "checkpointing_mode": Engine(aligned=False),
}


@pytest.mark.parametrize("option", REFUSED)
def test_seen_here_under_an_option_that_is_refused_the_promise_is_broken(option: str) -> None:
    assert option in {rule.option for rule in RULES}

    def play() -> None:
        for seed in range(2000):
            history(seed, engine=REFUSED[option])

    with pytest.raises(BrokenPromiseError):
        play()


def test_seen_here_a_shard_whose_calls_are_spread_over_processes_never_commits() -> None:
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
        (b"{", "damaged"),
        (b'{"format":"headrace-prepared","version":2,"handle_version":1}', "up to"),
        (b'{"format":"headrace-prepared","version":1,"handle_version":9}', "up to"),
        (b'{"format":"other","version":1,"handle_version":1}', "other"),
        (b'{"format":"headrace-prepared","version":1,"handle_version":1,"run":"r","count":1,"entries":[[1]]}', "damaged"),
    ],
)
def test_a_state_that_cannot_be_read_is_said_with_its_place(data: bytes, named: str) -> None:
    with pytest.raises(StateError, match=f"shard 3.*{named}"):
        ShardStateSerializer(MemoryHandleSerializer()).deserialize(data, "shard 3")


@pytest.mark.parametrize("version", GOLDEN_STATES)
def test_what_any_version_wrote_is_read(version: int) -> None:
    data = (GOLDEN / f"beam_writer_v{version}.json").read_bytes()
    assert ShardStateSerializer(KafkaHandleSerializer()).deserialize(data, "golden") == GOLDEN_STATES[version]


def test_the_current_version_writes_its_golden_file() -> None:
    """A difference here means that the format has changed, and needs a new version."""
    data = (GOLDEN / f"beam_writer_v{VERSION}.json").read_bytes()
    assert ShardStateSerializer(KafkaHandleSerializer()).serialize(GOLDEN_STATES[VERSION]) == data
