"""OAUTHBEARER: messages, tokens that are valid, and those that are not."""

import base64
import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256

from anabranch.broker.kafka.sasl.jwks import parse_keys
from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed
from anabranch.broker.kafka.sasl.oauthbearer import OauthExchange, PublicKey, TokenRules
from tests.broker.kafka.sasl.provider import (
    AUDIENCE,
    ISSUER,
    NOW_S,
    claims,
    ec_key,
    key_set,
    message,
    raw_token,
    rsa_key,
    sign,
)

RULES = TokenRules(ISSUER, (AUDIENCE, "other"), ("read",), "scope", "sub", 30)
KEYS = (rsa_key(), ec_key())


class Known:
    """The keys of a set, without a source."""

    def __init__(self) -> None:
        self._keys = parse_keys(key_set(*KEYS))

    async def find(self, kid: str | None, key_type: str) -> Sequence[PublicKey]:
        return [key for key in self._keys if key.key_type == key_type and kid in (None, key.kid)]


async def log_in(data: bytes, rules: TokenRules = RULES, now_s: int = NOW_S) -> OauthExchange:
    exchange = OauthExchange(Known(), rules, lambda: now_s * 1000)
    try:
        assert await exchange.step(data) == b""
    except AuthenticationFailed:
        assert not exchange.is_complete
        raise
    assert exchange.is_complete
    with pytest.raises(AuthenticationFailed, match="after the end"):
        await exchange.step(data)
    return exchange


async def refused(data: bytes, reason: str, rules: TokenRules = RULES) -> AuthenticationFailed:
    with pytest.raises(AuthenticationFailed) as raised:
        await log_in(data, rules)
    assert reason in str(raised.value)
    assert str(raised.value).isprintable()
    return raised.value


@pytest.mark.parametrize(
    ("key", "alg"),
    [
        *((rsa_key(), alg) for alg in ("RS256", "RS384", "RS512", "PS256", "PS512")),
        (ec_key(), "ES256"),
    ],
)
async def test_a_token_of_the_provider_is_accepted_and_ends_the_session(key: Any, alg: str) -> None:
    for header in ({}, {"kid": None}):
        exchange = await log_in(message(sign(key, claims(), alg, **header)))
        assert (exchange.user, exchange.expires_ms) == ("alice", (NOW_S + 600) * 1000)


async def test_claims_may_have_other_names_and_forms() -> None:
    rules = replace(RULES, user_claim="email", scope_claim="scp", audiences=(), issuer="")
    content = claims(sub=None, scope=None, iss=None, aud=None, email="a@b", scp=["write", "read"], exp=NOW_S + 1.5)
    exchange = await log_in(message(sign(rsa_key(), content)), rules)
    assert (exchange.user, exchange.expires_ms) == ("a@b", NOW_S * 1000 + 1500)
    await log_in(message(sign(rsa_key(), claims(aud=["x", "other"]))))


async def test_clocks_may_differ_a_little() -> None:
    for changed in ({"exp": NOW_S - 29}, {"iat": NOW_S + 30}, {"nbf": NOW_S + 30}):
        await log_in(message(sign(rsa_key(), claims(**changed))))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": NOW_S - 30}, "has expired"),
        ({"exp": None}, "does not say when"),
        ({"iat": None}, "does not say when"),
        ({"exp": "tomorrow"}, "'exp' of the token is not a time"),
        ({"exp": True}, "'exp' of the token is not a time"),
        ({"exp": 1e300}, "'exp' of the token is not a time"),
        ({"exp": float("nan")}, "'exp' of the token is not a time"),
        ({"exp": -1}, "'exp' of the token is not a time"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "somebody"}, "another audience"),
        ({"aud": ["somebody", 1]}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"scope": "write"}, "scopes"),
        ({"scope": None}, "scopes"),
        ({"scope": 5}, "scopes"),
        ({"sub": None}, "names no user"),
        ({"sub": " "}, "names no user"),
        ({"sub": 5}, "names no user"),
    ],
)
async def test_claims_are_checked(changed: dict[str, Any], reason: str) -> None:
    failure = await refused(message(sign(rsa_key(), claims(**changed))), reason)
    assert failure.answer == '{"status":"invalid_token"}'


