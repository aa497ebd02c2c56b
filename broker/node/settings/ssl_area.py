"""Settings of TLS, and rules that concern several of them. Names are Kafka's, without the key stores of Java."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from anabranch.broker.node.settings.area import Area, Secret, setting
from anabranch.broker.node.settings.errors import SettingsError

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
CIPHER_SUITES: Final = {
    # RFC 5289, RFC 7905: the suites of TLS 1.2 with forward secrecy and authenticated encryption, by OpenSSL's names.
    f"TLS_ECDHE_{key}_WITH_{suite}": f"ECDHE-{key}-{name}"
    for suite, name in (
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
    for key in ("ECDSA", "RSA")
}
"""Suites of TLS 1.2 by the names that Kafka and Java give them, the preferred ones first."""


@dataclass(frozen=True, kw_only=True)
class SslSettings(Area):
    """TLS of the listeners whose protocol is SSL, with certificates in PEM files."""

    prefix: ClassVar[str] = "ssl."
    """Beginning of the names of these settings, for messages."""

    certificate_file: Path | None = setting(
        default=None,
        description=(
            "PEM file with the node's certificate, those of intermediate authorities, and perhaps the private "
            "key (Kafka: ssl.keystore.location of type PEM). Files of this table are read again when they "
            "change."
        ),
    )
    key_file: Path | None = setting(
        default=None,
        description="PEM file with the node's private key. Unset: it is in `ssl.certificate_file`.",
    )
    key_password: Secret | None = setting(
        default=None,
        description="Password of the private key (Kafka: ssl.key.password).",
    )
    key_password_file: Path | None = setting(
        default=None,
        description="File whose first line is this password.",
    )
    ca_file: Path | None = setting(
        default=None,
        description=(
            "PEM file with the authorities of client certificates (Kafka: ssl.truststore.location of type PEM)."
        ),
    )
    crl_file: Path | None = setting(
        default=None,
        description=(
            "PEM file with a revocation list of each authority that issues client certificates. Unset: "
            "revocation is not checked."
        ),
    )
    client_auth: Literal["none", "requested", "required"] = setting(
        default="none",
        description=(
            "Certificates of clients (Kafka: ssl.client.auth): `none` (not asked for), `requested` (a client "
            "without one is ANONYMOUS), `required`. Invalid ones are refused."
        ),
    )
    principal_mapping_rules: str = setting(
        default="DEFAULT",
        description=(
            "Rules from the name of a client certificate to a principal (Kafka: ssl.principal.mapping.rules): "
            "RULE:pattern/replacement/[LU] or DEFAULT, separated by commas, with RE2's patterns. A client "
            "without a matching rule is refused."
        ),
    )
    enabled_protocols: str = setting(
        default=",".join(PROTOCOLS),
        description="Versions of TLS, separated by commas (Kafka: ssl.enabled.protocols): TLSv1.2, TLSv1.3.",
    )
    cipher_suites: str = setting(
        default="",
        description=(
            "Cipher suites of TLS 1.2 by their IANA names, separated by commas (Kafka: ssl.cipher.suites), "
            "with forward secrecy and authenticated encryption only. Empty: all of these. The three of TLS "
            "1.3 are always enabled."
        ),
    )
    handshake_timeout_ms: int = setting(
        default=10_000,
        ge=10,
        description="Time that a client has to complete the TLS handshake.",
    )


@dataclass(frozen=True, kw_only=True)
class InternalSslSettings(SslSettings):
    """TLS between the nodes of a cluster."""

    prefix: ClassVar[str] = "cluster.internal_ssl_"


def protocols_of(area: SslSettings) -> list[str]:
    """Return the enabled versions of TLS, the lowest first. Raises SettingsError."""
    named = _items(area.enabled_protocols)
    for name in named:
        if name not in PROTOCOLS:
            raise SettingsError(
                f"setting ssl.enabled_protocols: expected {' and '.join(PROTOCOLS)}, or one of them, found {name!r}"
            )
    if not named:
        raise SettingsError(f"setting ssl.enabled_protocols: empty: expected one of {', '.join(PROTOCOLS)}")
    return [name for name in PROTOCOLS if name in named]


def ciphers_of(area: SslSettings) -> str:
    """Return the enabled suites of TLS 1.2 in OpenSSL's notation. Raises SettingsError."""
    named = _items(area.cipher_suites)
    for name in named:
        if name not in CIPHER_SUITES:
            raise SettingsError(
                f"setting ssl.cipher_suites: expected names of {', '.join(CIPHER_SUITES)}, found {name!r}"
            )
    if named and PROTOCOLS[0] not in protocols_of(area):
        raise SettingsError("setting ssl.cipher_suites: these are suites of TLSv1.2, which is not enabled")
    return ":".join(CIPHER_SUITES[name] for name in named or CIPHER_SUITES)


def check_ssl(area: SslSettings, *, is_used: bool, is_shared: bool = False) -> None:
    """Check rules that concern several settings. Raises SettingsError.

    `is_used`: a listener uses TLS. `is_shared`: the internal port uses the certificate.
    """
    protocols_of(area)
    ciphers_of(area)
    if is_used and area.certificate_file is None:
        raise SettingsError("setting ssl.certificate_file: unset, but a listener uses SSL, which needs a certificate")
    if not (is_used or is_shared) and area.certificate_file is not None:
        raise SettingsError(
            "setting ssl.certificate_file: set, but no listener uses SSL: add one to listener.listeners, such as "
            "SSL://0.0.0.0:9093"
        )
    if area.key_password is not None and area.key_password_file is not None:
        raise SettingsError("setting ssl.key_password_file: set beside ssl.key_password: remove one of them")
    if area.client_auth != "none" and area.ca_file is None:
        raise SettingsError(
            f"setting ssl.ca_file: unset, but ssl.client_auth is {area.client_auth!r}, which needs the authorities of "
            "client certificates"
        )
    if area.client_auth == "none":
        for name, file in (("ca_file", area.ca_file), ("crl_file", area.crl_file)):
            if file is not None:
                raise SettingsError(
                    f"setting ssl.{name}: set, but ssl.client_auth is 'none': no client is asked for a certificate"
                )


def check_internal_ssl(area: SslSettings) -> None:
    """Check that TLS between nodes has its files. Raises SettingsError."""
    for name in ("certificate_file", "ca_file"):
        if getattr(area, name) is None:
            raise SettingsError(f"setting {area.prefix}{name}: unset, but cluster.internal_tls needs it")


def _items(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
