"""Kafka's client properties as librdkafka wants them, for the commands that produce and consume.

The properties are checked as for this package's own client first. Private keys reach librdkafka in memory.
"""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from anabranch.client.errors import UnsupportedProperty
from anabranch.client.sasl import OAUTHBEARER
from anabranch.client.settings import ClientSettings, SaslLogin, read_token

_HOST_NAME: Final = "ssl.endpoint.identification.algorithm"
_VERSIONS: Final = "ssl.enabled.protocols"
_BOTH_VERSIONS: Final = frozenset({"TLSv1.2", "TLSv1.3"})
UNKNOWN_LIFE_S: Final = 300
"""A token that does not say when it ends is read again after this time."""


@contextmanager
def librdkafka_properties(
    properties: Mapping[str, str], settings: ClientSettings, servers: str
) -> Iterator[dict[str, object]]:
    """Give librdkafka's properties of a connection; clients must be created inside. Raises PropertyError.

    `settings` are those that `client_settings` made of the same properties.
    """
    found: dict[str, object] = {"bootstrap.servers": servers, "security.protocol": settings.protocol.lower()}
    with ExitStack() as stack:
        if settings.context is not None:
            found |= _tls(properties, stack)
        if settings.sasl is not None:
            found |= _login(settings.sasl)
        yield found


def _tls(properties: Mapping[str, str], stack: ExitStack) -> dict[str, object]:
    from anabranch.client.stores import key_file, read_key_store, read_trust_store  # needs an extra

    names = {each.strip() for each in properties.get(_VERSIONS, ",".join(_BOTH_VERSIONS)).split(",")}
    if not names >= _BOTH_VERSIONS:
        raise UnsupportedProperty(f"property {_VERSIONS}: librdkafka, which produces and consumes, cannot limit this")
    checks = properties.get(_HOST_NAME, "https").strip().lower() == "https"
    found: dict[str, object] = {_HOST_NAME: "https" if checks else "none"}
    trusted = read_trust_store(properties)
    if trusted is not None:
        found["ssl.ca.pem"] = trusted.pem
    shown = read_key_store(properties)
    if shown is not None:
        path = stack.enter_context(key_file(shown))
        found |= {"ssl.certificate.location": path, "ssl.key.location": path}
    return found


def _login(sasl: SaslLogin) -> dict[str, object]:
    if sasl.mechanism == OAUTHBEARER:
        return {"sasl.mechanism": sasl.mechanism, "oauth_cb": token_source(sasl)}
    if sasl.has_delegation_token:
        raise UnsupportedProperty(
            "property sasl.jaas.config: librdkafka, which produces and consumes, has no delegation tokens (tokenauth)"
        )
    return {"sasl.mechanism": sasl.mechanism, "sasl.username": sasl.user, "sasl.password": sasl.password}


def token_source(sasl: SaslLogin) -> Callable[[str], tuple[str, float]]:
    """Return librdkafka's callback, which gives a token and when it ends, in seconds since the epoch."""

    def current(_config: str) -> tuple[str, float]:
        token = read_token(sasl)
        return token, _end_of(token)

    return current


def _end_of(token: str) -> float:
    unknown = time.time_ns() / 1e9 + UNKNOWN_LIFE_S
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims.get("exp", unknown))
    except (IndexError, ValueError, AttributeError, TypeError):
        return unknown
