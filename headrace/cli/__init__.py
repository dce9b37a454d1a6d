"""The command line, `headrace`. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import typer

from headrace.cli.accept_loss import accept_loss, forget
from headrace.cli.checkpoints import checkpoint_app
from headrace.cli.dead_letters import dead_letters_app
from headrace.cli.dump import dump_command
from headrace.cli.lag import lag_command
from headrace.cli.postgresql import postgresql_app
from headrace.cli.run import rescale_command, run_command, savepoint_command, top_command
from headrace.cli.servers import beam_command, broker_command
from headrace.cli.supervise import supervise_command
from headrace.cli.tables import tables_app
from headrace.cli.transactions import transactions_app
from headrace.cli.verify import verify_command
from headrace.cli.warm_up import warm_up_command

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command(name="broker")(broker_command)
app.command(name="run")(run_command)
app.command(name="savepoint")(savepoint_command)
app.command(name="rescale")(rescale_command)
app.command(name="top")(top_command)
app.command(name="beam")(beam_command)
app.add_typer(checkpoint_app, name="checkpoint")
app.command(name="supervise")(supervise_command)
app.command(name="warm-up")(warm_up_command)
transactions_app.command(name="accept-loss")(accept_loss)
transactions_app.command(name="forget")(forget)
app.add_typer(transactions_app, name="transactions")
app.add_typer(tables_app, name="tables")
app.add_typer(postgresql_app, name="postgresql")
app.command(name="lag")(lag_command)
app.command(name="verify")(verify_command)
app.command(name="dump")(dump_command)
app.add_typer(dead_letters_app, name="dead-letters")


@app.callback()
def headrace() -> None:
    """Flink's source model for Spark, Beam and plain Python."""


def _open_standard_streams() -> None:
    """Those that the caller has closed (`2>&-`): the next file that is opened would be one of them, and be written to."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _is_utf8(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def main() -> None:
    """Run the command line; an error of headrace becomes one message and exit status 1, wrong use status 2.

    Names of files may be any bytes. Elsewhere an argument that is not text fails where it is encoded, in any command.
    """
    from headrace._extras import MissingExtraError
    from headrace.enumerator.errors import HeadraceError, UsageError

    _open_standard_streams()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":  # else PYTHONIOENCODING says it
        sys.stdout.reconfigure(errors="surrogateescape")  # a file's name is printed as it was given
    try:
        app()
    except UnicodeEncodeError as error:
        wrong = [argument for argument in sys.argv[1:] if not _is_utf8(argument)]
        if not wrong:
            raise
        print(f"headrace: an argument is not UTF-8: {wrong[0]!r} ({error.reason})", file=sys.stderr)  # noqa: T201 - as below
        sys.exit(2)
    except (HeadraceError, MissingExtraError) as error:
        print(f"headrace: {error}", file=sys.stderr)  # noqa: T201 - the command's output
        sys.exit(2 if isinstance(error, UsageError | MissingExtraError) else 1)
