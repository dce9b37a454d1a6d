"""What a fuzz target is, and the corpus that is kept of each in the repository."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

TARGETS = ("decoder", "fetch_protocol", "checkpoint", "beam_state", "offsets_json", "handles", "lists", "jaas", "urls")
"""The modules of `tests.fuzz.targets`; each has a `TARGET`."""

CORPUS = Path(__file__).parent / "corpus"
GOLDEN = Path(__file__).parents[1] / "unit" / "golden"


class Finding(Exception):  # noqa: N818 - it is one, and no error of the fuzzer
    """What a reader of others' bytes may not do."""


@dataclass(frozen=True)
class Target:
    """Something that reads bytes of others.

    `read` takes any bytes but none. Documented errors are its own business, and whatever it raises is a finding. `seeds`:
    valid inputs by name. `instrumented`: the modules whose branches lead the search. `words`: what is put into inputs.
    """

    name: str
    read: Callable[[bytes], None]
    seeds: Callable[[], Mapping[str, bytes]]
    instrumented: tuple[str, ...]
    words: tuple[bytes, ...] = field(default=())

    def check(self, data: bytes) -> None:
        if data:
            self.read(data)


def load(name: str) -> Target:
    target: Target = import_module(f"tests.fuzz.targets.{name}").TARGET
    return target


def read_corpus(name: str, folder: Path = CORPUS) -> list[bytes]:
    """The inputs that are kept: found by earlier runs, and those of findings. One file for each target, as Latin-1 in JSON."""
    file = folder / f"{name}.json"
    return [text.encode("latin-1") for text in json.loads(file.read_text())] if file.exists() else []


def write_corpus(name: str, inputs: list[bytes], folder: Path = CORPUS) -> None:
    """In order of size, each once."""
    texts = [data.decode("latin-1") for data in sorted(set(inputs), key=lambda data: (len(data), data))]
    (folder / f"{name}.json").write_text(json.dumps(texts, indent=0) + "\n")
