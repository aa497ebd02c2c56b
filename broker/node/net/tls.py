"""TLS of the listeners: key, certificates and revocation lists from PEM files, read again when the files change.

All checks are made when files are read, so that a mistake is one line that says what is wrong, and where: at the start
the node refuses to serve, later the old files stay in use. A handshake takes the newest context, and a connection keeps
the one that it began with.

The protocol itself is OpenSSL's, by Python's `ssl` and the event loop.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from anabranch.broker.node.net.principal_rules import PrincipalRules, RuleError
from anabranch.broker.node.net.principals import ANONYMOUS, NoMatchingRule
from anabranch.broker.node.net.vanished import open_connection
from anabranch.broker.node.settings.ssl_area import InternalSslSettings, SslSettings, ciphers_of, protocols_of

CHECK_S: Final = 1.0
"""Interval of checks for changed files. Files are read when two checks in a row find the same change, so that key and
certificate may be replaced one after the other."""
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_CRL: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_UNREADABLE: Final = (UnsupportedAlgorithm, x509.InvalidVersion, ValueError, TypeError)
"""Errors of the parser of certificates."""
_Signature = Sequence[tuple[int, int, int] | None]
"""Inode, size and time of the last change of each file; None: it cannot be read."""

_log = structlog.get_logger("network")


class TlsError(OSError):
    """The files or rules cannot be used. The text is the one line to show."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Content of the files: the context of the next handshakes, and facts about the certificate to show."""

    context: ssl.SSLContext
    anonymous_context: ssl.SSLContext
    """The same without certificates of clients, for listeners that authenticate them with SASL: `context` itself if it
    asks for none."""
    subject: str
    """Name of the certificate, in the notation of RFC 4514."""
    client_context: ssl.SSLContext | None
    """For connections to other nodes; None: these files are of listeners."""
    expires_ms: int
    """Time from which on clients refuse the certificate, ms since 1970."""


