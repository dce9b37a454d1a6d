"""Runs the code blocks of a Markdown document in order, as its reader would, in one namespace and one folder.

- `python` is executed. A `text` block right after it is what it prints.
- `console`: lines after `$ ` are commands, the lines below a command are its output. `headrace broker` uses the broker of the
  tests; other `headrace` commands are run as they are. Every other command needs a reason why it is not run.
- `properties` are Kafka client properties that headrace accepts; `yaml` and `toml` are parsed.
- A block after `<!--- skip: next "reason" -->` is not run. A block in another language without a reason is an error.

`127.0.0.1:9092` represents the broker of the tests, `https://registry:8081` for a schema registry. In expected output `...`
represents anything, and blanks are equal to tabs.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import SkipTest

import yaml
from sybil import Document, Example, Region, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.abstract.lexers import LexerCollection
from sybil.parsers.markdown import SkipParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, FencedCodeBlockLexer

from headrace.cli.options import parse_properties
from headrace.connectors.kafka.client.properties import ClientConfig
from tests.helpers.python_path import python_path

ADDRESS = "127.0.0.1:9092"
REGISTRY = "https://registry:8081"
MAIN = "from headrace.cli import main; main()"
TIMEOUT_S = 60.0
SERVERS = ("broker",)
"""Commands that run until they are interrupted: their first line of output is what the page shows."""


class BlockError(AssertionError):
    """A block that does not do what the page says, or that is neither run nor excused."""


@dataclass
class Page:
    """One document under test. `ran` and `skipped`: its blocks, by the line where they start; the latter with their reasons."""

    bootstrap: str
    folder: Path
    namespace: Mapping[str, Any] = field(default_factory=dict)
    registry: str = REGISTRY
    ran: list[int] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    """The Python blocks that were run, in order; hidden blocks see them as `blocks`."""
    printed: str | None = None

    def run(self, path: Path) -> None:
        """All blocks of a file. Raises BlockError naming file and line; whatever else a block raises says so in a note."""
        document = Sybil([SkipParser(), self._regions]).parse(path)
        document.namespace.update(self.namespace, blocks=self.sources)
        for example in document:
            if isinstance(example.parsed, tuple) and not example.parsed[1]:
                raise BlockError(f"{path}:{example.line}: a block is skipped without a reason")
            try:
                example.evaluate()
            except SkipTest as reason:
                self.skipped[example.line] = str(reason)
                self.printed = None
            except Exception as error:
                error.add_note(f"in the block at {path}:{example.line}")
                raise

    def _regions(self, document: Document) -> list[Region]:
        named = {"arguments": "language", "source": "source"}
        hidden = DirectiveInHTMLCommentLexer("invisible-code-block", "python", mapping=named)
        lexers = LexerCollection([FencedCodeBlockLexer(r"[^\n]*"), hidden])
        return [Region(block.start, block.end, block, self._evaluate) for block in lexers(document)]

    def _evaluate(self, example: Example) -> None:
        language, source = example.parsed.lexemes["language"].strip(), example.parsed.lexemes["source"]
        kinds: dict[str, Callable[[Example, Any], None]] = {
            "python": self._python, "text": self._text, "console": self._console,
            "properties": lambda _, text: self._properties(text), "yaml": lambda _, text: yaml.safe_load(text),
            "toml": lambda _, text: tomllib.loads(text),
        }  # fmt: skip
        if language not in kinds:
            block = f"a block in {language or 'no language'!r}"
            raise BlockError(f'{block} is not run: give a reason, <!--- skip: next "reason" -->')
        kinds[language](example, source)
        self.ran.append(example.line)

    def _python(self, example: Example, source: Any) -> None:
        here = source.replace(ADDRESS, self.bootstrap).replace(REGISTRY, self.registry)
        text = type(source)(here, source.offset, source.line_offset)
        example.parsed = text
        out = io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out):
            PythonEvaluator()(example)
        self.printed = out.getvalue()
        self.sources.append(str(text))

    def _text(self, _example: Example, expected: str) -> None:
        if self.printed is None:
            raise BlockError('a block of text that follows no block of Python: give a reason, <!--- skip: next "reason" -->')
        self._compare(expected, self.printed)

    def _properties(self, text: str) -> None:
        ClientConfig.from_properties({"bootstrap.servers": ADDRESS, **parse_properties(text)})

    def _console(self, _example: Example, source: str) -> None:
        self.printed = None
        commands = [part.partition("\n") for part in re.split(r"^\$ ", source, flags=re.MULTILINE) if part]
        if not source.startswith("$ "):
            raise BlockError("a console block starts with a command, after `$ `")
        for command, _, expected in commands:
            output = self._command(shlex.split(command.replace(ADDRESS, self.bootstrap), comments=True))
            if expected.strip():
                self._compare(expected, output)

    def _command(self, words: list[str]) -> str:
        if words[:1] == ["mkdir"]:
            (self.folder / words[-1]).mkdir(parents=True, exist_ok=True)
            return ""
        if words[:1] != ["headrace"]:
            raise BlockError(f'the command {words} is not run: give a reason, <!--- skip: next "reason" -->')
        environment = {**os.environ, "PYTHONPATH": python_path()}
        if words[1] in SERVERS:
            return self._first_line(words[1:], environment)
        return subprocess.run(
            [sys.executable, "-c", MAIN, *words[1:]], cwd=self.folder, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
        ).stdout  # fmt: skip

    def _first_line(self, words: list[str], environment: Mapping[str, str]) -> str:
        """The server's, which is then interrupted; on the broker of the tests, so without its own port."""
        if "--port" in words:
            at = words.index("--port")
            words = [*words[:at], *words[at + 2 :]]
        command, environment = [sys.executable, "-c", MAIN, *words], {**environment, "HEADRACE_BOOTSTRAP": self.bootstrap}
        with subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            line = server.stdout.readline()
            server.terminate()
        if not line:
            raise BlockError(f"headrace {words} printed nothing")
        return line

    def _compare(self, expected: str, found: str) -> None:
        plain = found.replace(self.bootstrap, ADDRESS)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if not doctest.OutputChecker().check_output(expected.strip() + "\n", plain.strip() + "\n", flags):
            raise BlockError(f"the page shows\n{expected}\nand this was printed:\n{plain}")
