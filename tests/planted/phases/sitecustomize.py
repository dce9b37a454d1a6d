"""A stop in a phase of a commit, for `PYTHONPATH`: what Python imports at its start puts it into processes that Spark starts.

HEADRACE_PHASE is JSON: once the file `armed` is there, the first call of `method` of the Kafka sink's `owner` stops before or
after (`when`) its work, writes its process id to `reached`, and waits to be killed. HEADRACE_TRACE names a file that each
step of the sink is noted in. Nothing is imported here that Spark would not import: that would make its processes start warm.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time

MODULE = "headrace.connectors.kafka.sink"
TRACED = {"KafkaTransaction": ("write", "prepare"), "KafkaCommitter": ("fence", "check", "record", "end", "sweep")}


def stop_in(sink, phase):
    owner = getattr(sink, phase["owner"])
    method = getattr(owner, phase["method"])

    def stop_if(when):
        if phase["when"] != when or not os.path.exists(phase["armed"]):
            return
        try:
            partial = f"{phase['reached']}.{os.getpid()}"
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


def trace(sink, file):
    for name, methods in TRACED.items():
        for method in methods:
            setattr(getattr(sink, name), method, traced(f"{name}.{method}", getattr(getattr(sink, name), method), file))


def traced(name, method, file):
    def noted(self, *arguments):
        began = time.monotonic()
        try:
            return method(self, *arguments)
        finally:
            line = {"name": name, "at": began, "took": time.monotonic() - began, "pid": os.getpid()}
            with open(file, "a") as out:
                out.write(json.dumps(line) + "\n")

    return noted


class Planter(importlib.abc.MetaPathFinder):
    """Changes the sink right after somebody has imported it."""

    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_plant(module):
            load(module)
            if "HEADRACE_TRACE" in os.environ:
                trace(module, os.environ["HEADRACE_TRACE"])
            if "HEADRACE_PHASE" in os.environ:
                stop_in(module, json.loads(os.environ["HEADRACE_PHASE"]))

        spec.loader.exec_module = load_and_plant
        return spec


if any("pyspark" in argument for argument in sys.orig_argv):
    sys.meta_path.insert(0, Planter())
