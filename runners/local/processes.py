"""Processes of a run: forked from one that has everything loaded and one thread, so that a start takes milliseconds.

The supervisor starts the coordinator: from its own process (`forked`), or from multiprocessing's fork server (`forked_apart`).
The coordinator, which needs threads, first forks a *worker processes*: workers are forked from that, and end with it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from headrace.enumerator.errors import UsageError

PROCESS_NAME = "headrace run: "
"""What the names of a run's processes start with."""

_LOOK_S = 0.01
_REAP_S, _REAP_LOOK_S = 1.0, 0.001
_SUPERVISORS = (signal.SIGINT, signal.SIGTERM)

CALLED_AGAIN = 78
"""The exit status (EX_CONFIG) of a coordinator's process that comes to `run` again as it imports the user's script."""
CALLED_AGAIN_ERROR = "run was called while a process of the run loaded the file: call it under if __name__ == '__main__'"


def forked(modules: Iterable[str]) -> ForkContext:
    """Processes forked from this one, which loads these modules now.

    For a process that is ours alone (the command line): it has one thread, and no connection. Fork in it is safe then.
    """
    for name in modules:
        with suppress(ImportError):  # who needs it says what is missing, and where
            importlib.import_module(name)
    return multiprocessing.get_context("fork")


def forked_apart(modules: Iterable[str]) -> ForkServerContext:
    """Processes forked from a server that has these modules loaded: for a process with a user's threads and connections.

    The modules are of no effect after the first process of it. Raises UsageError for a program that its processes cannot load,
    and in a process that may have none.
    """
    if getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise UsageError("the program comes from standard input, and the processes of a run load its file: put it into one")
    if multiprocessing.current_process().daemon:
        raise UsageError(
            "a daemonic process, as of multiprocessing.Pool, may start no others, and a run needs some: use "
            "ProcessPoolExecutor of concurrent.futures"
        )
    _forget_inherited_server()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", *modules])
    return context


def _forget_inherited_server() -> None:
    """Python takes a fork server of the process that this one was forked from for its own, and fails when it waits for it."""
    server: Any = vars(forkserver)["_forkserver"]  # nothing public says whose it is
    with server._lock:
        if server._forkserver_pid is None:
            return
        with suppress(ChildProcessError):
            ended, _ = os.waitpid(server._forkserver_pid, os.WNOHANG)
            if not ended:
                return
        os.close(server._forkserver_alive_fd)  # where it is another process's, a copy: the server is kept by the other one
        server._forkserver_alive_fd = server._forkserver_pid = None


def pipe() -> tuple[Connection, Connection]:
    """Two ends, the first for this process: forks of it do not keep it, so that the other end sees the end of this one."""
    ours, its = multiprocessing.Pipe()
    util.register_after_fork(ours, Connection.close)
    return ours, its


def leave_signals_to_supervisor() -> None:
    """Ctrl-C and SIGTERM do nothing in this process; called by its main thread.

    By handlers: what is ignored is so, too, in each program that the process starts, and `Popen.terminate` could not end it.
    """
    for number in _SUPERVISORS:
        signal.signal(number, lambda *_: None)


def children_heed_signals() -> None:
    """What this process forks from now on ends by Ctrl-C and SIGTERM, so that a user's function can end what it has started."""
    hold = partial(signal.pthread_sigmask, signal.SIG_BLOCK, _SUPERVISORS)
    let_come = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _SUPERVISORS)

    def heed() -> None:
        for number in _SUPERVISORS:
            signal.signal(number, signal.SIG_DFL)
        let_come()

    # Held meanwhile: one that comes before the new process heeds it would be lost.
    os.register_at_fork(before=hold, after_in_parent=let_come, after_in_child=heed)


def end_as_raised(error: BaseException) -> NoReturn:
    """End this process as Python ends one that has raised this, without anything else that it would do at its end."""
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        os._exit(1)
    os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))


