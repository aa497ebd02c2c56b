"""Files of a trial set-up: an authority, certificates, settings, tokens and client properties.

Keys are of the curve P-256. Everything that holds a secret is readable for its owner only.
"""

import datetime as dt
import ipaddress
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from anabranch.addresses import bracketed, host_port

AUTHORITY_DAYS: Final = 3650
TOKEN_BYTES: Final = 32
SECRET: Final = 0o600
PUBLIC: Final = 0o644
_DAY: Final = dt.timedelta(days=1)
_SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True, slots=True)
class Names:
    """Names and addresses of a node, the announced one first."""

    all: Sequence[str]

    @property
    def announced(self) -> str:
        """Name announced to clients."""
        return self.all[0]

    def alternative_names(self) -> list[x509.GeneralName]:
        """Return them as a certificate has them."""
        found: list[x509.GeneralName] = []
        for name in self.all:
            try:
                found.append(x509.IPAddress(ipaddress.ip_address(name)))
            except ValueError:
                found.append(x509.DNSName(name))
        return found


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """Options of a trial set-up."""

    target: Path
    """Directory in which the files will be."""
    names: Names
    listen: str
    port: int
    ssl_port: int
    admin_port: int
    user: str
    clients: Sequence[str]
    days: int


@dataclass(frozen=True, slots=True)
class _Pair:
    """Key and certificate in PEM."""

    key: bytes
    certificate: bytes


class _Authority:
    """A certificate authority for one set-up."""

    def __init__(self, now: dt.datetime) -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anabranch trial authority")])
        builder = self._builder(self._name, self._key, AUTHORITY_DAYS)
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pair = _pair(self._key, certificate)

    def issue(
        self, name: str, usage: ObjectIdentifier, days: int, alternative_names: Sequence[x509.GeneralName] = ()
    ) -> _Pair:
        """Issue a certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if alternative_names:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
        return _pair(key, builder.sign(self._key, hashes.SHA256()))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _DAY)  # clocks differ
            .not_valid_after(self._now + days * _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )


def _pair(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> _Pair:
    encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return _Pair(encoded, certificate.public_bytes(Encoding.PEM))


def write_trial(folder: Path, options: TrialOptions, password: str) -> Sequence[tuple[str, str]]:
    """Write the files into an empty folder; return their names with what they are. Raises OSError."""
    authority = _Authority(dt.datetime.now(dt.UTC))
    node = authority.issue(
        options.names.announced, ExtendedKeyUsageOID.SERVER_AUTH, options.days, options.names.alternative_names()
    )
    target, user = options.target, options.user
    server = host_port(options.names.announced, options.port)
    jaas = f'{_SCRAM_MODULE} required username="{user}" password="{password}";'
    sasl = {"bootstrap.servers": server, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(target / "ca.pem")}
    login = {"sasl.username": user, "sasl.password": password}
    files: list[tuple[str, str, int, bytes]] = [
        ("ca.pem", "the authority, for clients", PUBLIC, authority.pair.certificate),
        ("ca.key", "its key: keep it on another machine", SECRET, authority.pair.key),
        ("node.pem", f"the node's certificate, for {', '.join(options.names.all)}", PUBLIC, node.certificate),
        ("node.key", "its key", SECRET, node.key),
        ("read-tokens", "a token that may read at the admin port", SECRET, _token()),
        ("operate-tokens", "a token that may operate the node", SECRET, _token()),
        ("node.toml", "the node's settings", PUBLIC, _settings(options).encode()),
        (f"{user}.properties", f"the super user {user} for Java's tools, with the password", SECRET,
         _properties({**sasl, "sasl.jaas.config": jaas, **trust})),
        (f"{user}.librdkafka.properties", "the same for librdkafka (kcat -F)", SECRET,
         _properties({**sasl, **login, "ssl.ca.location": str(target / "ca.pem")})),
    ]  # fmt: skip
    for name in options.clients:
        pair = authority.issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, options.days)
        both = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(target / f"{name}.both.pem")}
        ssl_server = host_port(options.names.announced, options.ssl_port)
        properties = {"bootstrap.servers": ssl_server, "security.protocol": "SSL", **trust, **both}
        files += [
            (f"{name}.pem", f"the certificate of the client User:{name}", PUBLIC, pair.certificate),
            (f"{name}.key", "its key", SECRET, pair.key),
            (f"{name}.both.pem", "both, as Java's clients take them", SECRET, pair.key + pair.certificate),
            (f"{name}.properties", "the client for Java's tools", SECRET, _properties(properties)),
        ]
    for name, _about, mode, content in files:
        _write(folder / name, mode, content)
    return [(name, about) for name, about, _mode, _content in files]


def _write(path: Path, mode: int, content: bytes) -> None:
    """Write a new file that never has more permissions than `mode`."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _token() -> bytes:
    return f"{secrets.token_hex(TOKEN_BYTES)}\n".encode()


def _properties(properties: dict[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in properties.items()).encode()


def _settings(options: TrialOptions) -> str:
    """Return the node's settings as TOML."""
    listen, announced = bracketed(options.listen), bracketed(options.names.announced)
    ports = {"SASL_SSL": options.port} | ({"SSL": options.ssl_port} if options.clients else {})
    folder = options.target
    areas: dict[str, dict[str, object]] = {
        "node": {"data_dir": str(folder / "data")},
        "listener": {
            "listeners": ",".join(f"{name}://{listen}:{port}" for name, port in ports.items()),
            "advertised_listeners": ",".join(f"{name}://{announced}:{port}" for name, port in ports.items()),
        },
        "ssl": {"certificate_file": str(folder / "node.pem"), "key_file": str(folder / "node.key")},
        "sasl": {"enabled_mechanisms": "SCRAM-SHA-512"},
        "authorizer": {"enabled": True, "super_users": f"User:{options.user}"},
        "admin": {
            "port": options.admin_port,
            "ssl_certificate_file": str(folder / "node.pem"),
            "ssl_key_file": str(folder / "node.key"),
            "ssl_ca_file": str(folder / "ca.pem"),
            "read_token_file": str(folder / "read-tokens"),
            "operate_token_file": str(folder / "operate-tokens"),
        },
    }
    if options.clients:
        areas["ssl"] |= {
            "client_auth": "required",
            "ca_file": str(folder / "ca.pem"),
            "principal_mapping_rules": "RULE:^CN=([A-Za-z0-9_-]+)$/$1/",
        }
    lines = []
    for area, values in areas.items():
        # JSON's strings and booleans are TOML's, too.
        lines += [f"[{area}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""]
    return "\n".join(lines)
