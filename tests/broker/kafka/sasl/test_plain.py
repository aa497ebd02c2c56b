"""PLAIN: messages, the file of users, and passwords that are checked."""

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from anabranch.broker.kafka.sasl import plain
from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed, TooManyAttempts
from anabranch.broker.kafka.sasl.plain import (
    PasswordHash,
    PlainExchange,
    PlainUsers,
    UsersFileError,
    hash_password,
    parse_hash,
    parse_plain,
)

ALICE = "alice:$scrypt$ln=14,r=8,p=1$c3Nzc3Nzc3Nzc3Nzc3Nzcw$VsWwlayfzHAzhTk46tIJSPWq03HPhqEqeLp40AmU0hg"  # pässword
BOB = "$scrypt$ln=14,r=8,p=1$dHR0dHR0dHR0dHR0dHR0dA$jTKIkcHQRNIov7LoAyGZsw+lqf04iiOBZFbjYKvrEU0"  # x
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
    exchange = PlainExchange(users, "h")
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
    assert not await users.check("mallory", "a", "h")
    assert not await users.check("alice", "b", "h")
    assert hashed == [b"a", b"b"]
    assert await users.check("alice", "pässword", "h")
    assert await users.check("alice", "pässword", "h")
    assert not await users.check("alice", "c", "h")
    assert hashed == [b"a", b"b", "pässword".encode(), b"c"]


class Hashes:
    """Stands for the computation of hashes: a password that fits is "right", and "slow" takes until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computed: list[bytes] = []
        self.begun, self.go = threading.Event(), threading.Event()
        monkeypatch.setattr(PasswordHash, "fits", lambda _, password: self._fits(password))

    def _fits(self, password: bytes) -> bool:
        self.computed.append(password)
        if password == b"slow":
            self.begun.set()
            assert self.go.wait(60)
        return password == b"right"


@asynccontextmanager
async def busy(write: Write, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[PlainUsers, Hashes]]:
    """Users, while a hash is being computed."""
    users, hashes = PlainUsers(write(ALICE), os.urandom), Hashes(monkeypatch)
    assert await users.check("alice", "right", "known")
    async with asyncio.TaskGroup() as group:
        group.create_task(users.check("mallory", "slow", "attacker"))
        await asyncio.to_thread(hashes.begun.wait, 60)
        yield users, hashes
        hashes.go.set()


async def test_addresses_take_turns(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    async with busy(write, monkeypatch) as (users, hashes), asyncio.TaskGroup() as group:
        for at in range(plain.WAITING_MAX):
            group.create_task(users.check("alice", str(at), "attacker"))
        await asyncio.sleep(0)
        with pytest.raises(TooManyAttempts, match="clients of this address wait"):
            await users.check("alice", "right too late", "attacker")
        assert await users.check("alice", "right", "attacker"), "a password that was right needs no turn"
        valid = group.create_task(users.check("alice", "valid", "other"))
        await asyncio.sleep(0)
        hashes.go.set()
        await valid
        assert hashes.computed.index(b"valid") < 5


async def test_clients_that_leave_cost_nothing(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    async with busy(write, monkeypatch) as (users, hashes), asyncio.TaskGroup() as group:
        for _ in range(3):
            tasks = [group.create_task(users.check("a", "gone", "attacker")) for _ in range(plain.WAITING_MAX)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
        hashes.go.set()
        assert not await users.check("alice", "wrong", "attacker")
    assert hashes.computed[1:] == [b"slow", b"wrong"]
    assert await users.check("alice", "right", "other")


async def test_a_turn_that_came_to_a_client_that_leaves_is_passed_on(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with busy(write, monkeypatch) as (users, hashes), asyncio.TaskGroup() as group:
        first = group.create_task(users.check("a", "first", "attacker"))
        second = group.create_task(users.check("a", "second", "attacker"))
        await asyncio.sleep(0)
        users._turns.give()  # noqa: SLF001 - at the moment at which the first one leaves
        first.cancel()
        hashes.go.set()
        assert not await second


async def test_one_hash_is_enough_for_a_password_that_many_clients_have(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with busy(write, monkeypatch) as (users, hashes), asyncio.TaskGroup() as group:
        write(f"alice:{BOB}")
        users.look()
        users.look()
        checks = [group.create_task(users.check("alice", "right", "crowd")) for _ in range(20)]
        await asyncio.sleep(0)
        hashes.go.set()
    assert all(check.result() for check in checks)
    assert hashes.computed == [b"right", b"slow", b"right"]


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
    assert await users.check("alice", "pässword", "h")
    write(f"alice:{BOB}")
    with capture_logs() as logs:
        users.look()
        assert not logs, "it may still be written"
        users.look()
        assert [line["event"] for line in logs] == ["the file of users has changed and is in use"]
        assert not await users.check("alice", "pässword", "h"), "a password of before is forgotten"
        assert await users.check("alice", "x", "h")
        write("broken")
        users.look()
        users.look()
        users.look()
    assert [line["event"] for line in logs[1:]] == ["the changed file of users cannot be used; those of before remain"]
    assert await users.check("alice", "x", "h")


def test_hashes_are_not_shown_and_survive_as_text() -> None:
    made = hash_password("x", b"s" * 16)
    assert parse_hash(made.to_text()) == made
    assert repr(made) == "PasswordHash(ln=14, r=8, p=1)"
    assert made.fits(b"x")
    assert not made.fits(b"y")
