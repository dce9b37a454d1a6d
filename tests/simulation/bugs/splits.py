"""Injected bugs in the planner and the tasks of splits that Spark cannot cut: the simulation must find each."""

from dataclasses import replace
from typing import Any

from headrace.enumerator.source import SplitBatch
from headrace.runners.spark import offset_log, split_ends, split_stream, split_tasks
from headrace.runners.spark.split_ends import EndsLog, TaskName
from headrace.runners.spark.split_state import SplitEnd, TaskEnds
from headrace.runners.spark.split_stream import SplitPlanner
from headrace.runners.spark.split_tasks import OpenTask
from tests.simulation.bugs.injecting import bugs_of, instead_of
from tests.simulation.splits import SplitsSimulation


# --- tasks ----------------------------------------------------------------------------------------------------------------
@instead_of(OpenTask, "read")
def the_end_is_recorded_after_the_rows(read: Any, self: Any, clock: Any) -> Any:
    """The rows are with Spark before another attempt could know how far they go."""
    if self.log.find(self.name) is not None:
        yield from read(self, clock)
        return
    batches, ends = self._read_on(clock)
    yield from batches
    self.log.record(self.name, ends)


@instead_of(EndsLog, "record")
def an_end_is_recorded_twice(_: Any, self: Any, task: TaskName, ends: Any) -> bool:
    """The store replaces what is there: of two attempts the later one wins, and both give their rows."""
    simulation = SplitsSimulation.latest
    simulation.pause()
    simulation.write(task.file, self.format.ends_to_json(ends))
    return True


@instead_of(OpenTask, "read")
def who_loses_the_race_gives_its_own_rows(_: Any, self: Any, clock: Any) -> Any:
    """`record` is not asked whether it was the first."""
    recorded = self.log.find(self.name)
    if recorded is not None:
        yield from self._replay(recorded, clock)
        return
    batches, ends = self._read_on(clock)
    self.log.record(self.name, ends)
    yield from batches


@instead_of(split_tasks, "_up_to")
def replays_go_past_the_end(_: Any, batch: SplitBatch[Any], left: dict[str, int]) -> Any:
    """A batch is given whole, as the reader has it."""
    split_id, rows = batch.split.split_id, batch.records.num_rows
    if split_id in left:
        left[split_id] = max(0, left[split_id] - rows)
        if not left[split_id]:
            del left[split_id]
        yield batch.records


@instead_of(split_tasks, "_up_to")
def replays_stop_short_of_the_end(up_to: Any, batch: SplitBatch[Any], left: dict[str, int]) -> Any:
    """The batch in which the end is, is left out."""
    split_id = batch.split.split_id
    for rows in up_to(batch, left):
        if split_id in left or rows.num_rows == batch.records.num_rows:
            yield rows


@instead_of(OpenTask, "_read_on")
def positions_are_those_of_the_last_record(read_on: Any, self: Any, clock: Any) -> Any:
    """Off by one: the record that was read last is read again."""
    batches, ends = read_on(self, clock)
    moved = {
        split_id: replace(end, split=replace(end.split, start=end.split.start - (end.rows > 0)))
        for split_id, end in ends.ends.items()
    }
    return batches, TaskEnds(moved, ends.is_limited)


# --- the planner ----------------------------------------------------------------------------------------------------------
@instead_of(EndsLog, "_closed")
def a_task_without_a_record_is_taken_as_read(closed: Any, self: Any, reading: Any, number: int) -> Any:
    """A mutant: whatever is in a reading was read."""
    found = closed(self, reading, number)
    lists, splits = self.format.source.shelf.lists, reading.tasks[number]
    ends = {s.split_id: SplitEnd(replace(s, start=len(lists[s.split_id])), 0, finished=False) for s in splits}
    return found if any(end.rows or end.finished for end in found.ends.values()) else TaskEnds(ends, is_limited=False)


@instead_of(EndsLog, "_closed")
def batches_are_not_closed(_: Any, self: Any, reading: Any, number: int) -> Any:
    """A zombie records where it stopped though its batch is over, and gives its rows."""
    found = self.find(TaskName.of(reading, number))
    nothing = {split.split_id: SplitEnd(split, 0, finished=False) for split in reading.tasks[number]}
    return TaskEnds(nothing, is_limited=False) if found is None else found


@instead_of(EndsLog, "_closed")
def a_zombie_that_records_meanwhile_is_not_seen(_: Any, self: Any, reading: Any, number: int) -> Any:
    """The planner does not look again, where it was not the one that has closed the task."""
    task = TaskName.of(reading, number)
    found = self.find(task)
    if found is not None:
        return found
    ends = {split.split_id: SplitEnd(split, 0, finished=False) for split in reading.tasks[number]}
    nothing = TaskEnds(ends, is_limited=False)
    self.record(task, nothing)
    return nothing


