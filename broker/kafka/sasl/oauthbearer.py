"""OAUTHBEARER (RFC 7628, KIP-255, KIP-768): clients with signed JSON web tokens (RFC 7519) of an identity provider.

    n,a=authzid,^Aauth=Bearer TOKEN^A^A             ->      (^A is the byte 1)
                                                    <-      nothing, or the error of SaslAuthenticate

A token is accepted if a key of the provider has signed it, by an algorithm with a public key, and its claims are as the
settings say. So a token without a signature (`none`), and one signed with a public key as if it were a secret (HS256),
are refused. The session ends with the token. RFC 7628 answers a wrong token with a challenge first; SaslAuthenticate
has an error of its own, which is sent at once.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed

ALGORITHMS: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
}
"""Algorithms by the type of the public key (RFC 7518)."""


class _Registry(JWSRegistry):
    """Limits of headers: providers add certificates and parameters of their own, which are ignored."""

    max_header_length = 16 << 10


_REGISTRIES: Final = {
    kind: _Registry(algorithms=names, strict_check_header=False) for kind, names in ALGORITHMS.items()
}
EXPIRES_MAX_S: Final = 253_402_300_800
"""A token that expires after the year 9999 is invalid: its lifetime would not fit into an answer."""
REFUSAL: Final = '{"status":"invalid_token"}'
_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_MESSAGE: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")

PublicKey = RSAKey | ECKey


class Keys(Protocol):
    """The public keys of the provider."""

    async def find(self, kid: str | None, key_type: str) -> Sequence[PublicKey]:
        """Return the keys that may have signed a token: those with the id, or all of the type if it names none."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Claims that a token must have."""

    issuer: str
    """Empty: any."""
    audiences: Sequence[str]
    """One of them. Empty: any."""
    scopes: Sequence[str]
    """All of them."""
    scope_claim: str
    user_claim: str
    clock_skew_s: int


class OauthExchange:
    """One exchange: a single token."""

    uses_delegation_token = False

    def __init__(self, keys: Keys, rules: TokenRules, now_ms: Callable[[], int]) -> None:
        self._keys = keys
        self._rules = rules
        self._now_ms = now_ms
        self._ended = False
        self.user = ""
        self.is_complete = False
        self.expires_ms: int | None = None

    async def step(self, token: bytes) -> bytes:
        """Return the answer to the message, which is empty. Raises AuthenticationFailed."""
        if self._ended:
            raise AuthenticationFailed("a token after the end of the exchange")
        self._ended = True
        authzid, encoded = parse_message(token)
        claims = await self._verify(encoded)
        self.user = user = check_claims(claims, self._rules, self._now_ms() // 1000)
        if authzid and authzid != user:
            raise AuthenticationFailed(
                "the client wants to act for another user",
                answer=f"Authentication failed: Client requested an authorization id ({authzid}) that is different "
                f"from the token's principal name ({user})",
            )
        self.expires_ms = int(claims["exp"] * 1000)
        self.is_complete = True
        return b""

    async def _verify(self, encoded: str) -> dict[str, Any]:
        """Return the claims of a token whose signature is right. Raises AuthenticationFailed."""
        header = parse_header(encoded)
        key_type = next((kind for kind, names in ALGORITHMS.items() if header["alg"] in names), None)
        if key_type is None:
            raise _invalid("the token is not signed by an algorithm that is accepted")
        for key in await self._keys.find(header.get("kid"), key_type):
            try:
                claims = jwt.decode(encoded, key, registry=_REGISTRIES[key_type]).claims
            except (JoseError, ValueError, TypeError):
                continue
            return claims
        raise _invalid("no key of the provider has signed the token")


def parse_message(message: bytes) -> tuple[str, str]:
    """Return the name to act for, and the token. Raises AuthenticationFailed."""
    try:
        found = _MESSAGE.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        raise AuthenticationFailed("the message is not ASCII") from None
    if found is None:
        raise AuthenticationFailed("the message is malformed")
    pairs = dict(pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair)
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise AuthenticationFailed("the message has no bearer token")
    return (found["authzid"] or "").replace("=2C", ",").replace("=3D", "="), bearer["token"]


def parse_header(encoded: str) -> dict[str, Any]:
    """Return the header of a token, which is not verified yet. Raises AuthenticationFailed."""
    try:
        head, _, _ = encoded.split(".")
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        raise _invalid("the token is malformed") from None
    if (
        not isinstance(header, dict)
        or not isinstance(header.get("alg"), str)
        or not isinstance(header.get("kid", ""), str)
    ):
        raise _invalid("the header of the token is malformed")
    return header


def check_claims(claims: dict[str, Any], rules: TokenRules, now_s: int) -> str:
    """Return the user of a token that is valid now, in seconds since 1970. Raises AuthenticationFailed."""
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if expires is None or issued is None:
        raise _invalid("the token does not say when it was issued and expires")
    not_before = _time(claims, "nbf")
    if expires + rules.clock_skew_s <= now_s:
        raise _invalid("the token has expired")
    if max(issued, not_before or issued) - rules.clock_skew_s > now_s:
        raise _invalid("the token is not valid yet")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise _invalid("the token is of another issuer")
    if rules.audiences and not set(_texts(claims.get("aud"))) & set(rules.audiences):
        raise _invalid("the token is for another audience")
    scope = claims.get(rules.scope_claim)
    if not set(rules.scopes) <= set(scope.split() if isinstance(scope, str) else _texts(scope)):
        raise _invalid("the token does not have the scopes that are required")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise _invalid(f"the token names no user in the claim {rules.user_claim!r}")
    return user


def _time(claims: dict[str, Any], name: str) -> float | None:
    """Return a time of a token; None if there is none. Raises AuthenticationFailed."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"the claim {name!r} of the token is not a time")
    if (isinstance(value, float) and not math.isfinite(value)) or not 0 <= value <= EXPIRES_MAX_S:
        raise _invalid(f"the claim {name!r} of the token is not a time")
    return value


def _texts(value: object) -> Sequence[str]:
    """Return a claim that is a text or a list of texts; nothing if it is something else."""
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _invalid(reason: str) -> AuthenticationFailed:
    return AuthenticationFailed(reason, answer=REFUSAL)
