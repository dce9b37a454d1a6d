"""What a two-phase-commit sink implements, and `JobCommitter`, which drives its commits and its recovery.

    with sink.begin(Attempt("job", epoch=0, task=0, number=0)) as transaction:    # in a task
        transaction.write(batch)
        handle = transaction.prepare()
    JobCommitter("job", sink.committer("job")).commit(0, (handle,))               # in the driver

Every sink has the methods of `TwoPhaseSink`, `Transaction`, `Committer` and `HandleSerializer`. What only some sinks can do
is a protocol each, such as `SingleCommit` or `RowSharding`: a sink inherits those that it implements.

`headrace.testing.SinkConformance` tests a sink of yours. `Changes` says to a table's sink that rows change others, by key.
`FunctionSink` makes a sink of a function, at least once.
"""

from headrace.connectors.base.capabilities import (
    Confirmation,
    CopyPerSink,
    EpochRecord,
    ExpiringTransactions,
    GroupedEnd,
    LeftoverCleanup,
    OutageRetry,
    PreparedAbort,
    PromptLookup,
    RowRouting,
    RowSharding,
    SingleCommit,
    StagedRecord,
    TaskCleanup,
    Warmable,
    WriterCommit,
)
from headrace.connectors.base.commit import JobCommitter
from headrace.connectors.base.commit_list import CommitListSerializer
from headrace.connectors.base.function_sink import FunctionSink
from headrace.connectors.base.immediate import ImmediateSink
from headrace.connectors.base.jobs import check_job
from headrace.connectors.base.sink import (
    Attempt,
    CommitList,
    Committer,
    HandleSerializer,
    JobClaim,
    Outcome,
    PreparedGoneError,
    RecordedEpoch,
    Transaction,
    TwoPhaseSink,
)
from headrace.connectors.tables.changes import Changes

__all__ = [
    "Attempt", "Changes", "CommitList", "CommitListSerializer", "Committer", "Confirmation", "CopyPerSink", "EpochRecord",
    "ExpiringTransactions", "FunctionSink", "GroupedEnd", "HandleSerializer", "ImmediateSink", "JobClaim", "JobCommitter",
    "LeftoverCleanup", "OutageRetry", "Outcome", "PreparedAbort", "PreparedGoneError", "PromptLookup", "RecordedEpoch",
    "RowRouting", "RowSharding", "SingleCommit", "StagedRecord", "TaskCleanup", "Transaction", "TwoPhaseSink", "Warmable",
    "WriterCommit", "check_job",
]  # fmt: skip
