"""The options that every command has: whose properties win, Java's properties files, and that no secret is ever shown."""

from __future__ import annotations

import inspect
import sys
from io import BytesIO, TextIOWrapper

import pytest
from typer.testing import CliRunner

from headrace import cli
from headrace.cli.options import ClientOptions, client_config, client_properties, grouped, parse_properties
from headrace.cli.servers import named_topics
from headrace.enumerator.errors import UsageError

SECRET = "hunter2-hunter2"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line as installed: arguments to (exit status, stdout, stderr)."""

    def run_with(*arguments):
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run_with


def test_the_nearest_bootstrap_wins(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nclient.id = from file\n")
    environment = {"HEADRACE_BOOTSTRAP": "environment:1"}
    assert client_properties(None, None, None, environment)["bootstrap.servers"] == "environment:1"
    assert client_properties(None, None, file, environment)["bootstrap.servers"] == "file:1"
    assert client_properties(None, ["Bootstrap.Servers=pair:1"], file, environment)["bootstrap.servers"] == "pair:1"
    found = client_properties("option:1", ["bootstrap.servers=pair:1"], file, environment)
    assert (found["bootstrap.servers"], found["client.id"]) == ("option:1", "from file")


def test_without_a_bootstrap_there_is_no_guess():
    with pytest.raises(UsageError, match="--bootstrap"):
        client_properties(None, None, None, {})


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_bootstrap_is_not_taken_for_none(empty):
    """Regression: of a variable that was not set, the cluster of the environment was used."""
    with pytest.raises(UsageError, match="--bootstrap is empty"):
        client_properties(empty, ["bootstrap.servers=pair:1"], None, {"HEADRACE_BOOTSTRAP": "environment:1"})


def test_properties_make_the_configuration():
    config = client_config("host:1", ["security.protocol=SSL", "request.timeout.ms=7"], None)
    assert (config.bootstrap, config.security_protocol, config.request_timeout_ms) == ("host:1", "SSL", 7)


JAVA = r"""
# a comment = no property
! another
   plain=value
colon: value
blank value of several words
empty
spaced   =   value
key\=with\ blanks=tab\there
unicode=\u00e4
continued=one, \
          two, \
          three
