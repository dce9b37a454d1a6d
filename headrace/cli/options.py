"""The options shared by every command that talks to Kafka, and the client made from them."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from headrace.connectors.security.java_properties import parse_properties
from headrace.enumerator.errors import UsageError

if TYPE_CHECKING:
    from headrace.connectors.kafka.client.cluster import KafkaCluster
    from headrace.connectors.kafka.client.properties import ClientConfig

BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP"
REGISTRY = "schema.registry."
FIRST_CONTACT_MS = 10_000  # a wrong address should be reported sooner than after the client's usual minute

Properties = Annotated[
    list[str] | None,
    typer.Option("--property", help="A Java client property (TLS, SASL, ...). May be repeated.", metavar="NAME=VALUE"),
]
PropertiesFile = Annotated[
    Path | None,
    typer.Option(
        "--properties-file", exists=True, dir_okay=False, help="A file of Java client properties; --property overrides it."
    ),
]
RegistryUrl = Annotated[
    str | None, typer.Option(help="Where it is; its properties are --property schema.registry.NAME=VALUE.", metavar="URL")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Prefix = Annotated[str, typer.Option(help="Prefix of the job's transactional ids (option transactionalIdPrefix).")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
CommitTopic = Annotated[str, typer.Option(help="Topic that stores the committables of each job (option commitTopic).")]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options that name a cluster. A parameter of a command: see `grouped`."""

    bootstrap: Annotated[
        str | None,
        typer.Option(help=f"host:port, several separated by commas. Default: ${BOOTSTRAP_VARIABLE}.", metavar="HOSTS"),
    ] = None
    properties: Properties = None
    properties_file: PropertiesFile = None

    def client_properties(self) -> dict[str, str]:
        return client_properties(self.bootstrap, self.properties, self.properties_file)

    def registry_properties(self) -> dict[str, str]:
        """The properties of a schema registry, by lower-case name without `schema.registry.`. Raises UsageError."""
        given = client_properties("unused", self.properties, self.properties_file)
        return {name.removeprefix(REGISTRY): value for name, value in given.items() if name.startswith(REGISTRY)}

    def connect(self) -> KafkaCluster:
        return connect(client_config(self.bootstrap, self.properties, self.properties_file))


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose keyword parameters that are dataclasses, such as `ClientOptions`, are options: one for each field."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    signature = inspect.signature(command)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        options = inspect.signature(group := groups[parameter.name]).parameters.values()
        of_group = get_type_hints(group, include_extras=True)
        parameters += [each.replace(kind=parameter.kind, annotation=of_group[each.name]) for each in options]

    @functools.wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401 - the options' types are the command's
        made = {name: group(**{each.name: given.pop(each.name) for each in fields(group)}) for name, group in groups.items()}
        command(**given, **made)

    called.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(called)["__signature__"] = signature.replace(parameters=parameters)
    del called.__wrapped__
    return called


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter is on the command line, and not its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def client_properties(
    bootstrap: str | None, pairs: Sequence[str] | None, file: Path | None, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """All properties, by lower-case name. `bootstrap` overrides the pairs, which override the file; the environment comes last.

    Raises UsageError. No message shows a value, as it may be a secret.
    """
    properties = given_properties(pairs, file)
    if bootstrap is not None:
        if not bootstrap.strip():  # of a variable that is not set: another cluster is not meant
            raise UsageError("--bootstrap is empty: name the cluster, or leave the option out")
        properties["bootstrap.servers"] = bootstrap
    elif environment.get(BOOTSTRAP_VARIABLE):
        properties.setdefault("bootstrap.servers", environment[BOOTSTRAP_VARIABLE])
    if not properties.get("bootstrap.servers"):
        raise UsageError(f"no cluster given: set --bootstrap, {BOOTSTRAP_VARIABLE} or the property bootstrap.servers")
    return properties


def given_properties(pairs: Sequence[str] | None, file: Path | None) -> dict[str, str]:
    """Those of `--property` and `--properties-file` alone, by lower-case name. Raises as `client_properties`."""
    of_file = {} if file is None else parse_properties(_read(file))
    given = (*of_file.items(), *named_values(pairs, "--property").items())
    return {name.lower(): value for name, value in given}


def named_values(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """The values of an option that is given as name=value. Raises UsageError, which shows none: it may be a secret."""
    properties = {}
    for number, pair in enumerate(pairs or (), 1):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} number {number} is not name=value (it is not shown, as it may be a secret)")
        properties[name.strip()] = value.strip()
    return properties


def client_config(bootstrap: str | None, pairs: Sequence[str] | None, file: Path | None) -> ClientConfig:
    """The client configuration from the three options. Raises UsageError."""
    from headrace.connectors.kafka.client.properties import ClientConfig

    given = client_properties(bootstrap, pairs, file)
    return ClientConfig.from_properties({name: value for name, value in given.items() if not name.startswith(REGISTRY)})


def connect(config: ClientConfig) -> KafkaCluster:
    """The process's cluster, once it answered. Raises DeadlineExceededError after 10 s, AuthenticationError, TlsError."""
    from headrace.connectors.kafka.client.cluster import KafkaCluster, shared_cluster

    hasty = replace(config, default_api_timeout_ms=min(config.default_api_timeout_ms or FIRST_CONTACT_MS, FIRST_CONTACT_MS))
    with KafkaCluster(hasty) as cluster:
        cluster.brokers()
    return shared_cluster(config)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the properties file {file} cannot be read: {type(error).__name__}") from None
