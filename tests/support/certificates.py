"""Certificates for tests: an authority, and what it issues. Keys are of curve P-256, which is quick.

authority = Authority(tmp_path)
node, client = authority.issue("node"), authority.issue("client")
settings = {"ssl_certificate_file": node.certificate, "ssl_key_file": node.key}
"""

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """Files of a key and its certificate."""

    key: Path
    certificate: Path
    both: Path
    """Key and certificate, as Java's clients take them (KIP-651)."""
    parsed: x509.Certificate


class Authority:
    """A certificate authority, with its files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.file = folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        file_name: str = "",
        organization: str = "",
        days: tuple[int, int] = (-1, 20),
        password: str = "",
    ) -> Issued:
        """Issue a certificate for 127.0.0.1 and localhost, valid from and until so many days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if organization:
            names.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        now = dt.datetime.now(dt.UTC)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(names))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        issued = [self.folder / f"{file_name or name}{end}" for end in (".key", ".pem", ".both.pem")]
        encoded_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        encoded = certificate.public_bytes(Encoding.PEM)
        for path, content in zip(issued, (encoded_key, encoded, encoded_key + encoded), strict=True):
            path.write_bytes(content)
        return Issued(issued[0], issued[1], issued[2], certificate)

    def revoke(self, *revoked: Issued, days: tuple[int, int] = (-2, 20)) -> Path:
        """Write a revocation list, which is valid from and until so many days from now; return its file."""
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now + days[0] * DAY)
            .next_update(now + days[1] * DAY)
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.parsed.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now - DAY).build())
        path = self.folder / "crl.pem"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path

    def client_context(
        self, certificate: Issued | None = None, *, versions: Sequence[ssl.TLSVersion] = ()
    ) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority, and shows a certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        if versions:
            context.minimum_version, context.maximum_version = versions[0], versions[-1]
        return context
