"""Settings of SASL, and rules that concern several of them. Names are Kafka's where it has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from anabranch.addresses import is_loopback
from anabranch.broker.node.settings.area import CENTURY_MS, KIB, Area, Bytes, setting
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.listeners import Listener
from anabranch.broker.node.settings.mechanisms import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512


@dataclass(frozen=True, kw_only=True)
class SaslSettings(Area):
    """Authentication of clients by SASL, at the listeners whose protocol is SASL_SSL or SASL_PLAINTEXT."""

    enabled_mechanisms: str = setting(
        default=f"{SCRAM_SHA_512},{SCRAM_SHA_256}",
        description=(
            "Mechanisms that clients may use, separated by commas (Kafka: sasl.enabled.mechanisms): "
            "SCRAM-SHA-512, SCRAM-SHA-256, OAUTHBEARER, PLAIN."
        ),
    )
    plain_users_file: Path | None = setting(
        default=None,
        description=(
            "File with the users of PLAIN, each a line from `anabranch user hash`. It is read again when it changes."
        ),
    )
    oauthbearer_jwks_url: str = setting(
        default="",
        description=(
            "The identity provider's public keys, a JSON web key set (Kafka: "
            "sasl.oauthbearer.jwks.endpoint.url): https://..., or file:///PATH; http on loopback only."
        ),
    )
    oauthbearer_jwks_refresh_ms: int = setting(
        default=3_600_000,
        ge=1000,
        le=CENTURY_MS,
        description=(
            "Time after which the keys are read again (Kafka: sasl.oauthbearer.jwks.endpoint.refresh.ms). "
            "Unknown keys are looked for at once."
        ),
    )
    oauthbearer_expected_issuer: str = setting(
        default="", description="Issuer of tokens (Kafka: sasl.oauthbearer.expected.issuer). Empty: any."
    )
    oauthbearer_expected_audience: str = setting(
        default="",
        description=(
            "Audiences, separated by commas, of which a token must name one (Kafka: "
            "sasl.oauthbearer.expected.audience). Empty: any."
        ),
    )
    oauthbearer_required_scopes: str = setting(
        default="", description="Scopes, separated by commas, that a token must have. Empty: none."
    )
    oauthbearer_scope_claim_name: str = setting(
        default="scope",
        min_length=1,
        description="Claim with the scopes of a token (Kafka: sasl.oauthbearer.scope.claim.name).",
    )
    oauthbearer_sub_claim_name: str = setting(
        default="sub",
        min_length=1,
        description="Claim with the name of the user (Kafka: sasl.oauthbearer.sub.claim.name).",
    )
    oauthbearer_clock_skew_s: int = setting(
        default=30,
        ge=0,
        le=3600,
        description="Difference of clocks that is allowed for (Kafka: sasl.oauthbearer.clock.skew.seconds).",
    )
    server_max_receive_bytes: Bytes = setting(
        default=32 * KIB,
        ge=KIB,
        le=2**31 - 1,
        description=(
            "Largest request before authentication (Kafka: sasl.server.max.receive.size, with a default of "
            "512KiB). A larger one closes its connection."
        ),
    )
    authentication_timeout_ms: int = setting(
        default=10_000,
        ge=10,
        description="Time that a client has to authenticate itself before it is disconnected.",
    )
    failed_authentication_delay_ms: int = setting(
        default=100,
        ge=0,
        le=60_000,
        description=(
            "Delay of the answer to a failed authentication, in which the connection is not read (Kafka: "
            "connection.failed.authentication.delay.ms)."
        ),
    )
    max_reauth_ms: int = setting(
        default=0,
        ge=0,
        le=CENTURY_MS,
        description=(
            "Time after which a client must authenticate itself again, or is disconnected at its next request "
            "(KIP-368; Kafka: connections.max.reauth.ms). 0: never."
        ),
    )


def mechanisms_of(area: SaslSettings, by_listener: str, listener: str) -> Sequence[str]:
    """Return the mechanisms of a listener, in the order of the settings. Raises SettingsError."""
    own = _by_listener(by_listener).get(listener)
    return own or _check_mechanisms("sasl.enabled_mechanisms", items_of(area.enabled_mechanisms))


def check_sasl(area: SaslSettings, by_listener: str, listeners: Sequence[Listener]) -> None:
    """Check rules that concern several settings. Raises SettingsError."""
    used = {each.name: mechanisms_of(area, by_listener, each.name) for each in listeners if each.protocol.uses_sasl}
    for name in _by_listener(by_listener):
        if name not in used:
            raise SettingsError(
                f"setting listener.sasl_mechanisms: {name} is not a listener with protocol SASL_SSL or SASL_PLAINTEXT"
            )
    if any(not mechanisms for mechanisms in used.values()):
        raise SettingsError(f"setting sasl.enabled_mechanisms: empty: expected one of {', '.join(MECHANISMS)}")
    takes_passwords = any(PLAIN in mechanisms for mechanisms in used.values())
    if takes_passwords and area.plain_users_file is None:
        raise SettingsError("setting sasl.plain_users_file: unset, but a listener has the mechanism PLAIN")
    if area.plain_users_file is not None and not takes_passwords:
        raise SettingsError("setting sasl.plain_users_file: set, but no listener has the mechanism PLAIN")
    _check_tokens(area, is_used=any(OAUTHBEARER in mechanisms for mechanisms in used.values()))


def _check_tokens(area: SaslSettings, *, is_used: bool) -> None:
    """Check the place of the keys of OAUTHBEARER. Raises SettingsError."""
    url = area.oauthbearer_jwks_url
    if is_used and not url:
        raise SettingsError("setting sasl.oauthbearer_jwks_url: empty, but a listener has the mechanism OAUTHBEARER")
    if url and not is_used:
        raise SettingsError("setting sasl.oauthbearer_jwks_url: set, but no listener has the mechanism OAUTHBEARER")
    try:
        found = urlsplit(url)
        host = found.hostname
    except ValueError:
        raise SettingsError(f"setting sasl.oauthbearer_jwks_url: not a URL: {url!r}") from None
    is_file = found.scheme == "file" and not found.netloc and found.path.startswith("/")
    is_web = (found.scheme == "https" and host) or (found.scheme == "http" and is_loopback(host or ""))
    if url and not is_file and not is_web:
        raise SettingsError(
            f"setting sasl.oauthbearer_jwks_url: expected https://HOST/PATH or file:///PATH, found {url!r}"
        )


def _by_listener(text: str) -> Mapping[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {}
    for part in items_of(text):
        name, separator, mechanism = (each.strip().upper() for each in part.partition(":"))
        if not name or not separator:
            raise SettingsError(
                f"setting listener.sasl_mechanisms: expected NAME:MECHANISM, such as SASL_SSL:SCRAM-SHA-512, "
                f"found {part!r}"
            )
        found[name] = _check_mechanisms("listener.sasl_mechanisms", [*found.get(name, ()), mechanism])
    return found


def _check_mechanisms(setting: str, named: Sequence[str]) -> Sequence[str]:
    for name in named:
        if name not in MECHANISMS:
            raise SettingsError(f"setting {setting}: expected mechanisms of {', '.join(MECHANISMS)}, found {name!r}")
    return list(dict.fromkeys(named))


def items_of(text: str) -> list[str]:
    """Return the parts of a setting that is a list."""
    return [part.strip() for part in text.split(",") if part.strip()]
