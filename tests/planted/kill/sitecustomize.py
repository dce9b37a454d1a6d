"""A kill, for `PYTHONPATH`: what Python imports by itself at its start puts it into the processes that Spark starts.

HEADRACE_KILL is JSON: before or after (`when`) the `nth` call of `method` of the class `owner` in `module`, counted in each
process, the driver's process group HEADRACE_KILL_GROUP, with its JVM, is killed, and the calling process with it; once, for
which `mark` is made.
"""

import importlib
import json
import os
import signal
import sys

if "HEADRACE_KILL" in os.environ and any("pyspark" in argument for argument in sys.orig_argv):
    kill = json.loads(os.environ["HEADRACE_KILL"])
    owner = getattr(importlib.import_module(kill["module"]), kill["owner"])
    method = getattr(owner, kill["method"])
    calls = []

    def die_if(when):
        if kill["when"] != when or len(calls) != kill["nth"]:
            return
        try:
            os.close(os.open(kill["mark"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.killpg(int(os.environ["HEADRACE_KILL_GROUP"]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def planted(self, *arguments):
        calls.append(1)
        die_if("before")
        answer = method(self, *arguments)
        die_if("after")
        return answer

    setattr(owner, kill["method"], planted)
