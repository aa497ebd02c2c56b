"""Authentication: steps of a stranger at the gate of a real node, on the simulator's network and clock.

An input is a list of steps. Some are requests of an authentication, whole or edited, some are any bytes. Whatever they
are, the client has a principal only if it has proved that it knows the password. After each input, no request may have
failed inside the node, nothing may be left of the connection, and another client must be served.
"""

import asyncio
import base64
import binascii
import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.api.handlers.authentication import GateContext, SaslGate
from anabranch.broker.kafka.sasl.jwks import Jwks
from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed
from anabranch.broker.kafka.sasl.mechanisms import Mechanisms, SaslFiles
from anabranch.broker.kafka.sasl.oauthbearer import TokenRules, parse_message
from anabranch.broker.kafka.sasl.plain import PasswordHash, PlainUsers
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.broker.node.settings.mechanisms import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM_SHA_256
from anabranch.protocol.codec import encode
from anabranch.protocol.errors import ErrorCode, MalformedMessage
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.metadata import MetadataRequest
from anabranch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest
from anabranch.s3stream.catalog.values import DEFAULT_LISTENER
from tests.broker.kafka.sasl.clients import PASSWORD, add_user
from tests.broker.kafka.sasl.provider import AUDIENCE, ISSUER, claims, key_set, message, rsa_key, sign
from tests.broker.kafka.sasl.scram_client import ScramClient
from tests.fuzz.connections import Rig, Rigs
from tests.fuzz.target import Choices, Target, edited, random_script
from tests.support.raw_client import RawClient, decode_response, request_frame

STEPS_MAX: Final = 12
ANSWER_S: Final = 0.3
"""Virtual time in which an answer arrives: longer than that to a failure is delayed."""
RAW, FRAME, VERSIONS, HANDSHAKE, FIRST, FINAL, PASSWORD_TOKEN, SERVED, BEARER = STEPS = range(9)


def cheap_hash(password: bytes) -> PasswordHash:
    """A hash that takes little time."""
    digest = hashlib.scrypt(password, salt=b"s" * 16, n=16, r=1, p=1, dklen=32)
    return PasswordHash(4, 1, 1, b"s" * 16, digest)


