"""A stop in a phase of a commit, for `PYTHONPATH`: what Python imports at its start puts it into processes that Spark starts.

HEADRACE_PHASE is JSON: once the file `armed` is there, the first call of `method` of the Kafka sink's `owner` stops before or
after (`when`) its work, writes its process id to `reached`, and waits to be killed. HEADRACE_TRACE names a file in which every
start and fork of a Python process is noted, and every step of our source and sink. Nothing is imported here that Spark would
not import by itself: that would make its processes start warm.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time

SINK = "headrace.connectors.kafka.write.sink"
TRACED = {
    SINK: {
        "KafkaTransaction": ("write", "prepare"),
        "KafkaCommitter": ("fence", "check", "record", "end", "clean_up"),
        "KafkaSink": ("recorded_epochs",),
    },
    "headrace.runners.spark.stream": {"StreamPlanner": ("initial_offsets", "next_offsets", "tasks")},
    "headrace.runners.spark.readers": {"StreamReader": ("__init__",)},
    "headrace.runners.spark.writers": {"StreamWriter": ("__init__", "write", "commit")},
}


def note(name, started_at, took):
    line = {
        "name": name, "at": started_at, "took": round(took, 4), "pid": os.getpid(),
        "module": getattr(sys, "argv", sys.orig_argv)[-1],
    }  # fmt: skip
    with open(os.environ["HEADRACE_TRACE"], "a") as out:
        out.write(json.dumps(line) + "\n")


def stop_in(sink, phase):
    owner = getattr(sink, phase["owner"])
    method = getattr(owner, phase["method"])

    def stop_if(when):
        if phase["when"] != when or not os.path.exists(phase["armed"]):
            return
        try:
            partial = f"{phase['reached']}.{os.getpid()}.{threading.get_ident()}"  # a thread's own: a link shares what is in it
            with open(partial, "w") as file:
                file.write(str(os.getpid()))
            os.link(partial, phase["reached"])
        except FileExistsError:
            return
        threading.Event().wait()

    def stopping(self, *arguments):
        stop_if("before")
        answer = method(self, *arguments)
        stop_if("after")
        return answer

    setattr(owner, phase["method"], stopping)


def trace(module):
    for name, methods in TRACED[module.__name__].items():
        owner = getattr(module, name)
        for method in methods:
            setattr(owner, method, traced(f"{name}.{method}", getattr(owner, method)))


def traced(name, method):
    def noted(self, *arguments):
        started_at = time.monotonic()
        try:
            return method(self, *arguments)
        finally:
            note(name, started_at, time.monotonic() - started_at)

    return noted


class Injector(importlib.abc.MetaPathFinder):
    """Changes a module of headrace right after another process has imported it."""

    def find_spec(self, name, path, target=None):
        if name not in TRACED or name in injected:
            return None
        injected.add(name)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_inject(module):
            started_at = time.monotonic()
            load(module)
            if "HEADRACE_TRACE" in os.environ:
                note(f"import {name}", started_at, time.monotonic() - started_at)
                trace(module)
            if "HEADRACE_PHASE" in os.environ and name == SINK:
                stop_in(module, json.loads(os.environ["HEADRACE_PHASE"]))

        spec.loader.exec_module = load_and_inject
        return spec


injected = set()
if any("pyspark" in argument or "spark_processes" in argument for argument in sys.orig_argv):
    sys.meta_path.insert(0, Injector())
    if "HEADRACE_TRACE" in os.environ:
        note("interpreter", time.monotonic(), 0.0)
        os.register_at_fork(after_in_child=lambda: note("fork", time.monotonic(), 0.0))
