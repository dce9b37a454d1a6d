"""A fault, for `PYTHONPATH`: what Python imports by itself at its start puts it into the processes that Spark starts.

HEADRACE_KILL is JSON: before or after (`when`) the `nth` call of `method` of the class `owner` in `module`, counted in each
process, that happens which `what` says (default kill), once, for which `mark` is made, with the number of the process in it:

- kill: SIGKILL to the driver's process group HEADRACE_KILL_GROUP, with its JVM, and to the calling process;
- stop: SIGSTOP to the same;
- die: SIGKILL to the calling process alone;
- hold: the calling process waits for as long as the mark is there;
- fail: RuntimeError.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time

if "HEADRACE_KILL" in os.environ and any("pyspark" in argument or "spark_processes" in argument for argument in sys.orig_argv):
    kill = json.loads(os.environ["HEADRACE_KILL"])
    owner = getattr(importlib.import_module(kill["module"]), kill["owner"])
    method = getattr(owner, kill["method"])
    calls = []
    turns = threading.RLock()  # threads call one after the other: so "after the first call" is before the second

    def send_all(number):
        os.killpg(int(os.environ["HEADRACE_KILL_GROUP"]), number)
        os.kill(os.getpid(), number)

    def hold():
        while os.path.exists(kill["mark"]):
            time.sleep(0.02)

    def fail():
        raise RuntimeError("injected")

    faults = {
        "kill": lambda: send_all(signal.SIGKILL), "stop": lambda: send_all(signal.SIGSTOP),
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL), "hold": hold, "fail": fail,
    }  # fmt: skip

    def fault_if(when):
        if kill["when"] != when or len(calls) != kill["nth"]:
            return
        try:
            os.close(os.open(kill["mark"] + ".once", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        with open(kill["mark"] + ".part", "w") as mark:
            mark.write(str(os.getpid()))
        os.rename(kill["mark"] + ".part", kill["mark"])
        faults[kill.get("what", "kill")]()

    def injected(self, *arguments):
        with turns:
            calls.append(1)
            fault_if("before")
            answer = method(self, *arguments)
            fault_if("after")
            return answer

    setattr(owner, kill["method"], injected)
