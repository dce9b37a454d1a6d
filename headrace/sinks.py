"""What a two-phase-commit sink implements, and `JobCommitter`, which drives its commits and its recovery.

    with sink.begin(Attempt("job", epoch=0, task=0, number=0)) as transaction:    # in a task
        transaction.write(batch)
        handle = transaction.prepare()
    JobCommitter("job", sink.committer("job")).commit(0, (handle,))               # in the driver

`headrace.testing.SinkConformance` tests a sink of yours.
"""

from headrace.connectors.commit import JobCommitter
from headrace.connectors.sink import (
    Attempt,
    CommitList,
    CommitListSerializer,
    Committer,
    HandleSerializer,
    ImmediateSink,
    Outcome,
    RecordedEpoch,
    Transaction,
    TwoPhaseSink,
    check_job,
)

__all__ = [
    "Attempt",
    "CommitList",
    "CommitListSerializer",
    "Committer",
    "HandleSerializer",
    "ImmediateSink",
    "JobCommitter",
    "Outcome",
    "RecordedEpoch",
    "Transaction",
    "TwoPhaseSink",
    "check_job",
]
