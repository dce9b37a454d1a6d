"""A run's files in a store without locks: of two coordinators one can write, whatever is lost, late, or done meanwhile."""

from __future__ import annotations

import errno
import json
import random
import shutil
import ssl
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from unittest.mock import Mock, patch

import fsspec
import pytest
from botocore.exceptions import ClientError, ParamValidationError
from fsspec import AbstractFileSystem
from s3fs.errors import translate_boto_error

from headrace.connectors.files.store import open_store
from headrace.enumerator.errors import (
    AuthenticationError,
    FencedError,
    RetriableError,
    StateError,
    UnclassifiedError,
    UsageError,
)
from headrace.runners.local.storage import object_log
from headrace.runners.local.storage.object_log import ObjectLog
from tests.helpers.envelopes import body_of, enveloped, sealed

SCHEDULES = 400
MOST_AT_ONCE = 3


class LostError(Exception):
    """As a store's own library raises."""


class Died(BaseException):
    """The process was killed."""


class MemoryStore:
    """Objects by name. `around` is called before each request, and again after it: it may raise, or do what others do."""

    def __init__(self, objects=None):
        self.objects = {} if objects is None else objects
        self.around = lambda what, when: None
        self.creates_exclusively = True

    def make_folder(self, name):
        pass

    def check_exclusive(self, folder):
        if not self.creates_exclusively:
            raise UsageError("memory: its filesystem created a file that was there")

    def create(self, name, data, scratch):
        self.around("create", "before")
        if name in self.objects:
            raise FileExistsError(name)
        self.objects[name] = data
        self.around("create", "after")

    def read(self, name):
        self.around("read", "before")
        try:
            return self.objects[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def names(self, folder):
        self.around("names", "before")
        return [name.removeprefix(f"{folder}/") for name in self.objects]

    def remove(self, name):
        self.around("remove", "before")
        self.objects.pop(name, None)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(object_log, "TIMEOUT_S", 0.0)


def opened(objects):
    found = ObjectLog("mem://x", MemoryStore(objects))
    found.claim()
    return found


def files(objects):
    return files_of(ObjectLog("mem://x", MemoryStore(objects)))


def files_of(log):
    return {name: log.read(name) for name in log.names()}


def test_files_are_as_they_were_written_last_and_what_they_replace_is_deleted():
    objects = {}
    log = opened(objects)
    log.write("run.json", b"1")
    log.write("checkpoint", b"a\nb")
    log.write("run.json", b"2")
    assert files(objects) == {"run.json": b"2", "checkpoint": b"a\nb"}
    assert len(objects) == 3  # with the manifest
    assert (log.size("checkpoint"), log.size("none")) == (3, None)
    again = opened(objects)
    assert {name: again.read(name) for name in again.names()} == files(objects) == {"run.json": b"2", "checkpoint": b"a\nb"}
    with pytest.raises(FileNotFoundError, match="mem://x/none"):
        again.read("none")


def test_objects_do_not_grow_in_number_with_starts_and_checkpoints():
    objects = {}
    for lifetime in range(20):
        log = opened(objects)
        for number in range(20):
            log.write("run.json", b"r")
            log.write(f"checkpoint-{lifetime * 20 + number}", b"c")
            log.discard(f"checkpoint-{lifetime * 20 + number - 1}")
    assert len(objects) == 3


def test_removed_files_do_not_come_back_though_they_cannot_be_deleted():
    objects = {}
    log = opened(objects)
    log.write("a", b"1")
    log.write("b", b"2")

    def no_removals(what, when):
        if what == "remove":
            raise LostError

    log._store.around = no_removals
    log.remove(["a", "none"])
    assert len(objects) == 4
    assert files(objects) == {"b": b"2"}
    assert opened(objects).names() == ["b"]
    assert len(objects) == 2


@pytest.mark.parametrize(
    "change",
    [lambda log: log.write("a", b"stale"), lambda log: log.write("new", b"stale"), lambda log: log.remove(["a"])],
    ids=["write", "write another", "remove"],
)
@pytest.mark.parametrize("later", [0, 1, 5])
@pytest.mark.parametrize("claims", [1, 2, 3])
def test_who_was_replaced_changes_nothing_any_more_however_long_it_stood_still(change, later, claims):
    objects = {}
    stale = opened(objects)
    stale.write("a", b"1")
    for _ in range(claims):
        log = opened(objects)
        for number in range(later):
            log.write("a", b"%d" % number)
    before = files(objects)
    with pytest.raises(FencedError, match=r"mem://x: these checkpoints were claimed by process \d+ of "):
        change(stale)
    assert files(objects) == before
    log.write("a", b"next")
    opened(objects)
    assert len(objects) == 2  # whatever the stale one has left


def test_who_dies_with_a_number_that_was_free_again_leaves_nothing_that_counts():
    objects = {}
    stale = opened(objects)
    stale.write("a", b"1")
    opened(objects)
    log = opened(objects)
    log.write("a", b"2")
    before, taken = files(objects), []

    def dies(what, when):
        if (what, when) == ("create", "after"):
            taken.append(what)
            raise Died

    stale._store.around = dies
    with pytest.raises(Died):
        stale.write("b", b"stale")
    assert taken  # the number was free
    assert files(objects) == before == {"a": b"2"}
    log.write("c", b"3")
    assert files(objects) == {"a": b"2", "c": b"3"}


@pytest.mark.parametrize("dies", [False, True])
def test_a_claim_that_comes_too_late_under_a_number_that_is_free_again_takes_nothing_away(dies):
    """Its manifest was the highest, and named what had been deleted: all checkpoints of the run running went with it."""
    objects = {}
    at_work = opened(objects)
    at_work.write("run.json", b"r")
    at_work.write("checkpoint-1", b"1")
    late = ObjectLog("mem://x", MemoryStore(objects))
    for number in (2, 3):  # meanwhile
        at_work.write(f"checkpoint-{number}", b"stored")
        at_work.write(f"checkpoint-{number}", b"committed")
        at_work.discard(f"checkpoint-{number - 1}")
    before, taken = files(objects), []
    assert "log/000000000004" not in objects  # which it wants next

    def watched(what, when):
        if (what, when) == ("create", "after"):
            taken.append(files(objects))
            if dies:
                raise Died

    late._store.around = watched
    with pytest.raises(Died) if dies else nullcontext():
        late.claim()
    assert taken[0] == files(objects) == before == {"run.json": b"r", "checkpoint-3": b"committed"}
    if dies:
        at_work.write("checkpoint-4", b"stored")
        assert files(objects) == {**before, "checkpoint-4": b"stored"} == files_of(opened(objects))
    else:
        assert files_of(late) == before
        with pytest.raises(FencedError):
            at_work.write("checkpoint-4", b"stored")


@pytest.mark.parametrize("is_late", [False, True], ids=["opened before", "opened after"])
def test_a_coordinator_that_is_started_again_does_not_get_what_another_command_has_claimed_since(is_late):
    """It was away from the store meanwhile, and a run was started on another host: of the two that one was started last."""
    objects = {}
    for after in (None, "first", "first"):
        log = ObjectLog("mem://x", MemoryStore(objects))
        log.claim("first", after)
        log.write("a", b"1")
    again = ObjectLog("mem://x", MemoryStore(objects))
    other = ObjectLog("mem://x", MemoryStore(objects))
    other.claim("second")
    if is_late:
        again = ObjectLog("mem://x", MemoryStore(objects))
    with pytest.raises(FencedError, match=r"mem://x: these checkpoints were claimed by process \d+ of "):
        again.claim("first", "first")
    other.write("a", b"2")
    assert files(objects) == {"a": b"2"}


def test_a_claim_that_another_writer_comes_between_reads_again():
    objects = {}
    first = opened(objects)
    late = ObjectLog("mem://x", MemoryStore(objects))
    first.write("a", b"1")
    late.claim()
    assert late.read("a") == b"1"
    with pytest.raises(FencedError):
        first.write("a", b"2")


def test_a_manifest_whose_number_another_gets_while_it_is_read_is_not_taken_for_lost():
    """The reader has listed it; then a later one replaces it, and who was still since before it was written continues."""
    objects = {}
    stale = opened(objects)
    opened(objects).write("a", b"1")
    reading, done = MemoryStore(objects), []

    def meanwhile(what, when):
        if what == "read" and not done:
            done.append(opened(objects))
            with pytest.raises(FencedError):
                stale.write("b", b"stale")
            assert b"stale" in objects["log/000000000002"]

    reading.around = meanwhile
    found = ObjectLog("mem://x", reading)
    assert done
    assert {name: found.read(name) for name in found.names()} == {"a": b"1"}


def test_a_put_whose_answer_is_lost_was_stored_once(monkeypatch):
    monkeypatch.setattr(object_log, "TIMEOUT_S", 10.0)
    objects, lost = {}, []
    log = opened(objects)

    def loses(what, when):
        if (what, when) == ("create", "after") and len(lost) < 2:
            lost.append(what)
            raise LostError

    log._store.around = loses
    log.write("a", b"1")
    assert lost
    assert files(objects) == {"a": b"1"}
    log.write("a", b"2")
    assert files(objects) == {"a": b"2"}


def test_who_does_not_know_whether_a_file_was_stored_writes_no_other_in_its_place():
    objects = {}
    log = opened(objects)
    log.write("a", b"1")
    late = []

    def lost(what, when):
        if (what, when) == ("create", "before"):
            late.append(what)
            raise LostError("no answer")

    log._store.around = lost
    with pytest.raises(RetriableError, match=r"mem://x: the store does not answer as it should: LostError: no answer"):
        log.write("a", b"2")
    log._store.around = lambda what, when: None
    with pytest.raises(RetriableError, match="whether an earlier change was stored is not known"):
        log.write("a", b"3")
    assert files(objects) == {"a": b"1"}
    assert opened(objects).read("a") == b"1"


class NoCredentialsError(Exception):
    """As botocore's."""


class AnswerError(Exception):
    """As other libraries raise what a store has answered."""

    def __init__(self, status_code):
        super().__init__(f"status {status_code}")
        self.status_code = status_code


def of_s3(code):
    """As s3fs raises an answer with the status 400."""
    return translate_boto_error(ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject"))


@pytest.mark.parametrize(
    "refusal",
    [
        *[PermissionError("Forbidden"), NoCredentialsError("none"), AnswerError(401), AnswerError(403)],
        *map(of_s3, ("InvalidToken", "AuthorizationHeaderMalformed", "InvalidAccessKeyId")),
    ],
)
@pytest.mark.parametrize("request_", ["names", "create"])
def test_a_store_that_refuses_the_login_is_no_outage(refusal, request_, monkeypatch):
    monkeypatch.setattr(object_log, "TIMEOUT_S", 600.0)  # it is not asked again
    asked = []

    def refuse(what, when):
        if what == request_:
            asked.append(what)
            raise refusal

    store = MemoryStore()
    log = ObjectLog("mem://x", store)
    store.around = refuse
    with pytest.raises(AuthenticationError, match=r"mem://x: the store refuses the login.*fsspec"):
        log.claim() if request_ == "create" else ObjectLog("mem://x", store)
    assert asked == [request_]


def test_a_login_that_was_good_and_is_refused_later_is_an_outage():
    """It may be renewed, as those of a metadata service are: a run running does not end for it."""
    store = MemoryStore()
    log = ObjectLog("mem://x", store)
    log.claim()
    store.around = Mock(side_effect=PermissionError("ExpiredToken"))
    with pytest.raises(RetriableError, match="refuses what it tolerated before"):
        log.write("a.json", b"a")


@pytest.mark.parametrize(
    "passing",
    [
        *[AnswerError(429), AnswerError(503), of_s3("SlowDown"), of_s3("InternalError")],
        *[ConnectionError("reset"), OSError(16, "SlowDown"), json.JSONDecodeError("half an answer", "", 0)],
        ssl.SSLCertVerificationError(1, "certificate has expired"),
    ],
)
def test_what_may_pass_is_an_outage(passing):
    store = MemoryStore()
    store.around = Mock(side_effect=passing)
    with pytest.raises(RetriableError, match="does not answer as it should"):
        ObjectLog("mem://x", store)


@pytest.mark.parametrize(
    "lacks",
    [
        *[NotImplementedError(), AnswerError(405), AnswerError(501), of_s3("NotImplemented"), OSError(errno.EROFS, "no")],
        ParamValidationError(report="Invalid bucket name"),
    ],
)
@pytest.mark.parametrize("request_", ["names", "create"])
def test_a_place_where_no_checkpoints_can_be_is_refused_by_name(request_, lacks, monkeypatch):
    """Regression: checkpoints at http://... were taken for an outage, and the run restarted for ever."""
    monkeypatch.setattr(object_log, "TIMEOUT_S", 600.0)  # it is not asked again
    store = MemoryStore()
    store.around = Mock(side_effect=lambda what, when: raises(lacks) if what == request_ else None)
    with pytest.raises(UsageError, match=f"mem://x: no checkpoints can be kept there: {type(lacks).__name__}"):
        ObjectLog("mem://x", store).claim()


def raises(error):
    raise error


class TakesNoFiles(AbstractFileSystem):
    """As fsspec's http: what it does not have raises NotImplementedError without a text."""

    protocol = "takes-no-files"

    def ls(self, path, detail=True, **kwargs):
        return []

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        raise NotImplementedError


def test_a_filesystem_of_fsspec_that_takes_no_files_is_refused_by_name(monkeypatch):
    """Regression: the removal of what the trial has not written raised in place of the refusal."""
    monkeypatch.setattr(object_log, "TIMEOUT_S", 600.0)
    fsspec.register_implementation("takes-no-files", TakesNoFiles, clobber=True)
    log = ObjectLog("takes-no-files://x/y", open_store("takes-no-files://x/y", {}))
    with pytest.raises(UsageError, match=r"its filesystem \(TakesNoFiles\) cannot create .*NotImplementedError"):
        log.claim()


def test_an_argument_that_the_library_takes_for_wrong_is_tried_a_bounded_number_of_times(monkeypatch):
    """Regression: an option that the library does not know was taken for an outage, and the run restarted for ever."""
    monkeypatch.setattr(object_log, "TIMEOUT_S", 600.0)
    store = MemoryStore()
    store.around = Mock(side_effect=ValueError("an option"))
    with pytest.raises(UnclassifiedError, match="mem://x: no checkpoints can be kept there: ValueError: an option"):
        ObjectLog("mem://x", store)


@pytest.mark.parametrize("later", [ValueError("half an answer"), NotImplementedError()])
def test_what_was_good_before_is_an_outage_whatever_the_library_raises(later):
    store = MemoryStore()
    log = ObjectLog("mem://x", store)
    log.claim()
    store.around = Mock(side_effect=later)
    with pytest.raises(RetriableError, match="does not answer as it should"):
        log.write("a.json", b"a")


def test_a_store_that_creates_what_is_there_is_refused():
    store = MemoryStore()
    store.creates_exclusively = False
    with pytest.raises(UsageError, match="created a file that was there"):
        ObjectLog("mem://x", store).claim()


def test_a_store_that_a_run_has_claimed_is_not_tried_at_its_restart():
    """Regression: what it lacks for a while, as in maintenance, was taken for what it never has."""
    store = MemoryStore()
    ObjectLog("mem://x", store).claim("first")
    store.creates_exclusively = False
    ObjectLog("mem://x", store).claim("first", "first")


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        (b"", "log/000000000002: the entry of a run's log cannot be read: it is not JSON"),
        (b"[]", "log/000000000002: the entry of a run's log cannot be read: headrace did not write it"),
        (sealed("other", {}), "its format is 'other'"),
        (enveloped(sealed("headrace-run-entry", {}), version=2), "a newer headrace wrote it: version 2"),
        (sealed("headrace-run-entry", {"life": "", "at": 1, "kind": "x", "name": "a"}), "an entry 'x'"),
        (sealed("headrace-run-entry", {"life": "a"}).replace(b'"a"', b'"b"'), "checksum"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named(head, complaint):
    objects = {}
    opened(objects).write("a", b"1")
    objects["log/000000000002"] = head
    with pytest.raises(StateError, match=f"mem://x/.*{complaint}"):
        opened(objects)


def test_entries_without_a_manifest_are_refused():
    objects = {}
    opened(objects).write("a", b"1")
    del objects["log/000000000001"]
    with pytest.raises(StateError, match="no manifest"):
        opened(objects)


@pytest.mark.parametrize("gone", [{1, 2}, {1}, {2}], ids=["all", "the manifest", "a file"])
def test_a_log_that_is_emptied_under_a_running_run_is_written_again(caplog, gone):
    """Regression: what was written from then on had no manifest, so that no later start could read it."""
    objects = {}
    log = opened(objects)
    log.write("a", b"1")
    for number in gone:
        del objects[f"log/{number:012d}"]
    log.write("b", b"2")
    log.write("c", b"3")
    kept = {"b": b"2", "c": b"3"} | ({} if 2 in gone else {"a": b"1"})
    assert files(objects) == files_of(log) == kept
    assert ("mem://x was emptied while this run is running" in caplog.text) == (1 in gone)


def test_a_run_whose_log_was_emptied_ends_if_another_has_started_there():
    """The one that was started last continues, and finds nothing of the other."""
    objects = {}
    first = opened(objects)
    for name in "abc":
        first.write(name, b"1")
    objects.clear()
    second = opened(objects)
    second.write("x", b"2")
    with pytest.raises(FencedError):
        first.write("d", b"1")
    second.write("y", b"2")
    assert files(objects) == files_of(second) == {"x": b"2", "y": b"2"}


def test_a_log_whose_folder_is_removed_is_written_again(tmp_path):
    """Of a store that has folders."""
    store = open_store(f"{tmp_path}/run", {})
    log = ObjectLog("the store", store)
    log.claim()
    shutil.rmtree(tmp_path / "run")
    log.write("a", b"1")
    assert files_of(ObjectLog("the store", store)) == {"a": b"1"}


def test_a_file_that_was_truncated_keeps_its_place_for_its_reader_to_judge(caplog):
    objects = {}
    opened(objects).write("a", b"123")
    objects["log/000000000002"] = objects["log/000000000002"][:-1]
    assert files(objects) == {"a": b"12"}
    assert "mem://x/log/000000000002 is damaged: 2 bytes, where 3 were written" in caplog.text


def test_the_golden_log_is_read(request):
    golden = json.loads((request.path.parents[1] / "golden" / "run-log-v1.json").read_text())
    objects = {name: text.encode() for name, text in golden.items()}
    assert files(objects) == {"run.json": b"{}", "checkpoint-000000000002.json": b"two\nlines"}


def test_other_objects_of_the_folder_are_let_alone():
    objects = {"log/notes.txt": b"mine", "log/0001": b"mine", "log/.x.probe": b"1"}
    kept = dict(objects)
    opened(objects).write("a", b"1")
    assert files(objects) == {"a": b"1"}
    assert {name: objects[name] for name in kept} == kept


def test_the_files_of_an_fsspec_store_are_those_of_the_next_process(tmp_path):
    objects = f"memory://{tmp_path.name}"
    log = ObjectLog(objects, open_store(objects, {}))
    log.claim()
    log.write("a", b"1")
    again = ObjectLog(objects, open_store(objects, {}))
    again.claim()
    assert again.read("a") == b"1"
    with pytest.raises(FencedError):
        log.write("a", b"2")


# --- schedules ----------------------------------------------------------------------------------------------------------


class Simulation:
    """Is alive that stop at any request for as long as others do anything. What was acknowledged has to be there, and no more.

    `said`: what the log holds, as the last who changed it was reported. `maybe`: after changes without an answer.
    """

    def __init__(self, seed):
        self.draw, self.objects, self.happened = random.Random(seed), {}, Counter()
        self.lifetimes, self.said, self.maybe, self.depth = [], {}, [], 0
        self.owner, self.discarded = None, set()

    def step(self, what, when):
        """Of any request, before or after the store has done it."""
        chance = self.draw.random()
        if chance < 0.05 and self.depth < MOST_AT_ONCE:
            self.depth += 1
            self.draw.choice((self.act, self.go_on))()
            self.depth -= 1
        elif chance < 0.07:
            self.happened["lost"] += 1
            raise LostError
        elif chance < 0.08:
            self.happened["died"] += 1
            raise Died

    def act(self):
        idle = [log for log in self.lifetimes if not log._lock.locked()]
        if not idle or self.draw.random() < 0.2:
            self.begin()
        else:
            self.change(self.draw.choice(idle))

    def go_on(self):
        """The lifetime running changes much, while another is still."""
        for _ in range(5):
            if self.owner in self.lifetimes and not self.owner._lock.locked():
                self.change(self.owner)

    def begin(self):
        store = MemoryStore(self.objects)
        store.around = self.step
        try:
            log = ObjectLog("mem://x", store)
            self.told_by(log)
            log.claim()
        except RetriableError:
            self.happened["no answer at the start"] += 1
        except Died:
            pass
        else:
            self.happened["began"] += 1
            self.lifetimes.append(log)

    def told_by(self, log):
        """As soon as a change is acknowledged: later requests only tidy up."""
        append = log._append

        def settings(header, data):
            entry = append(header, data)
            if header["kind"] == "manifest" and log is not self.owner:
                self.claimed(log)
            elif log is not self.owner:
                raise AssertionError("a lifetime that was replaced has written")
            elif header["kind"] == "manifest":
                self.said = {name: kept.data for name, kept in log._entries.items()}
            else:
                self.said = {**self.said, header["name"]: data}
            return entry

        log._append = settings

    def claimed(self, log):
        found = {name: entry.data for name, entry in log._entries.items()}
        if self.needed(found) not in map(self.needed, [self.said, *self.maybe]):
            raise AssertionError(f"{found} was read, and {self.said} or one of {self.maybe} was written")
        self.said, self.maybe, self.owner = found, [], log

    def newest_manifest(self):
        """Its number; it may be of a lifetime that has died before it was reported."""
        return max(int(name[-12:]) for name, data in self.objects.items() if b'"manifest"' in data.partition(b"\n")[0])

    def needed(self, files):
        """What is discarded may stay or go."""
        return {name: data for name, data in files.items() if (name, data) not in self.discarded}

    def change(self, log):
        name, data = self.draw.choice("abc"), b"%d" % self.draw.randrange(10**6)
        change = self.draw.choice(["write", "write", "remove", "discard"])
        then = {other: value for other, value in self.said.items() if other != name}
        if log is self.owner and change != "discard":
            self.maybe.append({**then, name: data} if change == "write" else then)
        try:
            if change == "write":
                log.write(name, data)
            elif change == "remove":
                log.remove([name])
            elif log is self.owner:
                self.discarded.add((name, self.said.get(name)))
                log.discard(name)
        except FencedError:
            self.happened["fenced"] += 1
            self.lifetimes.remove(log)
            if self.newest_manifest() == log._manifest:
                raise AssertionError("no process has replaced the lifetime that was fenced") from None
        except RetriableError:
            self.happened["unresolved"] += 1
        except Died:
            self.lifetimes.remove(log)
        else:
            self.happened[change] += 1


def play(seed):
    simulation = Simulation(seed)
    for _ in range(30):
        simulation.act()
    return simulation.happened


def play_all():
    happened = Counter()
    for seed in range(SCHEDULES):
        happened += play(seed)
    return happened


def test_histories():
    happened = play_all()
    for what in ("began", "fenced", "unresolved", "died", "lost", "write", "remove", "discard"):
        assert happened[what] > SCHEDULES / 10, happened


@contextmanager
def nobody_looks_for_higher_numbers():
    append = ObjectLog._append

    def without(self, header, data):
        with patch.object(self, "_listed", list):
            return append(self, header, data)

    with patch.object(ObjectLog, "_append", without):
        yield


@contextmanager
def what_is_there_is_taken_for_ones_own():
    def create(self, number, data):
        with suppress(FileExistsError):
            self._store.create(object_log._path(number), data, "")

    with patch.object(ObjectLog, "_create", create):
        yield


@contextmanager
def every_entry_counts():
    opened_entry = ObjectLog._opened

    def names_all(self, number, data):
        entry = opened_entry(self, number, data)
        return replace(entry, entries=frozenset(range(number))) if entry.name is None else entry

    with patch.object(ObjectLog, "_opened", names_all):
        yield


@contextmanager
def the_last_object_may_be_deleted():
    def delete(self, numbers):
        for number in list(numbers):
            with suppress(LostError):
                self._store.remove(object_log._path(number))
                del self._objects[number]

    # Who gets its number finds by itself that another has its place, since emptied places are noticed.
    with patch.object(ObjectLog, "_delete", delete), patch.object(ObjectLog, "_is_anothers", lambda *_: False):
        yield


@contextmanager
def who_comes_too_late_takes_its_object_away():
    append = ObjectLog._append

    def tidy(self, header, data):
        number = self._last + 1
        try:
            return append(self, header, data)
        except object_log._TakenError:
            stored = self._store.objects.get(object_log._path(number))
            if stored is not None and body_of(stored.partition(b"\n")[0])["life"] == self._lifetime:
                self._store.objects.pop(object_log._path(number))
            raise

    with patch.object(ObjectLog, "_append", tidy):
        yield


@contextmanager
def the_highest_manifest_counts():
    def highest(entries):
        return max((entry for entry in entries if entry.name is None), key=lambda entry: entry.number)

    with patch.object(object_log, "_manifest_that_counts", highest):
        yield


INJECTED = (
    nobody_looks_for_higher_numbers,
    what_is_there_is_taken_for_ones_own,
    every_entry_counts,
    the_last_object_may_be_deleted,
    who_comes_too_late_takes_its_object_away,
    the_highest_manifest_counts,
)


@pytest.mark.parametrize("injected", INJECTED, ids=lambda bug: bug.__name__)
def test_the_histories_find_a_injected_bug(injected):
    with injected(), pytest.raises((AssertionError, StateError)):
        play_all()