class SaslRig(Rig):
    """A node with the users alice and bob. The client of before is not asked who it is, others are."""

    async def _start(self) -> None:
        await super()._start()
        node = self.node
        await add_user(node, "alice")
        path = Path(self.world.folder) / "users"
        path.write_text(f"alice:{cheap_hash(PASSWORD.encode()).to_text()}")
        users: Any = PlainUsers(path, Random(1).randbytes)
        users._nobody = cheap_hash(b"nobody")  # noqa: SLF001 - as cheap as others
        keys = path.with_name("keys")
        keys.write_bytes(key_set(rsa_key()))
        known = Jwks(keys.as_uri(), refresh_s=1, clock=self.world.loop.time)
        files = SaslFiles(users, known, TokenRules(ISSUER, (AUDIENCE,), (), "scope", "sub", 30))
        self.bearer = message(
            sign(rsa_key(), claims(node.serving.now_ms() // 1000, exp=node.serving.now_ms() // 1000 + 10**9))
        )
        begin = Mechanisms(node.serving.scram, None, files, Random(2).randbytes, node.serving.now_ms).begin
        settings = replace(node.serving.settings.sasl, max_reauth_ms=60_000)
        self.gate: Any = SaslGate(
            GateContext(node.serving, HANDLERS, node.ports.clients, settings, MECHANISMS, begin, node.tasks.spawn)
        )
        node.ports.clients.gates[DEFAULT_LISTENER] = self.gate

    async def follow(self, steps: Choices) -> None:
        """Take the steps on a new connection, then check who the client is, and what is left behind."""
        node, failures = self.node, self.node.serving.request_failures
        self.world.trace.lines.clear()
        client = await self.connect("stranger")
        stranger = Stranger(client, steps, self.bearer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await stranger.run()
        principals = {each.principal for each in node.ports.clients.connections} - {ANONYMOUS}
        assert not principals or (principals == {"User:alice"} and stranger.has_proved), principals
        await client.abort()
        await asyncio.sleep(1)
        for error in self.raised:
            raise error
        assert not self.world.errors, self.world.errors
        assert node.serving.request_failures == failures, "\n".join(self.world.trace.lines)
        assert node.ports.clients.bytes_held == 0
        assert len(node.ports.clients.connections) == 1
        assert not self.gate._sessions, "nothing is kept of a connection that is closed"  # noqa: SLF001
        answer = await self.other.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        assert answer.error_code == ErrorCode.NONE
        assert PASSWORD not in "\n".join(self.world.trace.lines)


class Stranger:
    """A client that follows the steps of an input."""

    def __init__(self, client: RawClient, steps: Choices, bearer: bytes) -> None:
        self._client = client
        self._steps = steps
        self._bearer = bearer
        self._scram = ScramClient("alice", PASSWORD)
        self._challenge = b""
        """Token that the node has sent last."""
        self.has_proved = False
        """True once a right password or proof was sent as it is."""

    async def run(self) -> None:
        """Take the steps. Raises IncompleteReadError when the node has closed the connection."""
        for _ in range(STEPS_MAX):
            if not self._steps.left:
                return
            await self._take(self._steps.number(1) % len(STEPS))

    async def _take(self, step: int) -> None:
        steps = self._steps
        if step == RAW:
            self._client.send_bytes(steps.take(steps.number(1)))
            return
        if step == FRAME:
            key, version = steps.number(1), steps.number(1)
            self._client.send_bytes(request_frame(key, version, steps.take(steps.number(1))))
            await self._receive(None)
        elif step == VERSIONS:
            await self._send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        elif step == HANDSHAKE:
            choice = steps.number(1)
            name = (PLAIN, SCRAM_SHA_256, OAUTHBEARER, *MECHANISMS, "GSSAPI")[choice % 8]
            await self._send(SaslHandshakeRequest(mechanism=name), 0 if choice > 250 else 1)
        elif step == SERVED:
            await self._send(MetadataRequest(topics=()), 9)
        else:
            await self._send(SaslAuthenticateRequest(auth_bytes=self._token(step)), 2)

    def _token(self, step: int) -> bytes:
        """Return a token of an authentication after the edits of the input."""
        whole = f"\0alice\0{PASSWORD}".encode()
        if step == BEARER:
            whole = self._bearer
        elif step == FIRST:
            whole = self._scram.first()
        elif step == FINAL:
            try:
                whole = self._scram.final(self._challenge)
            except (ValueError, KeyError):
                whole = b"c=biws,r=clientnonce,p=" + b"A" * 44
        script = Choices(self._steps.take(self._steps.number(1)))
        token = bytes(edited(whole, script))
        if step == PASSWORD_TOKEN:
            self.has_proved |= token.removeprefix(b"alice") == whole
        elif step == FINAL:
            self.has_proved |= same_proof(token, whole)
        elif step == BEARER:
            self.has_proved |= same_bearer(token, whole)
        return token

    async def _send(self, request: object, version: int) -> None:
        key = {
            ApiVersionsRequest: 18, SaslHandshakeRequest: 17, MetadataRequest: 3, SaslAuthenticateRequest: 36
        }[type(request)]  # fmt: skip
        self._client.send_bytes(request_frame(key, version, encode(request, version)))
        await self._receive((type(request), version))

    async def _receive(self, expected: tuple[type, int] | None) -> None:
        """Wait for an answer, and keep the token in it."""
        try:
            async with asyncio.timeout(ANSWER_S):
                frame = await self._client.receive_bytes()
        except TimeoutError:
            return
        if expected is not None and expected[0] is SaslAuthenticateRequest:
            with suppress(MalformedMessage, AssertionError):  # it may answer something of before
                self._challenge = decode_response(*expected, frame)[1].auth_bytes


def same_proof(token: bytes, whole: bytes) -> bool:
    """Return whether two final messages are equal but for the way in which base64 is written."""
    (unproved, _, proof), (expected, _, right) = token.partition(b",p="), whole.partition(b",p=")
    try:
        return unproved == expected and base64.b64decode(proof) == base64.b64decode(right)
    except binascii.Error:
        return False


def same_bearer(token: bytes, whole: bytes) -> bool:
    """Return whether two messages have the same token, but for the way in which base64 is written."""
    try:
        parts, expected = (parse_message(each)[1].split(".") for each in (token, whole))
        return [base64.urlsafe_b64decode(part + "==") for part in parts] == [
            base64.urlsafe_b64decode(part + "==") for part in expected
        ]
    except (AuthenticationFailed, binascii.Error):
        return False


def check(data: bytes) -> None:
    with RIGS.turn() as rig:
        rig.run(rig.follow(Choices(data)))


def step(kind: int, script: bytes = b"") -> bytes:
    return bytes((kind, len(script))) + script


SCRAM: Final = bytes((HANDSHAKE, 1)) + step(FIRST) + step(FINAL) + bytes((SERVED,))
PASSWORDS: Final = bytes((HANDSHAKE, 0)) + step(PASSWORD_TOKEN) + bytes((SERVED,))


BEARERS: Final = bytes((HANDSHAKE, 2)) + step(BEARER) + bytes((SERVED,))


def fresh(random: Random) -> bytes:
    parts = []
    for _ in range(random.choice((1, 2, 4, 8))):
        kind = random.choice((RAW, FRAME, VERSIONS, HANDSHAKE, FIRST, FINAL, PASSWORD_TOKEN, BEARER, SERVED))
        if kind in {FIRST, FINAL, PASSWORD_TOKEN, BEARER}:
            parts.append(step(kind, random.choice((b"", random_script(random)[:255]))))
        elif kind == HANDSHAKE:
            parts.append(bytes((HANDSHAKE, random.randrange(256))))
        elif kind == RAW:
            size = random.randrange(40)
            parts.append(bytes((RAW, size)) + random.randbytes(size))
        elif kind == FRAME:
            size = random.randrange(40)
            parts.append(bytes((FRAME, random.choice((17, 18, 36, 3)), random.randrange(4), size)))
            parts.append(random.randbytes(size))
        else:
            parts.append(bytes((kind,)))
    return random.choice(
        (b"", b"", SCRAM, PASSWORDS, BEARERS, *(bytes((HANDSHAKE, at)) for at in range(3)))
    ) + b"".join(parts)


def seeds() -> list[bytes]:
    random = Random(1)
    whole = [SCRAM, PASSWORDS, BEARERS, bytes((VERSIONS,)) + SCRAM, SCRAM + SCRAM, PASSWORDS + PASSWORDS]
    return [*whole, *(fresh(random) for _ in range(60))]


RIGS: Final = Rigs(SaslRig)
TARGET = Target(check, seeds, quick_inputs=300, fresh=fresh, words=(b"n,,", b"p=", b"\0alice\0"), close=RIGS.close)
