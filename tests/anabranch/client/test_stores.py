"""Trust stores and key stores: PEM, PKCS12, JKS, and what is wrong with them in one line."""

import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from anabranch.client.errors import PropertyError
from anabranch.client.stores import Store, read_key_store, read_trust_store, show, trust
from tests.support.certificates import Authority, Issued

MARK = "MARKED-SECRET"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def client(authority: Authority) -> Issued:
    return authority.issue("client")


def write_p12(path: Path, authority: Authority, issued: Issued | None) -> Path:
    key = None if issued is None else load_pem_private_key(issued.key.read_bytes(), None)
    own = None if issued is None else issued.parsed
    others = [load_pem_x509_certificate(authority.file.read_bytes())]
    encryption = BestAvailableEncryption(MARK.encode())
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"x", key, own, others, encryption))  # type: ignore[arg-type]
    return path


def usable(store: Store | None) -> bool:
    """True if OpenSSL accepts key and certificates of a store."""
    assert store is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    show(context, store)
    return True


def test_each_form_of_a_key_store(tmp_path: Path, authority: Authority, client: Issued) -> None:
    encrypted = authority.issue("encrypted", password=MARK)
    pem = {"ssl.keystore.type": "PEM"}
    one_line = client.key.read_text().replace("\n", " ").strip()
    forms: list[Mapping[str, str]] = [
        {**pem, "ssl.keystore.location": str(client.both)},
        {"ssl.certificate.location": str(client.certificate), "ssl.key.location": str(client.key)},
        {"ssl.keystore.key": client.key.read_text(), "ssl.keystore.certificate.chain": client.certificate.read_text()},
        {"ssl.keystore.key": one_line, "ssl.keystore.certificate.chain": client.certificate.read_text()},
        {**pem, "ssl.keystore.location": str(encrypted.both), "ssl.key.password": MARK},
        {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(write_p12(tmp_path / "key.p12", authority, client)),
            "ssl.keystore.password": MARK,
        },
    ]
    assert all(usable(read_key_store(each)) for each in forms)
    assert read_key_store({}) is None


def test_each_form_of_a_trust_store(tmp_path: Path, authority: Authority) -> None:
    p12 = write_p12(tmp_path / "trust.p12", authority, None)
    forms: list[Mapping[str, str]] = [
        {"ssl.truststore.location": str(authority.file)},
        {"ssl.ca.location": str(authority.file)},
        {"ssl.truststore.certificates": authority.file.read_text()},
        {"ssl.truststore.location": str(p12), "ssl.truststore.password": MARK},
    ]
    for each in forms:
        store = read_trust_store(each)
        assert store is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(context, store)
        assert len(context.get_ca_certs()) == 1
    assert read_trust_store({}) is None


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, authority: Authority, client: Issued) -> None:
    other = authority.issue("other")
    encrypted = authority.issue("encrypted", password=MARK)
    p12 = write_p12(tmp_path / "key.p12", authority, client)
    jks, junk = tmp_path / "store.jks", tmp_path / "junk"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    junk.write_bytes(MARK.encode())
    damaged = tmp_path / "damaged.pem"
    damaged.write_text(f"-----BEGIN CERTIFICATE-----\n{MARK}\n-----END CERTIFICATE-----\n")
    location, key_password = "ssl.keystore.location", "ssl.key.password"
    cases: list[tuple[Mapping[str, str], str]] = [
        ({location: str(jks)}, f"{location}: {jks} is a Java key store .* keytool -importkeystore"),
        ({location: str(tmp_path / "none")}, "No such file or directory"),
        ({location: str(junk)}, "neither PEM nor PKCS12"),
        ({location: str(damaged)}, "a certificate in it is invalid"),
        ({location: str(p12), "ssl.keystore.password": MARK + "x"}, "ssl.keystore.password: it does not open"),
        ({location: str(p12)}, "ssl.keystore.password: it does not open"),
        ({location: str(encrypted.both)}, "the private key is encrypted: set ssl.key.password"),
        ({location: str(encrypted.both), key_password: MARK + "x"}, "key.password: it does not open the private key"),
        ({location: str(client.certificate)}, "there is no private key"),
        ({location: str(client.key)}, "there is no certificate"),
        ({"ssl.key.location": str(client.key)}, "there is no certificate with a key beside it"),
        (
            {"ssl.certificate.location": str(client.certificate), "ssl.key.location": str(other.key)},
            "does not belong to the first certificate",
        ),
    ]
    for properties, reason in cases:
        with pytest.raises(PropertyError, match=reason) as caught:
            read_key_store(properties)
        assert MARK not in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(PropertyError, match=r"truststore\.location: .*there is no certificate"):
        read_trust_store({"ssl.truststore.location": str(client.key)})
