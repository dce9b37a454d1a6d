"""The command line, `headrace`. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from headrace.cli.dump import dump_command
from headrace.cli.lag import lag_command
from headrace.cli.transactions import transactions_app
from headrace.cli.verify import verify_command

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(transactions_app, name="transactions")
app.command(name="lag")(lag_command)
app.command(name="verify")(verify_command)
app.command(name="dump")(dump_command)

CHECK_SECONDS = 1.0  # how often a running cluster is looked at


@app.callback()
def headrace() -> None:
    """Flink's source model for Spark, Beam and plain Python."""


@app.command()
def broker(
    brokers: Annotated[int, typer.Option(min=1, help="How many; each is broker and controller in one.")] = 1,
    port: Annotated[int | None, typer.Option(help="Port of the first one, the next follow. Default: any free.")] = None,
    config: Annotated[list[str] | None, typer.Option(help="A broker setting, name=value. May be repeated.")] = None,
) -> None:
    """Run a throwaway Kafka cluster until Ctrl-C; prints its bootstrap address on a line of its own.

    The cluster and its data are gone afterwards. HEADRACE_BOOTSTRAP, when set, is used instead of starting one.
    """
    from headrace.connectors.kafka.broker import start_broker

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with start_broker(brokers, config=_settings(config or []), port=port) as cluster:
            print(cluster.bootstrap, flush=True)  # noqa: T201 - the command's output
            while all(cluster.is_running(node) for node in cluster.nodes):
                threading.Event().wait(CHECK_SECONDS)
            ended = [node for node in cluster.nodes if not cluster.is_running(node)]
            sys.exit(f"brokers {ended} ended by themselves. The end of the log:\n{cluster.log_tail(ended[0])}")
    except KeyboardInterrupt:
        return


def _settings(pairs: list[str]) -> dict[str, str]:
    malformed = [pair for pair in pairs if "=" not in pair]
    if malformed:
        raise typer.BadParameter(f"{malformed[0]!r} is not name=value", param_hint="--config")
    return dict(pair.split("=", 1) for pair in pairs)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; an error of headrace becomes one message and exit status 1, wrong use status 2."""
    from headrace.enumerator.errors import HeadraceError, UsageError

    try:
        app()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)  # noqa: T201 - the command's output
        sys.exit(2 if isinstance(error, UsageError) else 1)
