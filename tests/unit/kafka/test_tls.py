import ssl

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificates

from headrace.connectors.security.tls import TlsConfig, ssl_context
from headrace.enumerator.errors import UsageError
from headrace.testing.servers.kafka.security import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def trusted(context: ssl.SSLContext) -> int:
    return len(context.get_ca_certs())


def test_a_pem_trust_store(certificates):
    context = ssl_context(TlsConfig(truststore_location=str(certificates.ca)))
    assert trusted(context) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize("line_end", ["\n", " "], ids=["as it is", "on one line as in a Java properties file"])
def test_a_pem_trust_store_in_the_properties_themselves(certificates, line_end):
    assert trusted(ssl_context(TlsConfig(truststore_certificates=certificates.ca.read_text().replace("\n", line_end)))) == 1


def test_a_pkcs12_trust_store(certificates, tmp_path):
    authorities = load_pem_x509_certificates(certificates.ca.read_bytes())
    encryption = serialization.BestAvailableEncryption(b"changeit")
    store = pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(authorities[0], b"ca")], encryption)
    (tmp_path / "trust.p12").write_bytes(store)
    given = {"truststore_location": str(tmp_path / "trust.p12"), "truststore_type": "PKCS12"}
    assert trusted(ssl_context(TlsConfig(**given, truststore_password="changeit"))) == 1
    with pytest.raises(UsageError, match=r"ssl.truststore.password is wrong"):
        ssl_context(TlsConfig(**given, truststore_password="hunter2"))


def test_a_pkcs12_key_store(certificates, tmp_path):
    pem = certificates.client.read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    own, *others = load_pem_x509_certificates(pem)
    encryption = serialization.BestAvailableEncryption(b"changeit")
    store = pkcs12.serialize_key_and_certificates(b"me", key, own, others, encryption)  # type: ignore[arg-type]
    (tmp_path / "key.p12").write_bytes(store)
    ssl_context(TlsConfig(keystore_location=str(tmp_path / "key.p12"), keystore_password="changeit"))
    with pytest.raises(UsageError, match="key"):
        ssl_context(TlsConfig(keystore_location=str(tmp_path / "key.p12"), keystore_password="hunter2"))


def test_a_pem_key_with_a_password(certificates):
    key = serialization.load_pem_private_key(certificates.client.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"changeit")
    ).decode()
    chain = certificates.client.read_text().partition("-----BEGIN CERTIFICATE-----")
    given = {"keystore_key": encrypted, "keystore_certificate_chain": chain[1] + chain[2]}
    ssl_context(TlsConfig(**given, key_password="changeit"))
    for wrong in ("hunter2", None):
        with pytest.raises(UsageError, match=r"ssl.key.password") as caught:
            ssl_context(TlsConfig(**given, key_password=wrong))
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("name", "data", "message"), [
    ("absent.pem", None, r"ssl.truststore.location: .*absent.pem cannot be read"),
    ("empty.pem", b"nothing", "no usable PEM certificate"),
    ("trust.jks", b"\xfe\xed\xfe\xed" + bytes(20), "keytool -importkeystore"),  # the command that converts it
], ids=["not there", "no certificate", "JKS"])  # fmt: skip
def test_a_trust_store_that_cannot_be_used_is_refused(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message):
        ssl_context(TlsConfig(truststore_location=str(tmp_path / name)))


def test_no_private_key_is_left_on_disk(certificates, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ssl_context(TlsConfig(keystore_location=str(certificates.client), key_password="unused"))
    assert not list(tmp_path.iterdir())


def test_the_protocols_bound_the_version():
    assert ssl_context(TlsConfig(enabled_protocols=("TLSv1.3",))).minimum_version is ssl.TLSVersion.TLSv1_3


def test_files_that_are_renewed_are_read_again_and_others_are_not(certificates, tmp_path):
    own, trust = tmp_path / "own.pem", tmp_path / "trust.pem"
    own.write_bytes(certificates.client.read_bytes())
    trust.write_bytes(certificates.ca.read_bytes())
    tls = TlsConfig(truststore_location=str(trust), keystore_location=str(own))
    first = ssl_context(tls)
    assert ssl_context(tls) is first
    own.write_bytes(certificates.server.read_bytes())
    second = ssl_context(tls)
    assert second is not first
    trust.write_bytes(make_certificates(tmp_path / "renewed").ca.read_bytes())
    third = ssl_context(tls)
    assert third.get_ca_certs() != second.get_ca_certs()
    assert ssl_context(tls) is third


@pytest.mark.parametrize("half", [b"", b"-----BEGI", None], ids=["empty", "half", "absent"])
def test_a_file_that_is_being_renewed_does_not_end_what_goes_on(certificates, tmp_path, caplog, half):
    own = tmp_path / "own.pem"
    own.write_bytes(certificates.client.read_bytes())
    tls = TlsConfig(keystore_location=str(own))
    first = ssl_context(tls)
    own.unlink() if half is None else own.write_bytes(half)
    assert ssl_context(tls) is first
    assert "TLS uses the files as they were before" in caplog.text
    own.write_bytes(certificates.server.read_bytes())
    assert ssl_context(tls) is not first