class WorkerProcesses:
    """Starts processes, by number, from a fork of this one as it was when the worker processes was made: with one thread.

    They end by SIGKILL when this process does, also frozen ones. `start`, `kill` and `close` are called by one thread.
    """

    def __init__(self) -> None:
        """Fork now. Before it nothing may have a thread, a lock or a connection."""
        self._connection, its = pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_nurse, args=(its,), name=f"{PROCESS_NAME}worker processes"
        )
        self._process.start()
        its.close()
        self._living: set[int] = set()
        self._closing = threading.Event()
        self._changed = threading.Condition()

    def watch(self, ended: Callable[[int, str], None], broken: Callable[[Exception], None]) -> None:
        """Call these from now on, in a thread: for each that has ended or could not be started, and if this is gone."""
        threading.Thread(target=self._listen, args=(ended, broken), daemon=True).start()

    def start(self, number: int, target: Callable[[Any], None], argument: object) -> None:
        """Call `target` with the argument, which is pickled, in a new process. Raises OSError without the process that forks.

        Where the machine refuses a process (no memory, too many), it is reported as one that has ended.
        """
        with self._changed:
            self._living.add(number)
        # As bytes: what unpickling imports is for the new process alone.
        self._connection.send((number, target, pickle.dumps(argument)))

    def kill(self, number: int) -> None:
        """SIGKILL, if it is still alive. Raises OSError if the process that forks is gone."""
        self._connection.send((number, None, None))

    def close(self, timeout_s: float) -> None:
        """Give all so long to end, then kill them. None is left when it returns; later calls do nothing."""
        if self._closing.is_set():
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._living, timeout_s)
        self._closing.set()
        with suppress(OSError):  # it is gone already
            self._connection.send(None)
        self._process.join()

    def _listen(self, ended: Callable[[int, str], None], broken: Callable[[Exception], None]) -> None:
        try:
            while True:
                number, how = self._connection.recv()
                with self._changed:
                    self._living.discard(number)
                    self._changed.notify_all()
                ended(number, how)
        except (EOFError, OSError) as error:
            if not self._closing.is_set():
                broken(RuntimeError(f"the process that workers are forked from is gone: {type(error).__name__}"))


def _nurse(requests: Connection) -> None:
    """The worker processes's process. Ends, with all that it has started, when the other end of `requests` does."""
    leave_signals_to_supervisor()
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    # By SIGCHLD, not by a pipe's end: a user's function may start processes that outlive the worker and hold its files.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children: dict[int, BaseProcess] = {}
    try:
        while True:
            ready = wait([requests, woken])
            if woken in ready:
                os.read(woken, 65536)
            for number in [number for number, child in children.items() if child.exitcode is not None]:
                requests.send((number, f"its process ended with status {children.pop(number).exitcode}"))
            if requests in ready and not _obey(requests, children, (woken, wake)):
                return
    except (EOFError, OSError):
        pass  # who has made us is gone
    finally:
        for child in children.values():
            child.kill()
        for child in children.values():
            child.join()


def _obey(requests: Connection, children: dict[int, BaseProcess], files: tuple[int, int]) -> bool:
    request = requests.recv()
    if request is None:
        return False
    number, target, argument = request
    if target is not None:
        born = multiprocessing.get_context("fork").Process(target=_begin, args=(requests, files, target, argument))
        born.name = f"{PROCESS_NAME}worker {number}"
        try:
            _start(born)
        except OSError as error:
            requests.send((number, f"its process could not be started: {error}"))
        else:
            children[number] = born
    elif number in children:
        children[number].kill()
    return True


def _start(born: BaseProcess) -> None:
    """Raises OSError, and then leaves nothing open, as the same may be refused many times."""
    before = _open_files()
    try:
        born.start()
    except OSError:
        for file in _open_files() - before:  # pipes to a process that there is not
            with suppress(OSError):
                os.close(file)
        raise


def _open_files() -> set[int]:
    found = set()
    for file in map(int, os.listdir("/dev/fd")):
        with suppress(OSError):  # it is the one that listing them took
            os.fstat(file)
            found.add(file)
    return found


def _begin(requests: Connection, files: tuple[int, int], target: Callable[[Any], None], argument: bytes) -> None:
    """In the new process: give back what is the worker processes's."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    for file in files:
        os.close(file)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a function has printed is there though its process is killed
    target(pickle.loads(argument))  # noqa: S301 - of our own parent


def end_group(group: int, lifeline: Connection, timeout_s: float) -> bool:
    """Kill all processes of a group, also frozen ones, and wait until they are gone. False if some are still there.

    `lifeline`: one end of a pipe whose other end every process of the group has. A dead one
    that was not waited for, as in a container without an init process, does not count as still there. Nor does one that a
    user's function has started, and that has left the group, although it may have the other end.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return True
        if lifeline.poll(_LOOK_S):
            return True
        if time.monotonic() > deadline_s:
            return False


def reap_group(group: int) -> None:
    """Let go of the dead processes of a group that were left to this one when their parent ended. After `end_group`.

    The kernel leaves them to the first process of a container, which a supervisor may be. Each has its number until it is
    waited for, and a container has this many of them.
    """
    deadline_s = time.monotonic() + _REAP_S
    with suppress(ChildProcessError):  # there is none, or no more
        while os.waitpid(-group, os.WNOHANG) != (0, 0) or time.monotonic() < deadline_s:
            time.sleep(_REAP_LOOK_S)  # what was killed has closed its files, and ends now
