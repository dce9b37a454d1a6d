"""One broker process, whatever runs it: what the cluster may do to it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from headrace.enumerator.errors import HeadraceError, PeerError, UsageError

LOG_NAME = "broker.log"


class Node(Protocol):
    """A broker that can be started, ended and frozen. Every method returns once its effect has happened."""

    @property
    def pid(self) -> int | None:
        """The process that was started last; None before the first."""

    def start(self) -> None:
        """Start the process, without waiting until it serves."""

    def kill(self) -> None:
        """End it by SIGKILL; nothing happens when it does not run."""

    def stop(self) -> None:
        """Ask it to stop (SIGTERM); kill it after 30 s."""

    def pause(self) -> None:
        """Freeze it: connections stay open, nothing answers."""

    def resume(self) -> None:
        """Undo `pause`."""

    def is_running(self) -> bool:
        """True from `start` until the process has ended, also while it is paused."""

    def log_tail(self, lines: int) -> str:
        """The last lines of its log."""


class Launcher(Protocol):
    """Runs Kafka's programs: in Java processes or in containers."""

    def format(self, directory: Path, arguments: list[str]) -> None:
        """Run Kafka's StorageTool to its end for a node's directory. Raises PeerError with its output when it fails."""

    def node(self, directory: Path) -> Node:
        """A node, not started, for a directory that holds `server.properties`."""


class ExternalNode:
    """A broker that was not started here. What would need its process raises UsageError."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _refuse(self) -> None:
        raise UsageError(
            f"the brokers at {self._bootstrap} come from HEADRACE_BOOTSTRAP: headrace did not start them and cannot "
            "kill, stop, pause or restart them. Unset HEADRACE_BOOTSTRAP to have brokers of our own"
        )

    start = kill = stop = pause = resume = _refuse

    @property
    def pid(self) -> int | None:
        self._refuse()
        return None

    def is_running(self) -> bool:
        return True

    def log_tail(self, lines: int) -> str:
        return f"(the log of {self._bootstrap} is not ours; {lines} lines asked for)"


def format_error(node: str, output: str) -> HeadraceError:
    """What Kafka's StorageTool has written, without the stack. A UsageError for a setting that it refuses."""
    text = "\n".join(line for line in output.splitlines() if not line.startswith("\tat "))
    if refused := text.partition("ConfigException: ")[2]:
        return UsageError(f"Kafka refuses a setting of the broker: {refused}")
    return PeerError(f"Kafka's StorageTool failed for {node}:\n{text}")
