"""Certificates and keys of a client: files in PEM or PKCS12, or PEM in a property.

On Linux keys are never written to disk.
"""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)

from anabranch.client.errors import PropertyError, UnsupportedProperty
from anabranch.platform import private_file

_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM: Final = b"-----BEGIN "
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_UNREADABLE: Final = (UnsupportedAlgorithm, ValueError, TypeError)


@dataclass(frozen=True, slots=True)
class Store:
    """Content of a trust store or key store."""

    certificates: Sequence[x509.Certificate]
    key: PrivateKeyTypes | None = None

    @property
    def pem(self) -> str:
        """The certificates as text."""
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in self.certificates)


def read_trust_store(properties: Mapping[str, str]) -> Store | None:
    """Return the authorities to trust; None: those of the system. Raises PropertyError."""
    if "ssl.truststore.certificates" in properties:
        name, where = "ssl.truststore.certificates", ""
        store = _pem(name, None, _encoded(properties, name), None)
    else:
        name = "ssl.truststore.location" if "ssl.truststore.location" in properties else "ssl.ca.location"
        if name not in properties:
            return None
        where = f"{properties[name]}: "
        store = _read_store(name, properties, "ssl.truststore")
    if not store.certificates:
        raise PropertyError(f"property {name}: {where}there is no certificate")
    return store


def read_key_store(properties: Mapping[str, str]) -> Store | None:
    """Return the client's certificates, its own first, and its key; None: it has none. Raises PropertyError."""
    password = properties.get("ssl.key.password")
    if "ssl.keystore.key" in properties:
        name = "ssl.keystore.key"
        content = _encoded(properties, name) + b"\n" + _encoded(properties, "ssl.keystore.certificate.chain")
        store = _pem(name, None, content, password)
    elif "ssl.keystore.location" in properties:
        name = "ssl.keystore.location"
        store = _read_store(name, properties, "ssl.keystore", password)
    elif "ssl.certificate.location" in properties:
        name = "ssl.certificate.location"
        content = _read(name, properties[name])
        if "ssl.key.location" in properties:
            content += b"\n" + _read("ssl.key.location", properties["ssl.key.location"])
        store = _pem(name, properties[name], content, password)
    else:
        for orphan in ("ssl.key.location", "ssl.keystore.certificate.chain"):
            if orphan in properties:
                raise PropertyError(f"property {orphan}: set, but there is no certificate with a key beside it")
        return None
    where = f"property {name}: " + (f"{properties[name]}: " if name.endswith("location") else "")
    if store.key is None:
        raise PropertyError(f"{where}there is no private key")
    if not store.certificates:
        raise PropertyError(f"{where}there is no certificate")
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if store.key.public_key().public_bytes(*form) != store.certificates[0].public_key().public_bytes(*form):
        raise PropertyError(f"{where}the private key does not belong to the first certificate")
    return store


def trust(context: ssl.SSLContext, store: Store) -> None:
    """Trust the certificates of a store, and no others."""
    context.load_verify_locations(cadata=store.pem)


@contextmanager
def key_file(store: Store) -> Iterator[str]:
    """Give the path of a file with the key and the certificates of a store. It ends with the context.

    OpenSSL reads files only. On Linux this one is in memory, and no other process can open it.
    """
    assert store.key is not None, "read_key_store returns stores with a key"
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with private_file(key + store.pem.encode()) as path:
        yield path


def show(context: ssl.SSLContext, store: Store) -> None:
    """Show the certificate of a store to servers that ask for one."""
    with key_file(store) as path:
        context.load_cert_chain(path, password=lambda: b"")


def _read_store(name: str, properties: Mapping[str, str], prefix: str, key_password: str | None = None) -> Store:
    path = properties[name]
    content = _read(name, path)
    if content.startswith(_JKS):
        raise UnsupportedProperty(
            f"property {name}: {path} is a Java key store (JKS), which only Java reads. Convert it: keytool "
            f"-importkeystore -srckeystore {path} -destkeystore NEW.p12 -deststoretype PKCS12"
        )
    if _PEM in content:
        return _pem(name, path, content, key_password)
    password = properties.get(f"{prefix}.password")
    try:
        found = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except _UNREADABLE as error:
        if "password" in str(error).lower():
            raise PropertyError(f"property {prefix}.password: it does not open {path}") from None
        raise PropertyError(f"property {name}: {path}: neither PEM nor PKCS12") from None
    own = [] if found.cert is None else [found.cert.certificate]
    return Store([*own, *(each.certificate for each in found.additional_certs)], found.key)


def _pem(name: str, path: str | None, content: bytes, password: str | None) -> Store:
    where = f"property {name}: " + (f"{path}: " if path is not None else "")
    try:
        certificates = x509.load_pem_x509_certificates(content) if _CERTIFICATE in content else []
    except _UNREADABLE:
        raise PropertyError(f"{where}a certificate in it is invalid") from None
    if b"PRIVATE KEY-----" not in content:
        return Store(certificates)
    is_encrypted = b"ENCRYPTED" in content
    if is_encrypted and not password:
        raise PropertyError(f"{where}the private key is encrypted: set ssl.key.password")
    try:
        key = load_pem_private_key(content, password.encode() if is_encrypted and password else None)
    except _UNREADABLE:
        if is_encrypted:
            raise PropertyError("property ssl.key.password: it does not open the private key") from None
        raise PropertyError(f"{where}there is no valid private key") from None
    return Store(certificates, key)


def _encoded(properties: Mapping[str, str], name: str) -> bytes:
    # Java accepts PEM on one line, with spaces in place of line ends.
    text = properties.get(name, "")
    if "\n" not in text.strip():
        text = text.replace("----- ", "-----\n").replace(" -----", "\n-----")
    return text.encode()


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise PropertyError(f"property {name}: {path}: {getattr(error, 'strerror', None) or error}") from None