class Tls:
    """The files of the settings, as they are in force. Raises TlsError. Reading blocks for some ms."""

    def __init__(self, area: SslSettings, now_ms: Callable[[], int]) -> None:
        self._area = area
        self._now_ms = now_ms
        self._paths = [
            path
            for path in (area.certificate_file, area.key_file, area.key_password_file, area.ca_file, area.crl_file)
            if path is not None
        ]
        try:
            self._rules = PrincipalRules(area.principal_mapping_rules)
        except RuleError as error:
            raise TlsError(f"setting ssl.principal_mapping_rules: {error}") from None
        self._seen = self._signature()
        self._changed: _Signature = self._seen
        """Files as the last check has found them."""
        self.files = load(area, now_ms())
        self.reloads = 0
        self.reload_failures = 0

    @property
    def handshake_timeout_s(self) -> float:
        """Time that a client has to complete its handshake."""
        return self._area.handshake_timeout_ms / 1000

    @property
    def prefix(self) -> str:
        """Beginning of the names of the settings."""
        return self._area.prefix

    async def open_connection(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to another node, and verify its certificate and name. Raises OSError."""
        context = self.files.client_context
        assert context is not None, "the files are those of the internal port"
        try:
            return await open_connection(host, port, context)
        except ssl.SSLCertVerificationError as error:
            raise TlsError(
                f"its certificate is not accepted: {error.verify_message.rstrip('.')} (setting {self.prefix}ca_file)"
            ) from error
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
            raise TlsError(
                f"it ends the TLS handshake ({getattr(error, 'reason', None) or error}), and its log says why: "
                "does its internal port use TLS (setting cluster.internal_tls)?"
            ) from error

    def principal_of(self, ssl_object: ssl.SSLObject) -> str:
        """Return the principal of a client after its handshake. Raises NoMatchingRule."""
        encoded = ssl_object.getpeercert(binary_form=True)
        if encoded is None:
            return ANONYMOUS
        try:
            return self._rules.principal(x509.load_der_x509_certificate(encoded).subject)
        except _UNREADABLE as error:
            raise NoMatchingRule(f"the name of the client's certificate cannot be read: {error}") from None

    async def run(self) -> None:
        """Read the files again when they have changed, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await asyncio.to_thread(self.check)

    def check(self) -> None:
        """Look for changes once, and use files that have changed unless they cannot be used."""
        found = self._signature()
        if found == self._seen or found != self._changed:
            self._changed = found
            return
        self._seen = found
        try:
            self.files = load(self._area, self._now_ms())
        except TlsError as error:
            self.reload_failures += 1
            _log.error("changed TLS files cannot be used; those of before remain in use", reason=str(error))
        else:
            self.reloads += 1
            _log.info("TLS files have changed and are in use", certificate=self.files.subject)

    def _signature(self) -> _Signature:
        return [_signature_of(path) for path in self._paths]


def _signature_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def load(area: SslSettings, now_ms: int) -> TlsFiles:
    """Read all files, and check that they belong together and are valid at `now_ms`. Raises TlsError."""
    try:
        return _load(area, now_ms)
    except _UNREADABLE as error:
        raise TlsError(f"a file of the settings in [ssl] has content that is not supported: {error}") from None


def _load(area: SslSettings, now_ms: int) -> TlsFiles:
    """Read and check the files. Raises TlsError, and what the parser raises for content that it does not support."""
    assert area.certificate_file is not None, "checked with the settings"
    key_file = area.key_file or area.certificate_file
    password = _password(area)
    chain = _certificates(f"{area.prefix}certificate_file", area.certificate_file)
    _check_dates(f"{area.prefix}certificate_file", area.certificate_file, chain, now_ms)
    _check_key(area, key_file, password, chain[0])
    context = _context(area, area.certificate_file, key_file, password)
    asks = area.client_auth != "none"
    anonymous_context = _context(area, area.certificate_file, key_file, password) if asks else context
    context.verify_mode = _CLIENT_AUTH[area.client_auth]
    if area.ca_file is not None:
        _certificates(f"{area.prefix}ca_file", area.ca_file)
        _trust(context, f"{area.prefix}ca_file", area.ca_file)
    if area.crl_file is not None:
        _check_lists(area.crl_file, now_ms)
        _trust(context, "ssl.crl_file", area.crl_file)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    calls = None
    if isinstance(area, InternalSslSettings):
        calls = _context(area, area.certificate_file, key_file, password, ssl.PROTOCOL_TLS_CLIENT)
        assert area.ca_file is not None, "checked with the settings"
        _trust(calls, f"{area.prefix}ca_file", area.ca_file)
    expires_ms = min(int(each.not_valid_after_utc.timestamp() * 1000) for each in chain)
    return TlsFiles(context, anonymous_context, chain[0].subject.rfc4514_string(), calls, expires_ms)


def _context(
    area: SslSettings,
    certificate_file: Path,
    key_file: Path,
    password: bytes | None,
    side: int = ssl.PROTOCOL_TLS_SERVER,
) -> ssl.SSLContext:
    """Return a context. That of a server asks for no certificates, that of a client verifies. Raises TlsError."""
    context = ssl.SSLContext(side)
    protocols = protocols_of(area)
    context.minimum_version, context.maximum_version = _VERSIONS[protocols[0]], _VERSIONS[protocols[-1]]
    context.set_ciphers(ciphers_of(area))
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
        context.verify_mode = ssl.CERT_NONE
    try:
        # A password that is not needed is not asked for. Without one OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate_file, key_file, lambda: password or b"")
    except (OSError, ValueError) as error:
        raise TlsError(f"setting {area.prefix}certificate_file: {certificate_file}: {error}") from None
    return context


def _read(setting: str, path: Path) -> bytes:
    """Return a file's content. Raises TlsError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"setting {setting}: {path}: {error.strerror or error}") from None


def _password(area: SslSettings) -> bytes | None:
    """Return the password of the key, if one is set. Raises TlsError."""
    if area.key_password is not None:
        return area.key_password.reveal().encode()
    if area.key_password_file is not None:
        lines = _read("ssl.key_password_file", area.key_password_file).splitlines()
        return lines[0] if lines else b""
    return None


def _certificates(setting: str, path: Path) -> Sequence[x509.Certificate]:
    """Return the certificates of a file. Raises TlsError."""
    content = _read(setting, path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise TlsError(f"setting {setting}: {path}: there is no valid certificate in PEM format in this file") from None


def _check_dates(setting: str, path: Path, chain: Sequence[x509.Certificate], now_ms: int) -> None:
    """Raise TlsError for a certificate that has expired or is not valid yet."""
    for each in chain:
        name = each.subject.rfc4514_string()
        if each.not_valid_after_utc.timestamp() * 1000 <= now_ms:
            raise TlsError(
                f"setting {setting}: {path}: the certificate of {name!r} expired at {each.not_valid_after_utc:%F %T} "
                "UTC: replace it"
            )
        if each.not_valid_before_utc.timestamp() * 1000 > now_ms:
            raise TlsError(
                f"setting {setting}: {path}: the certificate of {name!r} is not valid before "
                f"{each.not_valid_before_utc:%F %T} UTC: check the clock of this machine"
            )


def _check_key(area: SslSettings, path: Path, password: bytes | None, certificate: x509.Certificate) -> None:
    """Raise TlsError for a private key that cannot be read, or that belongs to another certificate."""
    setting = area.prefix + ("certificate_file" if area.key_file is None else "key_file")
    content = _read(setting, path)
    is_encrypted = b"ENCRYPTED" in content
    if is_encrypted and password is None:
        raise TlsError(
            f"setting {setting}: {path}: the private key is encrypted: set ssl.key_password_file, or the environment "
            "variable ANABRANCH_SSL_KEY_PASSWORD"
        )
    try:
        key = load_pem_private_key(content, password if is_encrypted else None)
    except (TypeError, ValueError):
        if is_encrypted:
            raise TlsError(f"setting {setting}: {path}: the password does not open the private key") from None
        raise TlsError(f"setting {setting}: {path}: there is no valid private key in PEM format in this file") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise TlsError(
            f"setting {setting}: {path}: the private key does not belong to the first certificate of "
            f"{area.certificate_file} ({certificate.subject.rfc4514_string()!r})"
        )


def _check_lists(path: Path, now_ms: int) -> None:
    """Raise TlsError for a file without revocation lists, and for one that is out of date: it would refuse everyone."""
    found = _CRL.findall(_read("ssl.crl_file", path))
    if not found:
        raise TlsError(f"setting ssl.crl_file: {path}: there is no revocation list in PEM format in this file")
    for encoded in found:
        try:
            each = x509.load_pem_x509_crl(encoded)
        except ValueError as error:
            raise TlsError(f"setting ssl.crl_file: {path}: a revocation list is invalid: {error}") from None
        if each.next_update_utc is not None and each.next_update_utc.timestamp() * 1000 <= now_ms:
            raise TlsError(
                f"setting ssl.crl_file: {path}: the revocation list of {each.issuer.rfc4514_string()!r} was to be "
                f"replaced by {each.next_update_utc:%F %T} UTC: replace it"
            )


def _trust(context: ssl.SSLContext, setting: str, path: Path) -> None:
    """Add the certificates or revocation lists of a file to a context. Raises TlsError."""
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise TlsError(f"setting {setting}: {path}: {error}") from None
