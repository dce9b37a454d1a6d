"""A client of Confluent's schema registry: its REST API, version 1.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html

What is under an id does not change; so answers by id are kept in the process, and are not asked for again. What is newest
in a subject is never kept. A registry that was set up again does have other schemas under its ids: when any answer shows that,
all that was kept of it is forgotten.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote
from uuid import UUID

import tenacity

from headrace.connectors.base.arguments import seconds, text, texts
from headrace.connectors.formats.registry.config import Access, RegistryConfig, registry_config
from headrace.connectors.formats.registry.schemas import (
    RegisteredSchema,
    SchemaId,
    SchemaReference,
    SchemaRule,
    SubjectStrategy,
    UnknownSchemaError,
    context_of,
    subject_name,
)
from headrace.connectors.security.renewal import kept
from headrace.enumerator.errors import (
    AuthenticationError,
    CorruptDataError,
    DeadlineExceededError,
    PeerError,
    RetriableError,
    UsageError,
    is_retriable,
)

if TYPE_CHECKING:
    import ssl

    import urllib3

log = logging.getLogger(__name__)

DEADLINE_S = 30.0
"""How long one look-up may take, in seconds, with all its tries."""

_MOST_REFERENCES = 1000
_LONGEST_ANSWER = 64 << 20
_CHUNK = 64 << 10
_ONE_TRY_S = 10.0
_UNKNOWN_KEPT_S = 1.5
_MOST_UNKNOWN = 10_000
_PAUSES_S = (0.2, 0.4, 0.8, 1.6)
"""Before an id that is new here is believed to be unknown, it is asked for again after each of these: a registry's follower may
lag behind the leader, where the writer has registered it."""

_FORGOTTEN_S = 60.0
"""After so long without a question, an unknown id is as new."""

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_MEDIA = "application/vnd.schemaregistry.v1+json"
_GUIDS = "/schemas/guids/"
_BOTH_WAYS = {"WRITEREAD": ("WRITE", "READ"), "UPDOWN": ("UPGRADE", "DOWNGRADE")}
_Key: TypeAlias = tuple[str, SchemaId]
"""A schema's context and its id there. A schema's own id is the same in all."""


class _Known:
    """What one process has learnt of one registry."""

    def __init__(self) -> None:
        self.schemas: dict[_Key, RegisteredSchema] = {}
        self.unknown: dict[_Key, float] = {}
        """When it was last said that there is none."""
        self.pool: tuple[ssl.SSLContext | None, urllib3.PoolManager] | None = None
        """Connections, and what they speak TLS with."""

    def keep(self, schema: RegisteredSchema) -> None:
        """Take a fresh answer for what is true. One that contradicts what is kept shows that nothing kept is."""
        key = _key(schema.id, schema.subject)
        kept = self.schemas.get(key)
        if kept is not None and kept.fingerprint != schema.fingerprint:
            self.schemas.clear()
            self.unknown.clear()
        self.schemas[key] = schema
        self.unknown.pop(key, None)

    def keep_unknown(self, key: _Key) -> None:
        """That the registry has said so, now."""
        if len(self.unknown) >= _MOST_UNKNOWN:
            self.unknown.clear()
        self.unknown[key] = time.monotonic()

    def unknown_since(self, key: _Key, wait_s: float) -> bool:
        """Whether the registry has said within this many seconds that there is none."""
        said = self.unknown.get(key)
        return said is not None and time.monotonic() - said < wait_s


_known: dict[RegistryConfig, _Known] = {}


def _start_afresh() -> None:
    """In a forked child: connections are not shared, and what is known stays known."""
    for each in _known.values():
        each.pool = None


os.register_at_fork(after_in_child=_start_afresh)


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry: `url` is one or more with commas between them, each asked where the previous one fails.

    `properties`: authentication and TLS under the names that Confluent's clients have (`basic.auth.user.info`,
    `bearer.auth.token`, `ssl.ca.location`, ...), with or without `schema.registry.` before them. A look-up that does not
    succeed within `deadline_s` seconds raises DeadlineExceededError. A value that can be pickled; any thread may use it.

    Raises UsageError for what cannot be honoured, and where urllib3 is not installed (the extra `registry`). Does no I/O
    when made.

    `key.subject.name.strategy` and `value.subject.name.strategy` say by which of Confluent's strategies `subject` names one:
    TopicNameStrategy (the default), RecordNameStrategy or TopicRecordNameStrategy.
    """

    url: str = field(repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        text("url", self.url)
        texts("properties", self.properties)
        seconds("deadline_s", self.deadline_s)
        _ = self.config
        _urllib3()

    @cached_property
    def config(self) -> RegistryConfig:
        """What url and properties say. In the process, what is known of a registry goes by it."""
        return registry_config(self.url, self.properties)

    def __repr__(self) -> str:
        """Without credentials."""
        return f"SchemaRegistry({', '.join(self.config.urls)})"

    def subject(self, topic: str | None, *, field: Literal["key", "value"] = "value", record: str | None = None) -> str:
        """The subject for the `field` of a topic's records, as the strategy of keys or of values names it.

        `record`: as `subject_name` has it. Raises UsageError where the strategy needs what is None.
        """
        strategy = dict(self.config.strategies).get(field, SubjectStrategy.TOPIC_NAME)
        return subject_name(strategy, topic, field=field, record=record)

    # --- look-ups

    def by_id(self, schema_id: SchemaId, subject: str | None = None) -> RegisteredSchema:
        """The schema of a record that names it so, as `by_ids`. Raises UnknownSchemaError, too."""
        found = self.by_ids([schema_id], subject)
        if schema_id not in found:
            raise UnknownSchemaError(f"{self.config.shown} has no schema {schema_id}")
        return found[schema_id]

    def by_ids(self, schema_ids: Collection[SchemaId], subject: str | None = None) -> dict[SchemaId, RegisteredSchema]:
        """Those of these schemas that there are. They are kept.

        `subject`: that of the records. Where it is in a context (`:.plant:readings-value`), so are the ids; the default is the
        default context.

        An id that is new here, and unknown, is asked for again for 3 s, all such ids together; then it is believed, for 1.5 s
        without a question. Raises AuthenticationError; DeadlineExceededError where the registry does not answer; PeerError.
        """
        known = self._known
        keys = {each: _key(each, subject) for each in schema_ids}
        found = {each: known.schemas[key] for each, key in keys.items() if key in known.schemas}
        due = [each for each in keys if each not in found and not known.unknown_since(keys[each], _UNKNOWN_KEPT_S)]
        new = [each for each in due if not known.unknown_since(keys[each], _FORGOTTEN_S)]
        found |= self._fetched(due, subject)
        for pause in _PAUSES_S:
            missing = [each for each in new if each not in found]
            if not missing:
                break
            time.sleep(pause)
            found |= self._fetched(missing, subject)
        return found

    def fetch(self, schema_id: SchemaId, subject: str | None = None) -> RegisteredSchema:
        """The schema of this id as the registry has it now, whatever is kept. Raises as `by_id`, at once."""
        path = f"{_GUIDS}{schema_id}" if isinstance(schema_id, UUID) else f"/schemas/ids/{schema_id}"
        if subject is not None and _key(schema_id, subject)[0]:
            path += f"?subject={_quoted(subject)}"
        found = self._schema(schema_id, self._get(path, f"schema {schema_id}"), subject)
        self._known.keep(found)
        return found

    def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """A version of a subject, or the newest now (None). Raises as `by_id`."""
        found = self._of_subject(self._version(subject, version), subject)
        self._known.keep(found)
        return found

    def versions(self, subject: str, newest: int) -> list[RegisteredSchema]:
        """The newest this many versions of a subject, oldest first. Raises as `by_id`."""
        path = f"/subjects/{_quoted(subject)}/versions"
        numbers = self._get(path, f"subject '{subject}'")
        if not isinstance(numbers, list) or not all(isinstance(each, int) for each in numbers):
            raise self._strange(path)
        return [self.version(subject, number) for number in sorted(numbers)[-newest:]]

    def lookup(self, subject: str, schema: RegisteredSchema) -> RegisteredSchema:
        """The same schema as it is registered under the subject, with its id and its rules there. Raises as `by_id`."""
        path = f"/subjects/{_quoted(subject)}"
        answer = self._call("POST", path, f"this schema in subject '{subject}'", _body(schema))
        return self._as_registered(schema, subject, answer, path)

    def compose(
        self, kind: str, text: str, references: Sequence[SchemaReference] = (), *, subject: str | None = None
    ) -> RegisteredSchema:
        """A schema of one's own, to be registered or looked up. The texts of those that it refers to are looked up now.

        `kind`: AVRO, JSON or PROTOBUF. Its id is 0 until it has one. `subject`: its own, if it is in a context, where its
        references then are, too. Raises as `by_id`.
        """
        named = [{"name": each.name, "subject": each.subject, "version": each.version} for each in references]
        return self._schema(0, {"schema": text, "schemaType": kind, "references": named}, subject)

    def register(self, subject: str, schema: RegisteredSchema) -> RegisteredSchema:
        """Register a schema under the subject; one that is registered already keeps its id.

        The schemas that it refers to have to be registered before: `RegisteredSchema.uses`.

        Raises PeerError where the registry finds it incompatible with the previous ones, and as `by_id`.
        """
        path = f"/subjects/{_quoted(subject)}/versions"
        answer = self._call("POST", path, f"subject '{subject}'", _body(schema))
        return self._as_registered(schema, subject, answer, path)

    # --- answers

    def _fetched(self, schema_ids: Collection[SchemaId], subject: str | None) -> dict[SchemaId, RegisteredSchema]:
        found = {}
        for each in schema_ids:
            try:
                found[each] = self.fetch(each, subject)
            except UnknownSchemaError:
                self._known.keep_unknown(_key(each, subject))
        return found

    @property
    def _known(self) -> _Known:
        return _known.setdefault(self.config, _Known())

    def _version(self, subject: str, version: int | None) -> Mapping[str, Any]:
        number = "latest" if version is None else version
        path = f"/subjects/{_quoted(subject)}/versions/{number}"
        answer = self._get(path, f"version {number} of subject '{subject}'")
        if not isinstance(answer, dict):
            raise self._strange(path)
        return answer

    def _of_subject(self, answer: Mapping[str, Any], subject: str) -> RegisteredSchema:
        return self._schema(self._number(answer, "the subject"), answer, subject)

    def _as_registered(self, schema: RegisteredSchema, subject: str, answer: Any, path: str) -> RegisteredSchema:  # noqa: ANN401 - JSON
        """With its id, and its rules: a subject's next version has those of the previous, unless it has others."""
        number = self._number(answer, path)
        is_whole = "schema" in answer  # older registries answer with the id alone
        rules = self._rules(answer) if is_whole else self.fetch(number, subject).rules
        return replace(schema, id=number, subject=subject, rules=rules)

    def _schema(self, schema_id: SchemaId, answer: Any, subject: str | None) -> RegisteredSchema:  # noqa: ANN401 - JSON
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise self._strange(f"schema {schema_id}")
        texts: dict[str, str] = {}
        self._add_references(answer, texts, (), context_of(subject))
        return RegisteredSchema(
            schema_id,
            str(answer.get("schemaType") or "AVRO"),
            answer["schema"],
            tuple(texts.items()),
            tuple(self._uses(answer)),
            subject,
            self._rules(answer),
        )

    def _add_references(self, answer: Mapping[str, Any], texts: dict[str, str], within: tuple[str, ...], context: str) -> None:
        """The texts that a schema refers to, deepest first. A subject without a context is in that of what refers to it."""
        for reference in self._uses(answer):
            name = reference.name
            if name in within or len(texts) >= _MOST_REFERENCES:
                raise CorruptDataError(f"{self.config.shown}: the references of a schema run in a circle at '{name}'")
            if name in texts:  # reached on another way
                continue
            subject = reference.subject if context_of(reference.subject) else context + reference.subject
            inner = self._version(subject, reference.version)
            self._add_references(inner, texts, (*within, name), context_of(subject))
            texts[name] = str(inner.get("schema"))

    def _rules(self, answer: Mapping[str, Any]) -> tuple[SchemaRule, ...]:
        """Those of a schema that are not disabled, and whose failure is an error."""
        given = answer.get("ruleSet") or {}
        try:
            if (given.get("enableAt") or "ALL") not in ("ALL", "CLIENT"):
                return ()
            phases = ("domainRules", "encodingRules", "migrationRules")
            rules = [_rule(each, phase) for phase in phases for each in given.get(phase) or () if not each.get("disabled")]
        except (AttributeError, TypeError) as error:
            raise self._strange("the rules of a schema") from error
        return tuple(each for each in rules if each.modes)

    def _uses(self, answer: Mapping[str, Any]) -> list[SchemaReference]:
        try:
            return [
                SchemaReference(str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in answer.get("references") or ()
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise self._strange("a reference") from error

    def _number(self, answer: Any, what: str) -> int:  # noqa: ANN401 - JSON
        number = answer.get("id") if isinstance(answer, dict) else None
        if type(number) is not int:
            raise self._strange(what)
        return number

    def _strange(self, what: str) -> CorruptDataError:
        return CorruptDataError(f"{self.config.shown} answered {what} with something else than its API says; is it one?")

    # --- requests

    def _get(self, path: str, what: str) -> Any:  # noqa: ANN401 - JSON
        return self._call("GET", path, what, None)

    def _call(self, method: str, path: str, what: str, body: bytes | None) -> Any:  # noqa: ANN401 - JSON
        """The answer's JSON, tried at every url until the deadline."""
        ends = time.monotonic() + self.deadline_s

        def give_up(state: tenacity.RetryCallState) -> Any:  # noqa: ANN401 - of tenacity
            assert state.outcome is not None
            error = state.outcome.exception()
            raise DeadlineExceededError(
                f"{self.config.shown} did not tell {what} within {self.deadline_s:g} s; the last error was: {error}"
            ) from error

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_retriable),
            stop=tenacity.stop_before_delay(self.deadline_s),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=2.0),
            retry_error_callback=give_up,
        )
        return tries(self._at_every_url, method, path, what, body, ends)

    def _at_every_url(self, method: str, path: str, what: str, body: bytes | None, ends: float) -> Any:  # noqa: ANN401 - JSON
        """The first answer. That there is none is known when all have said so: one may lag behind the others."""
        failure: Exception | None = None
        for url in self.config.urls:
            try:
                return self._ask(url, method, path, what, body, min(_ONE_TRY_S, max(0.05, ends - time.monotonic())))
            except UnknownSchemaError as error:
                failure = failure or error
            except RetriableError as error:
                failure = error
        assert failure is not None
        raise failure

    def _ask(self, url: str, method: str, path: str, what: str, body: bytes | None, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        urllib3 = _urllib3()
        access = self.config.access()
        headers = {"Accept": f"{_MEDIA}, application/json", **access.headers}
        token = access.token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = _MEDIA
        try:
            status, data = _exchange(self._pool(access), method, url + path, body, headers, timeout_s)
        except urllib3.exceptions.HTTPError as error:
            raise RetriableError(f"the schema registry {url} cannot be reached: {_brief(error)}") from None
        if status == 401 and token is not None:
            kept.refused(token)
        if status >= 300:
            raise _refusal(url, path, what, status, data)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise self._strange(what) from None

    def _pool(self, access: Access) -> urllib3.PoolManager:
        """The connections of this process, recreated where what TLS needs has changed."""
        kept = self._known.pool
        try:
            tls = self.config.tls(access) if any(url.startswith("https:") for url in self.config.urls) else None
        except UsageError as error:
            if kept is None:
                raise
            log.warning("%s; the previous connections are used", error)  # files that are being renewed
            return kept[1]
        if kept is None or kept[0] is not tls:
            made = _urllib3().PoolManager(ssl_context=tls) if tls is not None else _urllib3().PoolManager()
            self._known.pool = kept = tls, made
        return kept[1]


def _exchange(
    pool: urllib3.PoolManager, method: str, address: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> tuple[int, bytes]:
    """Status and body. urllib3's timeout is for each read, so an answer that trickles is held to it here."""
    ends, data = time.monotonic() + timeout_s, bytearray()
    response = pool.request(
        method, address, body=body, headers=headers, timeout=timeout_s, retries=False, redirect=False, preload_content=False
    )
    try:
        while part := response.read1(_CHUNK):
            data += part
            if len(data) > _LONGEST_ANSWER:
                raise CorruptDataError(f"{address} answered with more than {_LONGEST_ANSWER} bytes; is it a schema registry?")
            if time.monotonic() > ends:
                raise RetriableError(f"the schema registry did not end its answer within {timeout_s:.1f} s: {address}")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return response.status, bytes(data)


def _urllib3() -> Any:  # noqa: ANN401 - a module
    try:
        import urllib3
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; run: pip install 'headrace[registry]'") from error
    return urllib3


def _quoted(subject: str) -> str:
    return quote(subject, safe="")


def _key(schema_id: SchemaId, subject: str | None) -> _Key:
    return "" if isinstance(schema_id, UUID) else context_of(subject), schema_id


def _rule(rule: Mapping[str, Any], phase: str) -> SchemaRule:
    """One rule. Without a mode it is taken for one of all: what is not known is not taken for none."""
    mode = str(rule.get("mode") or ("UPDOWN" if phase == "migrationRules" else "WRITEREAD"))
    modes = _BOTH_WAYS.get(mode, (mode,))
    actions = str(rule.get("onFailure") or "ERROR").split(",")
    failing = [each for each, action in zip(modes, actions * len(modes), strict=False) if action.strip() != "NONE"]
    return SchemaRule(str(rule.get("name")), str(rule.get("type")), frozenset(failing))


def _brief(error: Exception) -> str:
    """Without the objects that urllib3 puts into its messages."""
    return str(getattr(error, "reason", None) or error)[:300]


def _body(schema: RegisteredSchema) -> bytes:
    if schema.references and not schema.uses:
        raise UsageError(
            "a schema with references can be registered or looked up only with the subjects and versions of these: make it by "
            "SchemaRegistry.compose"
        )
    kind = {} if schema.kind == "AVRO" else {"schemaType": schema.kind}
    uses = [{"name": each.name, "subject": each.subject, "version": each.version} for each in schema.uses]
    return json.dumps({"schema": schema.text, **kind, **({"references": uses} if uses else {})}).encode()


def _refusal(url: str, path: str, what: str, status: int, data: bytes) -> Exception:
    """An answer that is none.

    A registry that knows no GUIDs has no such path, and says so in JSON: then it has no schema of that name either.
    """
    try:
        said = json.loads(data)
        code, reason = int(said.get("error_code", 0)), str(said.get("message", ""))[:300]
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        code, reason = 0, ""
    story = f"the schema registry {url} answered {status} to a question for {what}" + (f": {reason}" if reason else "")
    if status in (401, 403):
        return AuthenticationError(f"{story}; it refused the user, the password or the token")
    if 300 <= status < 400:
        return PeerError(f"{story}: it sends elsewhere, which is not followed; give the url that answers")
    if status in _PASSING:
        return RetriableError(story)
    if status == 404 and (code in (40401, 40402, 40403) or (code == 404 and path.startswith(_GUIDS))):
        return UnknownSchemaError(story)
    return PeerError(story)
