"""PLAIN: messages, the file of users, and passwords that are checked."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.sasl.mechanism import AuthenticationFailed
from broker.sasl.plain import PlainExchange, PlainUsers, UsersFileError, hash_password, parse_hash, parse_plain

ALICE, BOB = "alice:" + hash_password("pässword", b"s" * 16).to_text(), hash_password("x", b"t" * 16).to_text()
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(*lines: str) -> Path:
        path = tmp_path / "users"
        path.write_text("\n".join(lines))
        return path

    return written


@pytest.mark.parametrize(
    ("token", "reason", "answer"),
    [
        (b"", "1 parts", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice", "1 parts", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0alice", "2 parts", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0a\0b\0c", "5 parts", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0password", "name of the user is empty", "Authentication failed: username not specified"),
        (b"\0alice\0", "password is empty", "Authentication failed: password not specified"),
        (b"\0alice\0\xff", "not UTF-8", ""),
    ],
)
def test_malformed_messages_are_refused_without_being_shown(token: bytes, reason: str, answer: str) -> None:
    with pytest.raises(AuthenticationFailed) as raised:
        parse_plain(token)
    assert reason in str(raised.value)
    assert raised.value.answer == answer


async def step(users: PlainUsers, token: bytes) -> PlainExchange:
    exchange = PlainExchange(users)
    assert await exchange.step(token) == b""
    return exchange


async def test_users_are_authenticated_by_their_passwords(write: Write) -> None:
    users = PlainUsers(write("# users", "", ALICE, f"b:ob:{BOB}"), os.urandom)
    for token, name in (("\0alice\0pässword", "alice"), ("alice\0alice\0pässword", "alice"), ("\0b:ob\0x", "b:ob")):
        for _ in range(2):
            exchange = await step(users, token.encode())
            assert (exchange.user, exchange.is_complete) == (name, True)
    for token in ("\0alice\0x", "\0b:ob\0pässword", "\0mallory\0x", "\0alice\0pässword ", "\0Alice\0pässword"):
        with pytest.raises(AuthenticationFailed) as raised:
            await step(users, token.encode())
        assert raised.value.answer == "Authentication failed: Invalid username or password"
    with pytest.raises(AuthenticationFailed) as raised:
        await step(users, "bob\0alice\0pässword".encode())
    assert "authorization id that is different" in raised.value.answer
    exchange = await step(users, b"\0b:ob\0x")
    with pytest.raises(AuthenticationFailed, match="after the end"):
        await exchange.step(b"\0b:ob\0x")


async def test_an_unknown_user_costs_a_hash_and_a_password_that_was_right_none(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []
    scrypt = hashlib.scrypt

    def counted(password: bytes, **parameters: int) -> bytes:
        hashed.append(password)
        return scrypt(password, **parameters)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "scrypt", counted)
    users = PlainUsers(write(ALICE), os.urandom)
    assert not await users.check("mallory", "a")
    assert not await users.check("alice", "b")
    assert hashed == [b"a", b"b"]
    assert await users.check("alice", "pässword")
    assert await users.check("alice", "pässword")
    assert not await users.check("alice", "c")
    assert hashed == [b"a", b"b", "pässword".encode(), b"c"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["alice:password"], "line 1: expected NAME:HASH"),
        (["# a", ALICE, "bob:$scrypt$ln=14,r=8,p=1$c2FsdA"], "line 3: expected NAME:HASH"),
        ([":" + BOB], "line 1: expected NAME:HASH"),
        (["bob:$scrypt$ln=40,r=8,p=1$c2FsdHNhbHRzYWx0$" + "A" * 43], "line 1: expected NAME:HASH"),
        ([ALICE, ALICE], "line 2: 'alice' is named twice"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_its_line(write: Write, lines: list[str], expected: str) -> None:
    with pytest.raises(UsersFileError) as raised:
        PlainUsers(write(*lines), os.urandom)
    assert expected in str(raised.value)
    assert "password" not in str(raised.value)
    assert "scrypt" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsersFileError, match=r"setting sasl.plain_users_file: .*nowhere: No such file"):
        PlainUsers(tmp_path / "nowhere", os.urandom)


async def test_the_file_is_read_again_when_it_changes(write: Write) -> None:
    users = PlainUsers(write(ALICE), os.urandom)
    assert await users.check("alice", "pässword")
    write(f"alice:{BOB}")
    with capture_logs() as logs:
        users.look()
        assert not logs, "it may still be written"
        users.look()
        assert [line["event"] for line in logs] == ["the file of users has changed and is in use"]
        assert not await users.check("alice", "pässword"), "a password of before is forgotten"
        assert await users.check("alice", "x")
        write("broken")
        users.look()
        users.look()
        users.look()
    assert [line["event"] for line in logs[1:]] == ["the changed file of users cannot be used; those of before remain"]
    assert await users.check("alice", "x")


def test_hashes_are_not_shown_and_survive_as_text() -> None:
    made = hash_password("x", b"s" * 16)
    assert parse_hash(made.to_text()) == made
    assert repr(made) == "PasswordHash(ln=14, r=8, p=1)"
    assert made.fits(b"x")
    assert not made.fits(b"y")
