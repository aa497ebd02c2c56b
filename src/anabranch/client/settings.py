"""Settings of a connection, made of Kafka's client properties: from a file, the environment, and single ones.

Secrets come from the file or the environment, and never from a command line, which others can read. Errors name the
property, and do not show its value unless it is a name, a path or a protocol.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from anabranch.client.errors import PropertyError, UnsupportedProperty
from anabranch.client.properties import (
    BOOTSTRAP_SERVERS,
    IGNORED,
    JAAS_CONFIG,
    KNOWN,
    SECURITY_PROTOCOL,
    environment_name,
    is_secret,
    parse_jaas,
    parse_properties,
)
from anabranch.client.sasl import MECHANISMS, OAUTHBEARER, PLAIN
from anabranch.extras import needed

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CERTIFICATES: Final = ("ssl.keystore.location", "ssl.keystore.key", "ssl.certificate.location")
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - a name


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """Login of a client."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    has_delegation_token: bool = False
    """True if user and password are those of a delegation token."""
    token_file: Path | None = None
    """OAUTHBEARER: the file with the token, read for each connection."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Protection of a connection."""

    context: ssl.SSLContext | None = None
    """TLS; None: the connection is not encrypted."""
    shows_certificate: bool = False
    """True if the client has a certificate of its own."""
    sasl: SaslLogin | None = None
    """None: the client does not authenticate itself by SASL."""
    trusted: str = "the authorities of this machine"
    """Name of the trust store in errors."""

    @property
    def protocol(self) -> str:
        """Value of `security.protocol`."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.context else "PLAINTEXT")


def gather(
    file: Path | None = None, single: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the properties of a file, the environment and single ones, of which the later win. Raises PropertyError.

    Single ones must be known and not secret.
    """
    found = {} if file is None else read_properties(file)
    for name in KNOWN:
        if environment is not None and environment_name(name) in environment:
            found[name] = environment[environment_name(name)]
    for name, value in (single or {}).items():
        if is_secret(name):
            raise PropertyError(
                f"property {name} is a secret: it must not be on a command line, where others can read it. Put it "
                f"into a file of properties, or into the environment variable {environment_name(name)}"
            )
        if name not in KNOWN:
            raise PropertyError(f"property {name}: unknown; known are {', '.join(each for each in KNOWN)}")
        found[name] = value
    return found


def read_properties(file: Path) -> dict[str, str]:
    """Return the properties of a file. Raises PropertyError."""
    try:
        # Java reads the file in this encoding, in which no byte is invalid.
        text = file.read_text(encoding="latin-1")
    except OSError as error:
        raise PropertyError(f"{file}: {error.strerror or error}") from None
    return parse_properties(text, str(file))


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    """Return the settings that properties describe, with the files that they name. Raises PropertyError."""
    unsupported = [name for name in properties if name not in KNOWN and not IGNORED.fullmatch(name)]
    if unsupported:
        raise UnsupportedProperty(f"property {unsupported[0]}: not supported here; known are {', '.join(KNOWN)}")
    protocol = properties.get(SECURITY_PROTOCOL, "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        # Not shown: in a damaged file it may be anything.
        raise PropertyError(f"property {SECURITY_PROTOCOL}: expected one of {', '.join(PROTOCOLS)}")
    context = _context(properties) if protocol.endswith("SSL") else None
    sasl = _login(properties) if protocol.startswith("SASL") else None
    shows = context is not None and any(name in properties for name in _CERTIFICATES)
    return ClientSettings(context, shows, sasl, _trusted(properties))


def bootstrap_of(properties: Mapping[str, str]) -> str | None:
    """Return the addresses of nodes to connect to first, if properties name them."""
    return properties.get(BOOTSTRAP_SERVERS) or None


def _checks_host_name(properties: Mapping[str, str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = properties.get(name, "https").strip().lower()
    if algorithm not in {"https", "none", ""}:
        raise PropertyError(f"property {name}: expected https, or nothing for no check of the host name")
    return algorithm == "https"


def _context(properties: Mapping[str, str]) -> ssl.SSLContext:
    with needed("a connection with TLS"):
        from anabranch.client.stores import read_key_store, read_trust_store, show, trust
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = _checks_host_name(properties)
    names = [each.strip() for each in properties.get("ssl.enabled.protocols", ",".join(_VERSIONS)).split(",")]
    versions = [version for name, version in _VERSIONS.items() if name in names]
    if not versions:
        raise PropertyError(f"property ssl.enabled.protocols: expected {' or '.join(_VERSIONS)}")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    trusted = read_trust_store(properties)
    if trusted is None:
        context.load_default_certs()
    else:
        trust(context, trusted)
    shown = read_key_store(properties)
    if shown is not None:
        show(context, shown)
    return context


def _trusted(properties: Mapping[str, str]) -> str:
    for name in ("ssl.truststore.location", "ssl.ca.location"):
        if name in properties:
            return properties[name]
    return "ssl.truststore.certificates" if "ssl.truststore.certificates" in properties else ClientSettings().trusted


def _login(properties: Mapping[str, str]) -> SaslLogin:
    mechanism = properties.get("sasl.mechanism", "").strip().upper()
    if mechanism not in MECHANISMS:
        kind = UnsupportedProperty if mechanism in {"", "GSSAPI"} else PropertyError
        raise kind(f"property sasl.mechanism: expected one of {', '.join(MECHANISMS)}")
    login = parse_jaas(properties[JAAS_CONFIG]) if JAAS_CONFIG in properties else None
    module = {PLAIN: "PlainLoginModule", OAUTHBEARER: "OAuthBearerLoginModule"}.get(mechanism, "ScramLoginModule")
    if login is not None and login.module != module:
        raise PropertyError(f"property {JAAS_CONFIG}: the mechanism {mechanism} needs the module {module}")
    if mechanism == OAUTHBEARER:
        return SaslLogin(mechanism, token_file=_token_file(properties))
    options = {} if login is None else login.options
    user = properties.get("sasl.username", options.get("username", ""))
    password = properties.get("sasl.password", options.get("password", ""))
    for name, value in (("username", user), ("password", password)):
        if not value or "\0" in value:
            variable = environment_name(f"sasl.{name}")
            raise PropertyError(
                f"the mechanism {mechanism} needs a {name}: set {JAAS_CONFIG} or sasl.{name} in a file of properties, "
                f"or the environment variable {variable}"
            )
    return SaslLogin(mechanism, user, password, has_delegation_token=options.get("tokenauth", "").lower() == "true")


def _token_file(properties: Mapping[str, str]) -> Path:
    found = urlsplit(properties.get(_TOKEN_URL, ""))
    if found.scheme != "file" or found.netloc or not found.path:
        raise UnsupportedProperty(f"property {_TOKEN_URL}: expected file:///PATH of a file with a token")
    return Path(unquote(found.path))


def read_token(sasl: SaslLogin) -> str:
    """Return the token of OAUTHBEARER. Raises PropertyError."""
    assert sasl.token_file is not None, "checked with the settings"
    try:
        return sasl.token_file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise PropertyError(f"{sasl.token_file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise PropertyError(f"{sasl.token_file}: there is no token in this file") from None
