"""The options of `format("headrace")`: one table for each connector and direction, read by one parser.

Case is ignored, as Spark does. An option that no one knows is refused with the nearest known one. No message shows the value
of an option that may be a secret.
"""

from __future__ import annotations

import difflib
import functools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from headrace.connectors.base.jobs import check_job, is_one_off
from headrace.connectors.base.sink import TwoPhaseSink
from headrace.enumerator.errors import UsageError
from headrace.runners.spark.driver_id import DRIVER_ID

log = logging.getLogger(__name__)

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)
SinkT = TypeVar("SinkT", bound=TwoPhaseSink[Any])

_FROM_SPARK = frozenset({"checkpointlocation", "provider", "__datasource_name", "queryname", DRIVER_ID.lower()})
"""What Spark, or a supervised driver, adds to the options by itself, in lower case."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name as documented, how its text is read, and what it is for.

    `argument`: of the connector's class, that the option's value is as it is; None for an option that means something else.
    """

    name: str
    parse: Parse
    meaning: str
    argument: str | None = None

    def refuse(self, value: str, wanted: str) -> UsageError:
        """The error for a value that is not what is wanted. It shows the value: not for secrets."""
        return UsageError(f"option '{self.name}' must be {wanted}, not {value!r}")


Parse = Callable[[Option, str], Any]  # reads the text of an option. Raises UsageError.


# --- reading the text of one option -----------------------------------------------------------------------------------


def verbatim(option: Option, value: str) -> str:
    """The text as it is, blanks included; not only blanks. Never shown."""
    if not value.strip():
        raise UsageError(f"option '{option.name}' must not be empty")
    return value


def text(option: Option, value: str) -> str:
    return verbatim(option, value).strip()


def names(option: Option, value: str) -> tuple[str, ...]:
    """Separated by commas."""
    return tuple(name.strip() for name in text(option, value).split(","))


def boolean(option: Option, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise option.refuse(value, "true or false")
    return value.strip().lower() == "true"


def integer(least: int) -> Parse:
    def parse(option: Option, value: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()) is None:
            raise option.refuse(value, "a whole number")
        number = int(value)
        if number < least:
            raise UsageError(f"{option.name} must be positive") if least == 1 else option.refuse(value, f"at least {least}")
        return number

    return parse


def json_object(example: str) -> Parse:
    """A JSON object, which may hold secrets: the error shows this example, and neither the text nor the cause, which has it."""

    def parse(option: Option, value: str) -> dict[str, Any]:
        found = as_json(value)
        if not isinstance(found, dict):
            raise UsageError(f"option '{option.name}' must be JSON like {example}")
        return found

    return parse


def json_texts(example: str) -> Parse:
    """As `json_object`, of texts only."""

    def parse(option: Option, value: str) -> dict[str, str]:
        found = as_json(value)
        if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
            raise UsageError(f"option '{option.name}' must be JSON like {example}, with texts as values")
        return found

    return parse


def as_json(value: str) -> object:
    """What the JSON holds; None for any other text."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def one_of(*words: str) -> Parse:
    def parse(option: Option, value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise option.refuse(value, " or ".join(words))
        return word

    return parse


def choice(kind: type[ChoiceT]) -> Parse:
    def parse(option: Option, value: str) -> ChoiceT:
        word = text(option, value).lower()
        if word not in tuple(kind):
            raise option.refuse(value, " or ".join(kind))
        return kind(word)

    return parse


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptionTable:
    """The options of one connector in one direction. `known_to` and `owner` say whose they are, in errors and warnings.

    `prefix`: options that start with it are properties, and are given as they are. `groups`: options that start with one of
    these are given together under it, by their names in lower case without it. `ignored`: skipped silently, in lower case.
    `other_side`: the options of the other direction, which mean nothing here, as a warning says: people write one set for both.
    `nothing_alike`: what is said of an option that resembles none.
    """

    options: Sequence[Option]
    known_to: str = "the sink"
    owner: str = "the sink"
    prefix: str = ""
    ignored: frozenset[str] = frozenset()
    groups: Sequence[str] = ()
    required: Sequence[str] = ()
    other_side: Sequence[Option] = ()
    nothing_alike: str = ""

    def __iter__(self) -> Iterator[Option]:
        return iter(self.options)

    @functools.cached_property
    def _by_name(self) -> Mapping[str, Option]:
        return {option.name.lower(): option for option in self.options}

    def parse(self, written: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Values by documented name, and properties by name in lower case without the prefix.

        Raises UsageError for an option that is not known, or missing, and as the options' own parsers. Does no I/O.
        """
        given: dict[str, Any] = {}
        properties: dict[str, str] = {}
        for name, value in written.items():
            option = self._by_name.get(name.lower())
            if self.prefix and name.lower().startswith(self.prefix):
                properties[name.lower().removeprefix(self.prefix)] = value
            elif option is not None:
                given[option.name] = option.parse(option, value)
            elif (group := next((each for each in self.groups if name.lower().startswith(each)), None)) is not None:
                given.setdefault(group, {})[name.lower().removeprefix(group)] = value
            elif name.lower() not in _FROM_SPARK | self.ignored:
                self._pass_over(name)
        for name in self.required:
            if name not in given:
                raise UsageError(f"option '{name}' is missing: {self._by_name[name.lower()].meaning}")
        return given, properties

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given options that are arguments of the connector's class, by the names of these."""
        return {each.argument: given[each.name] for each in self if each.argument is not None and each.name in given}

    def _pass_over(self, written: str) -> None:
        other = next((option for option in self.other_side if option.name.lower() == written.lower()), None)
        if other is not None:
            warn_once(f"option '{other.name}' means nothing to {self.owner}, and is ignored")
            return
        known = {name: option.name for name, option in self._by_name.items()}
        if self.prefix:
            known[f"{self.prefix}bootstrap.servers"] = f"{self.prefix}bootstrap.servers"
        near = difflib.get_close_matches(written.lower(), known, n=1)
        hint = f"did you mean '{known[near[0]]}'?" if near else self.nothing_alike
        raise UsageError(f"option '{written}' is not known to {self.known_to}" + (f"; {hint}" if hint else ""))


def checkpoint_location(options: Mapping[str, str]) -> str | None:
    """The query's, where an option names it."""
    return next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)