@instead_of(EndsLog, "closed")
def a_batch_is_closed_before_its_tasks_are(closed: Any, self: Any, reading: Any) -> Any:
    """A driver that dies in between leaves a task without a record, which a later one takes for a lost one."""
    self._store().remove(split_ends._mark(reading))
    return closed(self, reading)


@instead_of(SplitPlanner, "_remembered")
def finished_splits_are_forgotten(_: Any, self: Any, reading: Any, finished: Any) -> Any:
    """They are found again by a discovery that goes by names."""
    return ()


@instead_of(SplitPlanner, "_remembered")
def finished_splits_are_remembered_for_ever(_: Any, self: Any, reading: Any, finished: Any) -> Any:
    """The state grows with what was read."""
    return (*reading.finished, *finished)


@instead_of(split_stream, "next_reading")
def the_cursor_is_ahead_of_what_is_admitted(next_reading: Any, before: Any, backlog: Any, tasks: Any) -> Any:
    """What was found, and did not fit into the batch, is behind the cursor and in no state."""
    return replace(next_reading(before, backlog, tasks), unread=())


@instead_of(SplitPlanner, "_look")
def the_cursor_stays_behind(look: Any, self: Any, backlog: Any) -> Any:
    """The splits that were found are stored, and the cursor behind them is not."""
    return replace(look(self, backlog), cursor=backlog.cursor)


@instead_of(SplitPlanner, "tasks")
def tasks_are_grouped_again(tasks: Any, self: Any, end: str) -> Any:
    """By the parallelism of this run, which need not be the one under which records were made."""
    planned = tasks(self, end)
    splits, count = [split for task in planned for split in task.splits], self._read.parallelism or len(planned)
    groups = [tuple(splits[number::count]) for number in range(min(count, len(splits)))]
    reading = self._format.from_json(end)
    names = (
        [task.name and TaskName.of(reading, number) for number, task in enumerate([planned[0]] * len(groups))]
        if planned
        else []
    )
    return [replace(planned[0], splits=group, name=name) for group, name in zip(groups, names, strict=True)]


@instead_of(SplitPlanner, "tasks")
def a_replayed_batch_0_initialises_again(tasks: Any, self: Any, end: str) -> Any:
    """findings, Spark 3: where batch 0 started is asked again when it is run again."""
    reading = self._format.from_json(end)
    if reading is not None and reading.sequence == 0 and self._looked_at == float("-inf"):
        starts = {split.split_id: split for split in self._first_look().unread}
        planned = tasks(self, end)
        return [replace(task, splits=tuple(starts.get(s.split_id, s) for s in task.splits)) for task in planned]
    return tasks(self, end)


@instead_of(EndsLog, "remove_old")
def records_of_the_last_batch_are_removed(_: Any, self: Any, reading: Any) -> None:
    """Before the next one is stored: the driver may die in between."""
    store = self._store()
    for name in store.names(reading.chain):
        if int(name.partition("-")[0]) < reading.sequence:
            store.remove(f"{reading.chain}/{name}")


@instead_of(SplitPlanner, "_publish")
def what_is_planned_is_reported_as_finished(_: Any, self: Any, reading: Any, over: Any) -> None:
    """Splits are archived that a batch has only started to read."""
    self._source.splits_finished(reading.splits)


@instead_of(SplitPlanner, "_publish")
def splits_are_reported_by_the_run_that_read_them_alone(publish: Any, self: Any, reading: Any, over: Any) -> None:
    """A driver that dies after a commit has reported nothing, and its successor does not."""
    if self._published is None and self._prepared is None:
        self._published = reading.reading
    publish(self, reading, over)


@instead_of(SplitPlanner, "_look")
def open_splits_bound_the_looks(look: Any, self: Any, backlog: Any) -> Any:
    """Regression: nothing new was looked for once there were as many splits as a batch may have, which are open and stay."""
    return backlog if len(backlog.unread) >= self._read.most_splits else look(self, backlog)


@instead_of(split_stream, "_without")
def what_is_gone_stays_in_the_state(_: Any, gone: Any, splits: Any) -> Any:
    """Regression: the state grew with splits that came and went."""
    return tuple(splits)


@instead_of(SplitPlanner, "_learn_to_wait")
def readers_that_connect_slowly_are_not_waited_for(_: Any, self: Any, before: Any, over: Any) -> None:
    """Regression: a task ended before its reader had anything, and so did each that followed."""


# --- older copies of the checkpoint ---------------------------------------------------------------------------------------
@instead_of(offset_log, "recorded_by")
def a_batch_is_told_by_its_offsets_alone(_: Any, line: bytes) -> None:
    """Regression: a copy made in the middle of a batch ends it elsewhere than what the sink has of it."""


@instead_of(offset_log, "recorded_by")
def ends_count_before_all_are_known(recorded_by: Any, line: bytes) -> Any:
    """Regression: a batch of which some tasks had run only, was refused for ever when more of them ran in a replay."""
    return (found[0], 0) if (found := recorded_by(line)) else None


IN_SPLITS = bugs_of(globals())
