"""A login: the mechanism as the first byte, the JAAS text, then properties, each behind a byte 0, its name before `=`."""

import re

from headrace.connectors.kafka.client.sasl import _MECHANISMS, SASL_PROPERTIES, login
from headrace.enumerator.errors import UsageError
from tests.fuzz.target import Target

_SECRET = "s3cr3t-0f-n0b0dy"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_TOKENS = "sasl.oauthbearer.token.endpoint.url=https://tokens.example/"


def _check(data: bytes) -> None:
    jaas, *properties = data[1:].decode("utf-8", "replace").split("\0")
    given = {"sasl.mechanism": _MECHANISMS[data[0] % len(_MECHANISMS)], "sasl.jaas.config": jaas}
    given |= {name: value for name, _, value in (each.partition("=") for each in properties) if name in SASL_PROPERTIES}
    is_secret = jaas.count(_SECRET) == 1 and re.search(rf"\s(password|clientSecret)=[\"']{_SECRET}[\"'][\s;]", jaas)
    try:
        shown = repr(login(given))
    except UsageError as error:
        shown = str(error)
    assert not is_secret or _SECRET not in shown


def _seeds() -> dict[str, bytes]:
    return {
        "plain": f'\0{_PLAIN} username="u" password="{_SECRET}";'.encode(),
        "quoted": f"\1 {_PLAIN.replace('plain.Plain', 'scram.Scram')} username='u\\'' password=\"\\\"{_SECRET}\" ;\n".encode(),
        "bare": f"\0{_PLAIN} username=u password={_SECRET};".encode(),
        "kerberos": b'\3com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true serviceName="kafka";',
        "client": f'\4{_OAUTH} clientId="i" clientSecret=\'{_SECRET}\' scope="s" extension_a=b;\0{_TOKENS}'.encode(),
        "msk": b'\5software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="p" awsRoleArn="arn";',
        "properties": (
            f"\4{_OAUTH};\0{_TOKENS}\0sasl.oauthbearer.client.secret={_SECRET}\0sasl.oauthbearer.extensions=a=b"
        ).encode(),
    }


TARGET = Target(
    "jaas", _check, _seeds, ("headrace.connectors.kafka.client.sasl", "headrace.connectors.security.tokens"),
    (b"username=", b"password=", b"required", b'"', b"\\", b"tokenauth=true", b"sasl.oauthbearer."),
)  # fmt: skip
