"""Bearer tokens for SASL OAUTHBEARER (KIP-255): from an OAuth 2 token endpoint (KIP-768), or signed for AWS's IAM (MSK).

A provider is a value that travels: hashable, picklable, no secret in its repr. Tokens are kept in the process for
four fifths of their life, so that connections share them.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import ModuleType

from headrace.enumerator.errors import AuthenticationError, RetriableError, UsageError

__all__ = ["ClientCredentials", "MskTokens"]

_TIMEOUT_S = 10.0
_LONGEST_ANSWER = 1 << 20
_DEFAULT_LIFE_S = 60.0  # where an endpoint does not tell (RFC 6749 has it optional)
_USED_FOR = 0.8
_REFUSED = frozenset({400, 401, 403})


class _Kept:
    """Tokens by who asks, until they are to be renewed. Thread-safe; one token is asked for at a time."""

    def __init__(self) -> None:
        self.start_afresh()

    def start_afresh(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._tokens: dict[Hashable, tuple[str, float]] = {}

    def get(self, provider: Hashable, ask: Callable[[], tuple[str, float]]) -> str:
        """The token, asked for where there is none or it is too old. `ask` gives the token and its life in seconds."""
        with self._lock:
            token, until = self._tokens.get(provider, ("", 0.0))
            if time.monotonic() >= until:
                began = time.monotonic()
                token, life_s = ask()
                self._tokens[provider] = (token, began + life_s * _USED_FOR)
            return token


_kept = _Kept()
os.register_at_fork(after_in_child=_kept.start_afresh)


def _is_web_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an IPv6 address, a port that is none
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCredentials:
    """Tokens of an OAuth 2 token endpoint, by the grant "client credentials" (RFC 6749, 4.4; KIP-768).

    `url`: http or https, whose certificate must be trusted by the system. `sends_encoded`: id and secret are URL-encoded before
    they become the Authorization header, as RFC 6749 has it and Java does with `sasl.oauthbearer.header.urlencode`.
    `sasl_extensions`: (name, value) pairs that brokers get with the token (KIP-342). Raises UsageError for what cannot be.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    sasl_extensions: tuple[tuple[str, str], ...] = ()
    sends_encoded: bool = False

    def __post_init__(self) -> None:
        """Refuse addresses of other kinds, such as files, and empty names."""
        if not _is_web_address(self.url):
            raise UsageError(f"sasl.oauthbearer.token.endpoint.url must be like https://host/path, not {self.url!r}")
        if not self.client_id or not self.client_secret:
            raise UsageError(
                "the token endpoint needs a client id and a client secret: clientId and clientSecret in sasl.jaas.config, or "
                "the properties sasl.oauthbearer.client.credentials.client.id and .client.secret"
            )

    def token(self) -> str:
        """A token that is valid for some time yet. Raises AuthenticationError, or RetriableError."""
        return _kept.get(self, self._ask)

    def extensions(self) -> dict[str, str]:
        """What brokers get beside the token."""
        return dict(self.sasl_extensions)

    def _ask(self) -> tuple[str, float]:
        where = f"the token endpoint {self.url}"
        try:
            with _opener.open(self._request(), timeout=_TIMEOUT_S) as response:
                answer = response.read(_LONGEST_ANSWER)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(where, self.client_id, error) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise RetriableError(f"{where} cannot be reached: {reason}") from error
        return _parsed(where, answer)

    def _request(self) -> urllib.request.Request:
        names = (self.client_id, self.client_secret)
        user, password = map(urllib.parse.quote_plus, names) if self.sends_encoded else names
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        headers = {
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        return urllib.request.Request(self.url, urllib.parse.urlencode(form).encode(), headers)  # noqa: S310 - see __post_init__


class _NowhereElse(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the secret is for the address that was given."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_NowhereElse)


def _refusal(where: str, client_id: str, error: urllib.error.HTTPError) -> Exception:
    try:
        said = json.loads(error.read(_LONGEST_ANSWER))
        reason = " ".join(str(said[name]) for name in ("error", "error_description") if name in said)
    except (ValueError, TypeError, OSError):
        reason = ""
    story = f"{where} answered {error.code} {error.reason}" + (f": {reason[:300]}" if reason else "")
    if error.code in _REFUSED:
        return AuthenticationError(f"{story}; it refused the client id {client_id!r} or its secret")
    if error.code < 400:
        return AuthenticationError(f"{story}: it sends elsewhere, which is not followed; give the address that answers")
    return RetriableError(story)


def _parsed(where: str, answer: bytes) -> tuple[str, float]:
    try:
        found = json.loads(answer)
        token, life_s = found["access_token"], float(found.get("expires_in") or _DEFAULT_LIFE_S)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise AuthenticationError(f"{where} answered without an access_token") from None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        raise AuthenticationError(f"{where} answered with an access_token that is none")
    return token, life_s


@dataclass(frozen=True, kw_only=True, slots=True)
class MskTokens:
    """Tokens for Amazon MSK's IAM listeners, signed with AWS credentials by the package aws-msk-iam-sasl-signer-python.

    Credentials come from a named `profile`, from a role that is assumed (`role_arn`, `session_name`), or from AWS's default
    chain. `region` None: AWS_REGION, or what AWS's configuration says. The extra `headrace[msk]` brings the package.
    """

    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    session_name: str = "headrace"

    def __post_init__(self) -> None:
        """Refuse two identities."""
        if self.profile and self.role_arn:
            raise UsageError("give awsProfileName or awsRoleArn in sasl.jaas.config, not both")

    def token(self) -> str:
        """A signed token. Raises UsageError without the package or a region, AuthenticationError without credentials."""
        return _kept.get(self, self._ask)

    def _ask(self) -> tuple[str, float]:
        try:
            import botocore.exceptions
            import botocore.session
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer  # noqa: N813 - a module
        except ImportError:
            raise UsageError(
                "to log in to Amazon MSK by IAM the package aws-msk-iam-sasl-signer-python is needed: pip install headrace[msk]"
            ) from None
        region = self.region or os.environ.get("AWS_REGION") or botocore.session.Session().get_config_variable("region")
        if not region:
            raise UsageError("the region of the MSK cluster is not known: set AWS_REGION")
        try:
            token, expires_ms = self._sign(signer, region)
        except (botocore.exceptions.EndpointConnectionError, botocore.exceptions.HTTPClientError) as error:
            raise RetriableError(f"AWS cannot be reached for a token: {error}") from error
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, ValueError, AttributeError) as error:
            raise AuthenticationError(f"no AWS credentials to sign a token for MSK with: {error}") from error
        return token, expires_ms / 1000 - time.time()

    def _sign(self, signer: ModuleType, region: str) -> tuple[str, int]:
        signed: tuple[str, int]
        if self.role_arn:
            signed = signer.generate_auth_token_from_role_arn(region, self.role_arn, self.session_name)
        elif self.profile:
            signed = signer.generate_auth_token_from_profile(region, self.profile)
        else:
            signed = signer.generate_auth_token(region)
        return signed