backslash=C:\\temp\\
last=\x
"""


def test_a_file_is_read_as_java_reads_it():
    assert parse_properties(JAVA) == {
        "plain": "value",
        "colon": "value",
        "blank": "value of several words",
        "empty": "",
        "spaced": "value",
        "key=with blanks": "tab\there",
        "unicode": "ä",
        "continued": "one, two, three",
        "backslash": "C:\\temp\\",
        "last": "x",
    }
    assert parse_properties("a=1\r\nb=2\rc=3\\") == {"a": "1", "b": "2", "c": "3"}
    with pytest.raises(UsageError, match="escape"):
        parse_properties(r"a=\u12g4")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--property", SECRET],
        ["--property", f"sasl.jaas.config={SECRET}"],
        ["--property", "sasl.mechanism=PLAIN", "--property", f"sasl.jaas.config=Nonsense {SECRET};"],
        ["--property", f"ssl.keystore.key={SECRET}", "--property", "security.protocol=SSL"],
    ],
)
def test_a_mistake_does_not_show_the_secret(run, arguments):
    status, out, err = run("transactions", "list", "--bootstrap", "h:1", "--property", "security.protocol=SASL_SSL", *arguments)
    assert status == 2
    assert err.startswith("headrace: ")
    assert SECRET not in out + err


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--input", "a"],
        ["verify", "--input", "a", "--output", "b", "--identity", "colour"],
        ["verify", "--input", "a", "--output", "b", "--bootstrap", "h:1", "--origin-headers", "one,two"],
        ["verify", "--input", "a", "--output", "b", "--bootstrap", "h:1", "--by", "value", "--id-header", "id"],
        ["dead-letters", "replay", "t", "--bootstrap", "h:1", "--checkpoints", "s3://bucket/replay"],
        ["savepoint", "checkpoints", "s3://bucket/savepoints"],
        ["dump"],
        ["dump", "topic", "--from", "3", "--bootstrap", "h:1"],
        ["dump", "topic", "--limit", "0"],
        ["lag"],
        ["lag", "--group", "g", "--properties-file", "/there/is/none"],
        ["transactions", "abort", "--bootstrap", "h:1"],
        ["transactions", "abort", "id", "--job", "j", "--bootstrap", "h:1"],
        ["transactions", "commit", "--bootstrap", "h:1"],
        ["transactions", "commit", "--job", "j", "--all", "--bootstrap", "h:1"],
        ["transactions", "list", "--state", "Sleeping", "--bootstrap", "h:1"],
        ["transactions", "list", "--bootstrap", "no port"],
        ["transactions", "list", "--bootstrap", "h:1", "--property", "no.such.property=1"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_status_2(run, monkeypatch, arguments):
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    status, out, err = run(*arguments)
    assert status == 2
    assert err
    assert not out


def test_every_command_says_what_it_is_for():
    runner = CliRunner()
    for command in (
        ["lag"],
        ["verify"],
        ["dump"],
        *(["transactions", name] for name in ("list", "describe", "abort", "commit", "accept-loss", "forget")),
    ):
        result = runner.invoke(cli.app, [*command, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0
        assert "--bootstrap" in result.output
        assert "--property" in result.output


def test_topics_of_a_broker():
    assert named_topics(None) == {}
    assert named_topics(["orders", "clicks:4"]) == {"orders": 1, "clicks": 4}


def test_a_topic_that_is_given_twice_is_refused(run):
    """Which of the two numbers of partitions is meant, no one knows."""
    status, out, err = run("broker", "--topic", "orders:2", "--topic", "orders:3")
    assert (status, out) == (2, "")
    assert "topic 'orders' is given twice" in err


def test_a_topic_that_exists_is_named_and_no_more(run, fake_kafka, monkeypatch):
    fake_kafka.create_topic("orders")
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", fake_kafka.bootstrap)
    status, out, err = run("broker", "--topic", "orders")
    assert (status, out) == (2, "")
    there = f"there is one of this name at {fake_kafka.bootstrap}: delete it, or name another"
    assert err == f"headrace: creating topic orders: {there}\n"


@pytest.mark.parametrize(
    "text",
    ["", ":3", "orders:", "orders:0", "orders:-1", "orders:many", "orders:4:2", f"orders:{'9' * 5000}", "a b", "x" * 250],
)
def test_a_topic_that_cannot_be_created_is_refused_before_a_broker_starts(run, text):
    status, out, err = run("broker", "--topic", text)
    assert (status, out) == (2, "")
    assert "--topic" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("lag", "--group", "a\udcff"),
        ("transactions", "describe", "a\udcff"),
        ("dump", "in\udcff"),
        ("verify", "--output", "out", "--input", "in\udcff"),
    ],
)
def test_an_argument_that_is_not_text_is_one_message(run, fake_kafka, arguments):
    """Regression: it ended in a traceback of a UnicodeEncodeError, where it was encoded."""
    status, out, err = run(*arguments, "--bootstrap", fake_kafka.bootstrap)
    assert (status, out) == (2, "")
    assert err == f"headrace: an argument is not UTF-8: {arguments[-1]!r} (surrogates not allowed)\n"


def test_a_text_of_a_program_that_cannot_be_encoded_is_not_taken_for_an_argument(monkeypatch):
    monkeypatch.setattr(cli, "app", "\udcff".encode)
    monkeypatch.setattr(sys, "argv", ["headrace", "lag"])
    with pytest.raises(UnicodeEncodeError):
        cli.main()


@pytest.mark.parametrize(("errors", "kept"), [("replace", "replace"), ("strict", "surrogateescape")])
def test_the_error_handler_of_the_environment_is_kept(monkeypatch, errors, kept):
    """Regression: PYTHONIOENCODING=ascii:replace was overridden, and what ASCII does not have ended in a traceback."""
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), "ascii", errors))
    monkeypatch.setattr(cli, "app", lambda: None)
    cli.main()
    assert sys.stdout.errors == kept


def test_a_group_of_options_is_in_the_place_of_its_parameter():
    given = []

    @grouped
    def command(topic: str, *, client: ClientOptions, count: int = 3) -> None:
        given.append((topic, client, count))

    assert list(inspect.signature(command).parameters) == ["topic", "bootstrap", "properties", "properties_file", "count"]
    command(topic="t", bootstrap="b:1", properties=None, properties_file=None, count=4)
    assert given == [("t", ClientOptions("b:1"), 4)]


def test_a_setting_that_is_given_twice_is_refused(run, tmp_path):
    name = "execution.checkpointing.savepoint-dir"
    for given, said in (
        (["--savepoints", "a", "--config", f"{name}=b"], "--savepoints and --config say the same"),
        (["--config", f"{name}=a", "--config", f"{name}=b"], f"'{name}' is given twice"),
    ):
        status, _, err = run("run", "job.py:pipeline", "--checkpoints", str(tmp_path), *given)
        assert (status, said in " ".join(err.replace("│", "").split())) == (2, True)
