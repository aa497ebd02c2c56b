"""SCRAM: the exchange of RFC 7677, and clients that do not keep to it."""

import base64
import hashlib
import hmac
import os
from typing import Any

import pytest

from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed
from anabranch.broker.kafka.sasl.scram import (
    CredentialError,
    ScramCredential,
    ScramExchange,
    make_credential,
    parse_credential,
    salt_of,
    salted_password,
)
from tests.broker.kafka.sasl.scram_client import ScramClient

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
PASSWORD = "a password"
SALT = b"the salt of alice"


class Users:
    """Credentials in memory."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.known = {
            (mechanism, name): credential(mechanism, PASSWORD)
            for mechanism in (SHA_256, SHA_512)
            for name in ("alice", "a,b=c")
        }

    def find(self, mechanism: str, user: str) -> ScramCredential | None:
        return self.known.get((mechanism, user))

    def invent(self, mechanism: str, user: str) -> ScramCredential:
        self.asked.append(user)
        return credential(mechanism, "nobody knows it", salt_of(user.encode() * 8))


def credential(mechanism: str, password: str, salt: bytes = SALT, iterations: int = 4096) -> ScramCredential:
    return make_credential(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def exchange(mechanism: str = SHA_256) -> ScramExchange:
    return ScramExchange(mechanism, Users(), os.urandom)


def refused(of: ScramExchange, token: bytes) -> AuthenticationFailed:
    with pytest.raises(AuthenticationFailed) as raised:
        of.answer(token)
    assert not of.is_complete
    with pytest.raises(AuthenticationFailed, match="after the end"):
        of.answer(token)
    return raised.value


def test_the_exchange_of_rfc_7677() -> None:
    made = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")

    class OneUser(Users):
        def find(self, mechanism: str, user: str) -> ScramCredential | None:
            return credential(mechanism, "pencil", made) if user == "user" else None

    server_nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    of = ScramExchange(SHA_256, OneUser(), bytes)
    of._nonce = server_nonce  # noqa: SLF001 - the RFC's is not base64
    first = of.answer(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.decode() == f"r=rOprNGfwEbeRWgbNEkqO{server_nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = f"c=biws,r=rOprNGfwEbeRWgbNEkqO{server_nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert of.answer(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert of.is_complete
    assert of.user == "user"


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize("user", ["alice", "a,b=c"])
def test_both_sides_prove_that_they_know_the_password(mechanism: str, user: str) -> None:
    of, client = exchange(mechanism), ScramClient(user, PASSWORD, mechanism)
    assert client.accepts(of.answer(client.final(of.answer(client.first()))))
    assert (of.is_complete, of.user) == (True, user)
    refused_again = pytest.raises(AuthenticationFailed, match="after the end")
    with refused_again:
        of.answer(b"")


def test_extensions_are_signed_and_ignored() -> None:
    of, client = exchange(), ScramClient("alice", PASSWORD, extensions=",x=1", tail=",y=2")
    assert client.accepts(of.answer(client.final(of.answer(client.first()))))


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [("alice", "another", "wrong password"), ("mallory", PASSWORD, "unknown user"), ("mallory", "nobody knows it", "")],
)
def test_wrong_passwords_and_unknown_users_fail_at_the_same_step(user: str, password: str, reason: str) -> None:
    of, client = exchange(), ScramClient(user, password)
    failure = refused(of, client.final(of.answer(client.first())))
    assert reason in str(failure)
    assert not failure.answer
    assert of.user == user


def test_an_unknown_user_has_the_same_salt_each_time_and_costs_as_much_as_a_known_one() -> None:
    answers = set()
    users = Users()
    for user in ("mallory", "mallory", "alice"):
        of = ScramExchange(SHA_256, users, bytes)
        answers.add(of.answer(ScramClient(user, "x").first()))
    assert len(answers) == 2
    assert users.asked == ["mallory", "mallory", "alice"]


def test_an_unknown_user_costs_the_same_hashes_as_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            done.append(name)
            return function(*arguments)

        return call

    for name in ("digest", "compare_digest"):
        monkeypatch.setattr(hmac, name, counted(name, getattr(hmac, name)))
    monkeypatch.setattr(hashlib, "new", counted("hash", hashlib.new))
    work = {}
    for user in ("alice", "mallory"):
        of, client = exchange(), ScramClient(user, "wrong")
        final = client.final(of.answer(client.first()))
        done.clear()
        refused(of, final)
        work[user] = list(done)
    assert work["alice"] == work["mallory"]
    assert "hash" in work["alice"]


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"", "malformed"),
        (b"n,,", "malformed"),
        (b"n,,n=alice", "malformed"),
        (b"n,,n=alice,r=", "malformed"),
        (b"n,,n=,r=a", "malformed"),
        (b"n,,n=al=ice,r=a", "malformed"),
        (b"n,,n=al,ice,r=a", "malformed"),
        (b"n,,n=al\0ice,r=a", "malformed"),
        (b"n,,r=a,n=alice", "malformed"),
        (b"n,,m=must,n=alice,r=a", "malformed"),
        (b"n,,n=alice,r=a b", "malformed"),
        (b"n,,n=alice,r=a,x", "malformed"),
        (b"n,,n=alice,r=a\n", "malformed"),
        ("n,,n=älice,r=a".encode(), "not ASCII"),
        (b"\xff\xfe", "not ASCII"),
        (b"y,,n=alice,r=a", "channel binding"),
        (b"p=tls-unique,,n=alice,r=a", "channel binding"),
        (b"p=tls-server-end-point,,n=alice,r=a", "channel binding"),
        (b"n,a=bob,n=alice,r=a", "another user"),
        (b"n,,n=alice,r=a,tokenauth=true", "delegation token"),
        (b"c=biws,r=a,p=AAAA", "malformed"),
    ],
)
def test_a_first_message_is_checked(token: bytes, reason: str) -> None:
    assert reason in str(refused(exchange(), token))


@pytest.mark.parametrize("name", ["alice", "a=2Cb=3Dc"])
def test_a_user_may_act_for_himself(name: str) -> None:
    client = ScramClient("alice" if name == "alice" else "a,b=c", PASSWORD, header=f"n,a={name},")
    of = exchange()
    assert client.accepts(of.answer(client.final(of.answer(client.first()))))


def test_every_cut_of_a_final_message_is_refused() -> None:
    for end in range(len(ScramClient("alice", PASSWORD).final(exchange().answer(b"n,,n=alice,r=clientnonce")))):
        of, client = exchange(), ScramClient("alice", PASSWORD)
        refused(of, client.final(of.answer(client.first()))[:end])


def test_a_recorded_final_message_is_worth_nothing() -> None:
    of, client = exchange(), ScramClient("alice", PASSWORD)
    recorded = client.final(of.answer(client.first()))
    of.answer(recorded)
    again = exchange()
    again.answer(client.first())
    assert "another nonce" in str(refused(again, recorded))


@pytest.mark.parametrize("nonce", ["clientnonce", "x", "clientnoncewrong"])
def test_another_nonce_is_refused(nonce: str) -> None:
    of, client = exchange(), ScramClient("alice", PASSWORD, server_nonce=nonce)
    assert "another nonce" in str(refused(of, client.final(of.answer(client.first()))))


@pytest.mark.parametrize("bound", [b"y,,", b"p=tls-unique,,", b"", b"n,a=alice,", b"n,,binding"])
def test_a_final_message_must_repeat_what_the_first_one_said_of_channel_binding(bound: bytes) -> None:
    of, client = exchange(), ScramClient("alice", PASSWORD, bound=bound)
    assert "does not repeat" in str(refused(of, client.final(of.answer(client.first()))))


def test_a_first_message_is_not_accepted_twice() -> None:
    of, client = exchange(), ScramClient("alice", PASSWORD)
    of.answer(client.first())
    assert "malformed" in str(refused(of, client.first()))


def test_a_proof_of_the_other_mechanism_is_refused() -> None:
    of, client = exchange(SHA_512), ScramClient("alice", PASSWORD, SHA_256)
    assert "wrong size" in str(refused(of, client.final(of.answer(client.first()))))


def test_a_credential_with_few_iterations_is_not_used() -> None:
    of = exchange()
    users = Users()
    users.known[SHA_256, "alice"] = credential(SHA_256, PASSWORD, iterations=4095)
    of = ScramExchange(SHA_256, users, os.urandom)
    assert "iterations" in str(refused(of, ScramClient("alice", PASSWORD).first()))


def test_credentials_survive_as_text_and_are_not_shown() -> None:
    made = credential(SHA_512, PASSWORD)
    assert parse_credential(made.to_text()) == made
    assert repr(made) == "ScramCredential(iterations=4096)"
    for damaged in ("", "salt=AA==", made.to_text().replace("salt=", "salt=!"), made.to_text() + "x"):
        with pytest.raises(CredentialError) as raised:
            parse_credential(damaged)
        assert str(raised.value) == "a SCRAM credential in the catalog is damaged"


def test_salts_have_the_form_of_apache_kafkas() -> None:
    made = {salt_of(os.urandom(32)) for _ in range(100)}
    assert len(made) == 100
    assert all(len(each) == 25 and each.isalnum() and each.decode().islower() is not each.isdigit() for each in made)
