"""One question to a token endpoint over HTTP, by urllib3: no redirection, no longer than it may take, no secret in an error."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from headrace.enumerator.errors import AuthenticationError, RetriableError, UsageError

_LONGEST_ANSWER = 1 << 20
_CHUNK = 1 << 16
_DEFAULT_LIFETIME_S = 60.0  # where an endpoint does not tell (RFC 6749 has it optional)
_REFUSED = frozenset({400, 401, 403})
_OBJECT = re.compile(r"<[^>]*>: |[A-Za-z]+\(host=[^)]*\): ")  # urllib3 puts its connections into its messages


@dataclass(frozen=True, kw_only=True, slots=True)
class Http:
    """How an endpoint is asked: `sasl.login.connect.timeout.ms` and `sasl.login.read.timeout.ms`, in seconds.

    `ca_file`: PEM certificates to trust in place of the system's.
    """

    connect_timeout_s: float = 10.0
    read_timeout_s: float = 10.0
    ca_file: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """`who`: what is said of the client where the endpoint refuses it."""

    url: str
    method: str
    headers: Mapping[str, str]
    body: bytes | None
    who: str


def is_web_address(url: str) -> bool:
    """Whether it is http or https, with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, a port that is none
        return False


def shown(url: str) -> str:
    """For messages: without a user, a query or a fragment, which may hold what is secret. Takes any text."""
    if is_web_address(url):
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    scheme, there, rest = url.rpartition("://")
    return scheme + there + re.split("[?#]", rest.rpartition("@")[2])[0]


def token_of(question: Question, http: Http) -> tuple[str, float]:
    """The `access_token` that the endpoint answers with, and its lifetime in seconds.

    Raises AuthenticationError where it refuses or answers with something else, RetriableError where it is away or busy, and
    UsageError where urllib3 is not installed (the extra `oauth`).
    """
    where = f"the token endpoint {shown(question.url)}"
    status, reason, answer = _exchange(question, http, where)
    if status >= 300:
        raise _refusal(where, question.who, f"{status} {reason}", status, answer)
    try:
        found = json.loads(answer)
        token, lifetime_s = found["access_token"], float(found.get("expires_in") or _DEFAULT_LIFETIME_S)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise AuthenticationError(f"{where} answered without an access_token") from None
    return checked(token, where), lifetime_s


def checked(token: object, where: str) -> str:
    """The token, if it can be one. Raises AuthenticationError."""
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        raise AuthenticationError(f"{where} answered with an access_token that is none: it must be one line of ASCII")
    return token


def _urllib3() -> Any:  # noqa: ANN401 - a module
    try:
        import urllib3
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed; run: pip install 'headrace[oauth]'") from error
    return urllib3


def _exchange(question: Question, http: Http, where: str) -> tuple[int, str, bytes]:
    urllib3 = _urllib3()
    if http.ca_file is not None and not Path(http.ca_file).is_file():
        raise UsageError(f"{where} is to be trusted by the certificates in {http.ca_file}, and there is no such file here")
    timeout = urllib3.Timeout(connect=http.connect_timeout_s, read=http.read_timeout_s)
    try:
        with urllib3.PoolManager(ca_certs=http.ca_file, timeout=timeout, retries=False) as pool:
            response = pool.request(
                question.method,
                question.url,
                body=question.body,
                headers=question.headers,
                redirect=False,
                preload_content=False,
            )
            return response.status, response.reason or "", _read(response, http, where)
    except urllib3.exceptions.HTTPError as error:
        brief = _OBJECT.sub("", str(getattr(error, "reason", None) or error))[:300]
        if "CERTIFICATE_VERIFY_FAILED" in brief:
            raise AuthenticationError(f"the certificate of {where} is not trusted: {brief}") from None
        raise RetriableError(f"{where} cannot be reached: {brief}") from None


def _read(response: Any, http: Http, where: str) -> bytes:  # noqa: ANN401 - urllib3's
    """urllib3's timeout is for each read, so an answer that trickles is held to it here."""
    ends, data = time.monotonic() + http.read_timeout_s, bytearray()
    while part := response.read1(_CHUNK):
        data += part
        if len(data) > _LONGEST_ANSWER:
            raise AuthenticationError(f"{where} answered with more than {_LONGEST_ANSWER} bytes; is it one?")
        if time.monotonic() > ends:
            raise RetriableError(f"{where} did not end its answer within {http.read_timeout_s:g} s")
    return bytes(data)


def _refusal(where: str, who: str, status_line: str, status: int, answer: bytes) -> Exception:
    try:
        said = json.loads(answer)
        reason = " ".join(str(said[name]) for name in ("error", "error_description") if name in said)
    except (ValueError, TypeError, RecursionError):
        reason = ""
    story = f"{where} answered {status_line}" + (f": {reason[:300]}" if reason else "")
    if status in _REFUSED:
        return AuthenticationError(f"{story}; it refused {who}")
    if status < 400:
        return AuthenticationError(f"{story}: it sends elsewhere, which is not followed; give the address that answers")
    return RetriableError(story)
