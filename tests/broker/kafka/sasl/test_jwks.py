"""Key sets: what is in them, files that change, and a provider that changes its keys or is down."""

import json
import warnings
from http.client import BadStatusLine
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey
from structlog.testing import capture_logs

from anabranch.broker.kafka.sasl import jwks
from anabranch.broker.kafka.sasl.jwks import BYTES_MAX, Jwks, JwksError, parse_keys
from tests.broker.kafka.sasl.provider import ec_key, key_set, okp_key, provider_of, rsa_key


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def small_key() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rsa_key("small", 1024).as_dict(private=False)


def test_public_keys_for_signatures_are_used_and_others_left_out() -> None:
    entries = json.loads(key_set(rsa_key(), ec_key()))["keys"]
    others: list[Any] = [
        OctKey.import_key(b"a secret of 32 bytes............").as_dict(),
        {**entries[0], "use": "enc", "kid": "enc"},
        {**entries[0], "n": "!", "kid": "broken"},
        okp_key().as_dict(private=False),
        {"kty": "RSA"},
        {"kty": "new"},
        small_key(),
        rsa_key("private").as_dict(private=True),
        "text",
    ]
    keys = parse_keys(json.dumps({"keys": [*others, *entries]}).encode())
    assert [(key.kid, key.key_type) for key in keys] == [("rsa", "RSA"), ("ec", "EC")]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected a JSON web key set"),
        (b"<html>", "expected a JSON web key set"),
        (b"[]", "expected a JSON web key set"),
        (b'{"keys": 5}', "expected a JSON web key set"),
        (b"[" * 100_000, "expected a JSON web key set"),
        (b'{"keys": []}', "there is no public key for signatures"),
    ],
)
def test_other_content_is_refused(content: bytes, expected: str) -> None:
    with pytest.raises(JwksError, match=expected):
        parse_keys(content)


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(JwksError, match=r"sasl.oauthbearer_jwks_url: file://.*: No such file"):
        Jwks(path.as_uri(), refresh_s=1, clock=Clock())
    path.write_bytes(key_set(rsa_key("a")))
    keys = Jwks(path.as_uri(), refresh_s=1, clock=Clock())
    assert [key.kid for key in await keys.find(None, "RSA")] == ["a"]
    path.write_bytes(key_set(rsa_key("a"), rsa_key("b")))
    keys.look()
    assert not await keys.find("b", "RSA"), "it may still be written"
    keys.look()
    assert [key.kid for key in await keys.find("b", "RSA")] == ["b"]
    assert not await keys.find("b", "EC")
    path.write_text("broken")
    with capture_logs() as logs:
        for _ in range(3):
            keys.look()
    assert len(logs) == 1
    assert await keys.find("a", "RSA")


async def test_a_key_that_is_not_known_is_looked_for_but_not_too_often() -> None:
    clock = Clock()
    with provider_of(rsa_key("a")) as provider:
        keys = Jwks(provider.url, refresh_s=3600, clock=clock)
        assert await keys.find("a", "RSA")
        provider.content = key_set(rsa_key("b"))
        assert not await keys.find("b", "RSA")
        assert provider.asked == 1
        clock.now_s = 10
        assert await keys.find("b", "RSA")
        assert not await keys.find("a", "RSA"), "a key that is withdrawn is worth nothing"
        for _ in range(5):
            await keys.find("made up", "RSA")
        assert provider.asked == 2


async def test_the_keys_of_before_remain_when_the_provider_is_down_or_answers_nonsense() -> None:
    clock = Clock()
    with provider_of(rsa_key("a")) as provider, capture_logs() as logs:
        keys = Jwks(provider.url, refresh_s=3600, clock=clock)
        assert await keys.find("a", "RSA")
        good = provider.content
        for status, content in ((500, good), (302, good), (200, b"nonsense"), (200, bytes(BYTES_MAX + 1))):
            provider.status, provider.content = status, content
            clock.now_s += 10
            assert not await keys.find("b", "RSA")
        assert provider.asked == 5, "it does not follow to another place"
        provider.server.server_close()
        clock.now_s += 10
        assert not await keys.find("b", "RSA")
        assert await keys.find("a", "RSA")
    assert len([line for line in logs if line["log_level"] == "error"]) == 5


async def test_keys_that_could_not_be_read_are_asked_for_again_after_a_second_and_reported_once() -> None:
    clock = Clock()
    with provider_of(rsa_key("a")) as provider, capture_logs() as logs:
        provider.status = 500
        keys = Jwks(provider.url, refresh_s=3600, clock=clock)
        for now_s, asked in ((0, 1), (0.9, 1), (1, 2)):
            clock.now_s = now_s
            assert not await keys.find("a", "RSA")
            assert provider.asked == asked
        provider.status = 200
        clock.now_s = 2
        assert await keys.find("a", "RSA")
    assert [line["log_level"] for line in logs] == ["error", "info"]


async def test_an_answer_that_is_not_http_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: str) -> bytes:
        raise BadStatusLine("nonsense")

    monkeypatch.setattr(jwks, "_download", answer)
    keys = Jwks("https://provider.example/keys", refresh_s=3600, clock=Clock())
    with capture_logs() as logs:
        assert not await keys.find("a", "RSA")
    assert [line["log_level"] for line in logs] == ["error"]


def test_no_entry_of_a_set_does_harm() -> None:
    """Fields of every type and content, beside a key that is in order."""
    good = rsa_key().as_dict(private=False)
    values: list[Any] = [None, 5, -1, 1e300, True, "", "!", "AQAB", "A" * 10_000, [], {}, ["sig"], {"a": 1}]
    entries = [
        {**base, field: value}
        for base in (good, ec_key().as_dict(private=False))
        for field in ("kty", "n", "e", "crv", "x", "y", "d", "kid", "alg", "use", "key_ops", "x5c")
        for value in values
    ]
    for entry in entries:
        assert parse_keys(json.dumps({"keys": [entry, good]}).encode())
