"""Writes the parts of the reference that are made from code: tables of options and metrics, and the command line.

    python -m docs.tools.generate

What is generated is between `<!-- generated: NAME -->` and `<!-- end -->`. `tests/docs/test_generated.py` fails when it is
not what the code says now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from headrace.cli import app
from headrace.connectors.kafka.client import properties
from headrace.runners.metrics import MetricScope, metrics_of
from headrace.spark import changes_read, files_read, files_write, kafka_options, sql_write, table_write
from headrace.spark.options import OptionTable

DOCS = Path(__file__).parents[1]
PAGES = tuple(DOCS / "reference" / f"{name}.md" for name in ("options", "client-properties", "cli", "metrics"))
MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def options_of(options: OptionTable) -> str:
    """The options of a connector in one direction."""
    return table(("option", "meaning"), [(f"`{option.name}`", option.meaning) for option in options])


def client_properties() -> str:
    """Properties that take effect, with the defaults of ClientConfig."""
    defaults = {item.name: item.default for item in fields(properties.ClientConfig)}
    rows = [(f"`{name}`", _default(defaults[field])) for name, (field, _) in properties._CLIENT.items()]
    rows += [(f"`{name}`", "-") for name in properties._LEVEL_NAMES]
    return table(("property", "default"), rows)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, int | str) else "-"


def tls_properties() -> str:
    """Names only: what they mean is Kafka's."""
    return ", ".join(f"`{name}`" for name in [*properties._SECURITY, *properties.TLS_PROPERTIES])


def fixed_properties() -> str:
    """Properties that may have some values only."""
    rows = [(f"`{name}`", ", ".join(f"`{v}`" for v in sorted(only)), why) for name, (only, why) in properties._ONLY.items()]
    return table(("property", "accepted", "because"), rows)


def refused_properties() -> str:
    """Properties that are an error."""
    return table(("property", "because"), [(f"`{name}`", reason) for name, reason in properties._REFUSED.items()])


def harmless_properties() -> str:
    """Properties without effect."""
    rows = [(", ".join(f"`{name}`" for name in names.split()), why) for why, names in properties._HARMLESS_NAMES.items()]
    return table(("properties", "because"), rows)


def metrics(scopes: Iterable[MetricScope]) -> str:
    """The metrics of some scopes, by the names that Prometheus has for them."""
    rows = []
    for spec in metrics_of(*scopes):
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        rows.append((f"`{spec.series}`", spec.type.value, spec.unit or "-", spec.scope.title, labels or "-", spec.help))
    return table(("metric", "type", "unit", "of each", "labels", "meaning"), rows)


def command_line() -> str:
    """As Typer documents it, without the lists of commands, whose texts it isolates; usage lines are not commands to run."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="headrace"), name="headrace")
    text = text.replace("```console\n$ ", '<!--- skip: next "the synopsis of a command" -->\n```text\n')
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+", "", text)
    return text.removeprefix("# `headrace`\n").strip()


GENERATED: Mapping[str, Callable[[], str]] = {
    "kafka-read": lambda: options_of(kafka_options.SOURCE_OPTIONS),
    "kafka-write": lambda: options_of(kafka_options.SINK_OPTIONS),
    "sql-write": lambda: options_of(sql_write.OPTIONS),
    "files-read": lambda: options_of(files_read.OPTIONS),
    "changes-read": lambda: options_of(changes_read.OPTIONS),
    "files-write": lambda: options_of(files_write.OPTIONS),
    "delta-write": lambda: options_of(table_write.DELTA_OPTIONS),
    "iceberg-write": lambda: options_of(table_write.ICEBERG_OPTIONS),
    "client-properties": client_properties,
    "tls-properties": tls_properties,
    "fixed-properties": fixed_properties,
    "refused-properties": refused_properties,
    "harmless-properties": harmless_properties,
    "command-line": command_line,
    "spark-metrics": lambda: metrics(scope for scope in MetricScope if scope is not MetricScope.RUN),
    "run-metrics": lambda: metrics([MetricScope.RUN]),
}


def renewed(text: str) -> str:
    """The text of a page with all that is generated recreated. Raises KeyError for a name that is not known."""
    return MARKED.sub(lambda match: f"{match[1]}\n{GENERATED[match[2]]()}\n\n{match[3]}", text)


def main() -> None:
    """Renew all pages."""
    for page in PAGES:
        page.write_text(renewed(page.read_text()))


if __name__ == "__main__":
    main()
