"""Commits of a run, in the order that `headrace.connectors.base.commit` decides, with the run's checkpoints as the lists.

To `CommitCore` a checkpoint is an epoch: `record` stores positions and handles together. So what is committed is what a
stored checkpoint lists, and a restart finds there what to complete. Two things shut a stale coordinator out. The folder's lock,
for one on this machine. For a copy of the folder the sink's own fence: each coordinator takes the run over at the sink, and
before anything is committed the sink records the checkpoint's *epoch*, which it refuses for whom another has followed. An epoch
is the checkpoint's number and some random bits, so that two copies of a folder never have the same; a folder that does not know
the epoch that the sink has recorded last is behind, or of another branch, and is refused. Rows that are copied, as what was
prepared is aborted, have a new epoch: two folders may have stored one checkpoint, and one of them alone may copy it.

Each worker writes under its own sink job (`WorkerRegistry.job`), so a clean-up aborts the transactions of a dead worker
alone. To a sink that commits by list (tables) all write under the run's job, each as its own task: the sink records the
checkpoint's epoch and commits all of it in one step, and cleans up by task.

A sink that commits by list says before a checkpoint is stored whether it would refuse it (`check`). If it refuses a stored one
(its table was altered in between), the next coordinator *takes it back*: nothing of it is committed, and
no sink has recorded it. So the run continues from the checkpoint before, which is kept until the next one is committed.

Of several outputs the one decision is that of the first (`Outputs.in_order`): its sink records every checkpoint that has
rows in any output, before any other sink does, and all are fenced before anything is ended. So what it has recorded is what the
others are to record, too, by this coordinator or the next one. It is never rolled back then: one of them that refuses it after
all has to be fixed.

A worker is cleaned up at once when it is dead: what it has prepared may hold locks, which those who read its splits now wait
for, and then no checkpoint would ever be complete.
"""
