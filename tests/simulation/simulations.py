"""Every simulated simulation, the bugs that are injected for it, and what must happen often in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.simulation import checkpoints
from tests.simulation.bugs import changes, commits, core, fetches, lease, pieces, run, spark, splits, stages, standby
from tests.simulation.bugs.injecting import Injected
from tests.simulation.changes import ADDED, CHANGES
from tests.simulation.commit import COMMITS
from tests.simulation.core import CORE
from tests.simulation.fetch import FETCH
from tests.simulation.lease import HOSTS
from tests.simulation.pieces import PIECES
from tests.simulation.run import OUTPUTS, RUN
from tests.simulation.search import Adversary
from tests.simulation.spark import SPARK
from tests.simulation.splits import SPLITS
from tests.simulation.stages import STAGED
from tests.simulation.standby import STANDBY


@dataclass(frozen=True)
class Searched:
    """`schedules`: how many the tests play. `often`: what must happen in them, and how often at least."""

    adversary: Adversary
    schedules: int
    injected: Sequence[Injected]
    often: Mapping[str, int]


_KILLED = ("FENCING", "CLAIMING", "RECORDING", "ENDING", "COPYING", "CLEANING_UP", "CONFIRMING", "COMPLETING")

SIMULATIONS = (
    Searched(CORE, 500, core.IN_THE_CORE, {
        "restore": 900, "rewind": 135, "completed": 1800, "aborted": 135, "aborted, yet durable": 13, "declined": 450,
        "reader lost": 900, "lost while persisting": 225, "crash in RUNNING": 450, "crash in COLLECTING": 45,
        "crash in PERSISTING": 45, "ReportMissing": 135, "SplitsGone": 20, "ReportDiscoveryFailure": 22,
    }),
    Searched(PIECES, 500, pieces.INJECTED, {
        "restore": 900, "rewind": 135, "completed": 1800, "aborted, yet durable": 13, "reader lost": 900, "more": 700,
        "lost while persisting": 225, "reported": 1500, "not reported": 40, "reported again": 200, "ReportDiscoveryFailure": 15,
    }),
    Searched(STAGED, 500, stages.INJECTED, {
        "switch to 1": 350, "switch to 2": 300, "switch failed": 20, "switch with ends": 60, "restored in stage 0": 500,
        "restored in stage 1": 100, "restored in stage 2": 70, "crash in SWITCHING": 100, "crash in STAGE_FOUND": 60,
        "crash in SWITCH_PAUSED": 4, "reader lost": 900, "lost while persisting": 225, "reported again": 150, "rewind": 100,
    }),
    Searched(CHANGES, 500, changes.INJECTED, {
        "chunk": 1900, "in a chunk": 700, "crash in the snapshot": 600, "switch": 300, "out of order": 200, "moved": 200,
        "truncate": 35, "crash in the log": 15,
    }),
    Searched(ADDED, 1500, changes.IN_ADDED, {
        "chunk": 1000, "in a chunk": 100, "written before": 100, "crash between chunks": 50, "another attempt": 60,
    }),
    Searched(COMMITS, 500, commits.ALL, {
        "commit completed": 1050, "restart": 700, "Copy": 35, "fenced": 25, "fenced, and asks again": 60, "superseded": 40,
        "given back": 35, "check failed": 70, "stale epoch refused": 17, "tasks refused": 14, "epoch skipped": 70, "again": 17,
        "expired PREPARED": 175, "expired OPEN": 35, "expired listed": 7, **{f"killed {phase}": 2 for phase in _KILLED},
    }),
    Searched(SPARK, 700, spark.IN_SPARK, {
        "batch": 2000, "restart": 500, "zombie driver": 150, "rewind": 20, "stale epoch refused": 3, "executor lost": 200,
        "speculation": 300, "stage again": 200, "stage failed": 25, "stage cancelled": 3, "late task": 80,
        "driver killed in a commit": 50, "meanwhile": 100, "claim": 900, "completed, and not run again": 40,
        "commit: FencedError": 30, "commit: SupersededError": 140, "commit: PeerError": 10, "abort": 30,
        "abort of a recorded batch": 40, "expired PREPARED": 40, "expired listed": 7, "commit log has it": 5,
        "query: DataLossError": 15, "query: LogTruncatedError": 2, "query: OutageError": 30, "task: StaleEpochError": 30,
        "topic recreated": 20, "topic forgotten": 300, "new leader": 300, "retention": 30, "outage": 200,
    }),
    Searched(SPLITS, 500, splits.IN_SPLITS, {
        "batch": 1000, "LIMIT": 100, "attempt interrupted": 80, "attempt killed": 80, "attempt: OutageError": 15,
        "attempt: StoreError": 8, "available now": 40, "computed again": 200, "killed after a commit": 80,
        "killed after a plan": 80, "killed before the commit log": 80, "killed before the sink": 80, "older copy": 100,
        "older copy refused": 10, "query: RetriableError": 5, "query: StoreError": 4,
        "recorded already": 80, "slow attempt": 120, "zombie attempt": 100, "zombie driver": 50,
    }),
    Searched(FETCH, 1000, fetches.IN_FETCHES, {
        "data": 3000, "new leader": 800, "truncated": 50, "expired": 100, "started over": 300, "request lost": 40, "quota": 40,
        "left out": 40, "sent to a follower": 300, "in range after all": 4, "unknown topic": 300, "another topic": 30,
        "one broker lags behind": 120, "deleted": 30, "recreated": 15, "gave up: LogTruncatedError": 8,
        "gave up: TopicRecreatedError": 25,
    }),
    Searched(checkpoints.SHARDS, 500, checkpoints.INJECTED, {
        "checkpoint": 3000, "savepoint": 200, "restore": 500, "zombie": 150, "expired prepared": 100, "copy": 80,
        "died in Write": 60, "died before CleanUp": 60, "died before Write": 50, "aborted checkpoint": 50,
    }),
    Searched(RUN, 500, run.IN_RUNS, {
        "worker killed": 300, "worker silent": 100, "coordinator killed": 300, "killed in commit": 40, "zombie": 80,
        "foreign coordinator": 350, "other": 1200, "stale folder refused": 25, "checkpoint failed": 200,
        "timer CheckpointTimedOut": 120, "not stored": 15, "transaction gone": 12, "expired OPEN": 30, "expired PREPARED": 25,
        "stop": 100, "waits for a lock": 4, "checkpoint unchanged": 200,
    }),
    Searched(OUTPUTS, 600, run.IN_OUTPUTS, {
        "worker killed": 400, "coordinator killed": 400, "killed in commit": 60, "foreign coordinator": 400,
        "expired PREPARED": 60,
    }),
    Searched(STANDBY, 120, standby.INJECTED, {
        "killed": 120, "stopped": 120, "continued": 60, "jumped": 60, "supervisor killed": 60, "supervisor stopped": 60,
        "second supervisor": 60, "takeover": 250,
    }),
    Searched(HOSTS, 400, lease.INJECTED, {
        "leads": 800, "paused": 700, "paused in a batch": 300, "paused in a check": 300, "isolated": 430,
        "lease store away": 200, "lease store wiped": 220, "power lost": 170, "driver killed": 250, "driver hangs": 100,
        "SIGTERM": 230, "superseded": 40, "orphaned": 6, "fenced, and asks again": 30,
    }),
)  # fmt: skip