def check_for_batch(given: Mapping[str, Any], stream_only: Iterable[str]) -> None:
    """Of a batch read: warn of each option that only streams have. Raises UsageError for a savepoint to continue from."""
    if "startFromSavepoint" in given:
        raise UsageError(
            "option 'startFromSavepoint' is for streaming queries: a batch read has no checkpoint to continue from"
        )
    for name in stream_only:
        if name in given:
            log.warning("%s option ignored in batch queries", name)


@functools.lru_cache(maxsize=256)
def warn_once(message: str) -> None:
    """A warning in the log; once in a process, as Spark makes a writer again for every batch of a query."""
    log.warning(message)


# --- what all sinks share ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkWrite(Generic[SinkT]):
    """How to write. `job` and `epoch` name a batch write that is repeated until it succeeds, or are None."""

    sink: SinkT
    job: str | None = None
    epoch: int | None = None


def _job(option: Option, value: str) -> str:
    job = check_job(text(option, value))
    if is_one_off(job):
        raise option.refuse(job, "of another form than the names of writes that are never repeated")
    return job


def _epoch(option: Option, value: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", digits := text(option, value)):
        raise option.refuse(digits, "a whole number from 0")
    return int(digits)


REPEATED_WRITE: tuple[Option, ...] = (
    Option("txnAppId", _job, "name of a batch write that is repeated until it succeeds, as in foreachBatch; needs txnVersion"),
    Option(
        "txnVersion", _epoch, "its number, such as the batch id in foreachBatch: a number that was written is not written again"
    ),
)

CHANGE_TYPE = Option(
    "changeTypeColumn",
    text,
    "a column, which is not written, that says what becomes of the row: `c`, `r`, `u`, `d` as in Debezium, `+I`, `-U`, "
    "`+U`, `-D` as in Flink, `insert`, `update_postimage`, `delete` as in Delta, or a boolean, true for a delete; "
    "needs upsertKeys",
)


def sink_write(sink: SinkT, given: Mapping[str, Any]) -> SinkWrite[SinkT]:
    """The sink, and what `REPEATED_WRITE` reports about the write. Raises UsageError naming the option that is missing."""
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise UsageError("options 'txnAppId' and 'txnVersion' go together")
    return SinkWrite(sink, given.get("txnAppId"), given.get("txnVersion"))
