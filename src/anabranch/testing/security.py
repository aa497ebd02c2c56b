"""TLS and users of a test broker: its settings, the files that they name, and what clients need to connect."""

import datetime as dt
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from anabranch.extras import needed

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
SKEW: Final = dt.timedelta(days=30)
"""Time for which a new certificate has been valid: clocks of containers differ."""
VALID: Final = dt.timedelta(days=40_000)
"""Time for which it stays valid: a test may move the clocks of nodes."""
CERTIFICATE: Final = "broker.pem"
USERS: Final = "plain-users"


class Security:
    """Protection of the listener. A certificate is made at the first start, and stays the same."""

    def __init__(self, users: Mapping[str, str], *, tls: bool) -> None:
        """`users` are passwords by name."""
        self.users = dict(users)
        self.tls = tls

    @property
    def protocol(self) -> str:
        """Kafka's name of the listener's security protocol."""
        return {(False, False): "PLAINTEXT", (False, True): "SSL", (True, False): "SASL_PLAINTEXT"}.get(
            (bool(self.users), self.tls), "SASL_SSL"
        )

    def settings(self, folder: Path, port: int) -> Mapping[str, object]:
        """Return the settings of a node, after writing files that they name to a folder. Raises MissingExtra."""
        found: dict[str, object] = {}
        if self.tls or self.users:
            found["listener.listeners"] = f"{self.protocol}://127.0.0.1:{port}"
        if self.tls:
            found["ssl.certificate_file"] = folder / CERTIFICATE
            if not (folder / CERTIFICATE).exists():
                (folder / CERTIFICATE).write_bytes(_make_certificate())
        if self.users:
            found["sasl.enabled_mechanisms"] = ",".join(MECHANISMS)
            found["sasl.plain_users_file"] = folder / USERS
            (folder / USERS).write_text(_plain_users(self.users), "utf-8")
        return found

    def client_settings(self, folder: Path, user: str | None) -> Mapping[str, str]:
        """Return the settings of a client, by librdkafka's names. `user` is by default the first."""
        found = {"security.protocol": self.protocol}
        if self.tls:
            found["ssl.ca.location"] = str(folder / CERTIFICATE)
        if self.users:
            name = next(iter(self.users)) if user is None else user
            found |= {"sasl.mechanism": MECHANISMS[0], "sasl.username": name, "sasl.password": self.users[name]}
        return found


def _plain_users(users: Mapping[str, str]) -> str:
    # Imported late: most brokers have no users.
    from anabranch.broker.kafka.sasl.plain import SALT_BYTES, hash_password

    return "".join(
        f"{name}:{hash_password(password, secrets.token_bytes(SALT_BYTES)).to_text()}\n"
        for name, password in users.items()
    )


def _make_certificate() -> bytes:
    """Return a new private key and a certificate that it has signed, for localhost, in PEM. Raises MissingExtra."""
    import ipaddress

    with needed("TLS of a broker for tests"):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return secret + certificate.public_bytes(Encoding.PEM)
