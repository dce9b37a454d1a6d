"""Bearer tokens for SASL OAUTHBEARER (KIP-255): from an OAuth 2 token endpoint (KIP-768), a file, a cloud's metadata service,
or signed for AWS's IAM (MSK).

A provider is a value that travels: hashable, picklable, no secret in its repr. Tokens are kept in the process (`renewal.py`),
so that connections share them.
"""

from __future__ import annotations

import base64
import os
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from headrace.connectors.security.endpoint import Http, Question, checked, is_web_address, shown, token_of
from headrace.connectors.security.renewal import Renewal, kept
from headrace.enumerator.errors import AuthenticationError, RetriableError, UsageError

AZURE_IMDS = "http://169.254.169.254/metadata/identity/oauth2/token"
"""Where a virtual machine of Azure asks for tokens of its managed identity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCredentials:
    """Tokens of an OAuth 2 token endpoint, by the grant "client credentials" (RFC 6749, 4.4; KIP-768).

    `url`: http or https. `sends_encoded`: id and secret are URL-encoded before they become the Authorization header, as RFC
    6749 has it and Java does with `sasl.oauthbearer.header.urlencode`. `sasl_extensions`: (name, value) pairs that brokers get
    with the token (KIP-342). Raises UsageError for what cannot be.
    """

    url: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    sasl_extensions: tuple[tuple[str, str], ...] = ()
    sends_encoded: bool = False
    http: Http = field(default_factory=Http)
    renewal: Renewal = field(default_factory=Renewal)

    def __post_init__(self) -> None:
        """Refuse addresses of other kinds, and empty names."""
        if not is_web_address(self.url):
            raise UsageError(
                f"sasl.oauthbearer.token.endpoint.url must be like https://host/path, or file:///path, not {shown(self.url)!r}"
            )
        if not self.client_id or not self.client_secret:
            raise UsageError(
                "the token endpoint needs a client id and a client secret: clientId and clientSecret in sasl.jaas.config, or "
                "the properties sasl.oauthbearer.client.credentials.client.id and .client.secret"
            )

    def token(self) -> str:
        """A token that is good for some time yet. Raises AuthenticationError, RetriableError; without urllib3 UsageError."""
        return kept.get(self, self.renewal, self._ask)

    def extensions(self) -> dict[str, str]:
        return dict(self.sasl_extensions)

    def _ask(self) -> tuple[str, float]:
        names = (self.client_id, self.client_secret)
        user, password = map(urllib.parse.quote_plus, names) if self.sends_encoded else names
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        headers = {
            "Accept": "application/json",
            "Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        who = f"the client id {self.client_id!r} or its secret"
        body = urllib.parse.urlencode(form).encode()
        return token_of(Question(url=self.url, method="POST", headers=headers, body=body, who=who), self.http)


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagedIdentity:
    """Tokens of Azure's metadata service (IMDS) for the identity of the machine: no secret is needed.

    `query`: what is asked, such as "api-version=2018-02-01&resource=api://...", with "&client_id=..." for one of several
    identities.
    """

    query: str
    url: str = field(default=AZURE_IMDS, repr=False)
    sasl_extensions: tuple[tuple[str, str], ...] = ()
    http: Http = field(default_factory=Http)
    renewal: Renewal = field(default_factory=Renewal)

    def __post_init__(self) -> None:
        """Refuse addresses of other kinds."""
        if not is_web_address(self.url):
            raise UsageError(f"sasl.oauthbearer.token.endpoint.url must be like http://host/path, not {shown(self.url)!r}")

    def token(self) -> str:
        """As `ClientCredentials`."""
        return kept.get(self, self.renewal, self._ask)

    def extensions(self) -> dict[str, str]:
        return dict(self.sasl_extensions)

    def _ask(self) -> tuple[str, float]:
        url = f"{self.url}?{self.query}" if self.query else self.url
        headers = {"Accept": "application/json", "Metadata": "true"}
        return token_of(Question(url=url, method="GET", headers=headers, body=None, who="this machine's identity"), self.http)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileTokens:
    """A token that another process puts into a file, and renews there: it is read for every connection."""

    path: str
    sasl_extensions: tuple[tuple[str, str], ...] = ()

    def token(self) -> str:
        """What the file holds now. Raises RetriableError while it cannot be read or is empty, as one that is being written,
        AuthenticationError for what is not a token.
        """
        try:
            data = Path(self.path).read_bytes().strip()
        except OSError as error:
            raise RetriableError(f"the file of the token, {self.path}, cannot be read: {error.strerror}") from error
        if not data:
            raise RetriableError(f"the file of the token, {self.path}, is empty")
        return checked(data.decode(errors="replace"), f"the file {self.path}")

    def extensions(self) -> dict[str, str]:
        return dict(self.sasl_extensions)


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
    renewal: Renewal = field(default_factory=Renewal)

    def __post_init__(self) -> None:
        """Refuse two identities."""
        if self.profile and self.role_arn:
            raise UsageError("give awsProfileName or awsRoleArn in sasl.jaas.config, not both")

    def token(self) -> str:
        """A signed token. Raises UsageError without the package or a region, AuthenticationError without credentials."""
        return kept.get(self, self.renewal, self._ask)

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