async def test_a_token_without_a_signature_is_refused() -> None:
    for alg in ("none", "None", "NONE", ""):
        await refused(message(raw_token({"alg": alg}, claims())), "algorithm")


async def test_a_public_key_is_not_taken_for_a_secret() -> None:
    for secret in (rsa_key().as_pem(private=False), rsa_key().as_der(private=False), key_set(rsa_key())):
        for alg, name in (("HS256", "sha256"), ("HS384", "sha384"), ("HS512", "sha512")):
            unsigned = raw_token({"alg": alg, "kid": "rsa"}, claims()).rstrip(".")
            signature = base64.urlsafe_b64encode(hmac.digest(secret, unsigned.encode(), name)).decode().rstrip("=")
            await refused(message(f"{unsigned}.{signature}"), "algorithm")


async def test_keys_of_the_client_are_not_used() -> None:
    mine = rsa_key("mine")
    for header in ({"jwk": mine.as_dict(private=False)}, {"jku": "http://127.0.0.1/"}, {"x5u": "http://127.0.0.1/"}):
        await refused(message(sign(mine, claims(), **header)), "no key")
        await refused(message(sign(mine, claims(), kid="rsa", **header)), "no key")


async def test_a_token_that_is_changed_is_refused() -> None:
    head, body, signature = sign(rsa_key(), claims()).split(".")
    other = sign(rsa_key(), claims(sub="admin")).split(".")[1]
    for token in (f"{head}.{other}.{signature}", f"{head}.{body}.{signature[:-8]}AAAAAAAA", f"{head}.{body}.AAAA"):
        await refused(message(token), "no key")
    await refused(message(sign(ec_key(), claims(), "ES256", kid="rsa")), "no key")
    await refused(message(f"{head}.{body}.{signature}."), "malformed")
    await refused(message(f"{head}.{body}"), "malformed")
    nested = base64.urlsafe_b64encode(b"[" * 20_000).decode().rstrip("=")
    await refused(message(f"{nested}.{body}.{signature}"), "malformed")
    await refused(message(raw_token({"alg": ["RS256"]}, claims())), "malformed")
    await refused(message(raw_token({"alg": "RS256", "kid": 5}, claims())), "malformed")


async def test_headers_of_providers_are_ignored_unless_they_are_critical() -> None:
    await log_in(message(sign_with_header(nonce="x", x5c=["A" * 3000])))
    await refused(message(sign_with_header(crit=["x"], x=1)), "no key")


def sign_with_header(**header: Any) -> str:
    """A token with a header that joserfc does not make."""
    unsigned = raw_token({"alg": "RS256", "kid": "rsa", **header}, claims()).rstrip(".")
    key = rsa_key().get_op_key("sign")
    signature = key.sign(unsigned.encode(), PKCS1v15(), SHA256())
    return f"{unsigned}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


async def test_a_user_acts_for_himself_only() -> None:
    token = sign(rsa_key(), claims())
    await log_in(message(token, "alice"))
    await log_in(message(token, pairs="extension=value\x01"))
    failure = await refused(message(token, "bob"), "another user")
    assert failure.answer.endswith("id (bob) that is different from the token's principal name (alice)")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"n,,", "malformed"),
        (b"n,,\x01\x01", "no bearer token"),
        (b"n,,\x01auth=Basic abc\x01\x01", "no bearer token"),
        (b"n,,\x01auth=Bearer a b\x01\x01", "no bearer token"),
        (b"n,,\x01auth=Bearer abc\x01", "malformed"),
        (b"n,,\x01auth=Bearer abc\x01\x01", "token is malformed"),
        (b"y,,\x01auth=Bearer abc\x01\x01", "malformed"),
        (b"n,,\x01auth=Bearer \xff\x01\x01", "not ASCII"),
        (b"\x01", "malformed"),
    ],
)
async def test_messages_are_checked(data: bytes, reason: str) -> None:
    await refused(data, reason)
