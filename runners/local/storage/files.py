"""What a run asks of the place of its checkpoints: small files by name, each of them whole and durable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from headrace.enumerator.errors import UsageError


class NotWrittenError(OSError):
    """A file could not be written, and no reader will ever find it (a full disk): what had its name is."""

    def __str__(self) -> str:
        return str(self.strerror)


class NoPlaceError(UsageError):
    """A store answers that no checkpoints can be there. Where a run has had them it may pass, as in maintenance."""


class UnusableError(UsageError):
    """A folder refuses what is asked of it. Where a run has worked it may pass, as while a disk is mounted read-only."""


class RunFiles(ABC):
    """The files of one run. Any process may read; who changes them has called `claim`, in this lifetime of the process.

    Raises OSError for what a filesystem refuses, RetriableError for what a store does not answer.
    """

    location: str
    """As the user has given it, for messages."""

    @abstractmethod
    def claim(self, owner: str = "", after: str | None = None) -> None:
        """From here on no other process changes them, and what is read is the newest. Called once, before any change.

        `owner`: the command that claims them; `after`: the one that has to be the last that did, None for any.
        Raises FencedError where another one has.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Of all files; nothing where there is no such place."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """A whole file, which is durable from then on. Raises FileNotFoundError."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """In bytes; None if there is no such file. Called by any thread."""

    @abstractmethod
    def written_s(self, name: str) -> float:
        """When it was written, in seconds of the epoch. Raises FileNotFoundError."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Durably, in place of what is there. Called by any thread.

        Raises NotWrittenError if it is certain not to be there; after any other error it may be. Raises FencedError where
        another run has claimed the files.
        """

    @abstractmethod
    def remove(self, names: Collection[str]) -> None:
        """All of these that there are, durably. Raises as `write`."""

    @abstractmethod
    def discard(self, name: str) -> None:
        """It is of no more use, and does no harm where it stays."""

    def where(self, name: str) -> str:
        return f"{self.location.rstrip('/')}/{name}"
