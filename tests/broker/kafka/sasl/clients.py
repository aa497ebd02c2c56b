"""A client that authenticates itself with requests of its own."""

from pathlib import Path
from typing import Any

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.sasl.plain import hash_password
from anabranch.broker.kafka.sasl.scram import make_credential, salt_of, salted_password
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.broker.kafka.sasl.scram_client import ScramClient
from tests.support.raw_client import RawClient

PASSWORD = "secret-of-alice"
LISTENERS = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"


def users_file(folder: Path) -> Path:
    """A file with the user alice of PLAIN."""
    path = folder / "users"
    path.write_text(
        f"alice:{hash_password(PASSWORD, b's' * 16).to_text()}\nbob:{hash_password('b', b's' * 16).to_text()}"
    )
    return path


async def add_user(node: Node, user: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256") -> None:
    """Give a user credentials."""
    salt = salt_of(b"x" * 32)
    salted = salted_password(mechanism, password, salt, 4096)
    await node.serving.scram.put(user, mechanism, make_credential(mechanism, salted, salt, 4096))


async def handshake(client: RawClient, mechanism: str = "SCRAM-SHA-256", version: int = 1) -> Any:
    """Choose a mechanism."""
    return await client.call(SaslHandshakeRequest(mechanism=mechanism), version)


async def token(client: RawClient, data: bytes, version: int = 2) -> Any:
    """Send a token."""
    return await client.call(SaslAuthenticateRequest(auth_bytes=data), version)


async def log_in(
    client: RawClient, user: str = "alice", password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256"
) -> Any:
    """Authenticate with SCRAM, and return the last answer."""
    assert (await handshake(client, mechanism)).error_code == ErrorCode.NONE
    scram = ScramClient(user, password, mechanism)
    first = await token(client, scram.first())
    assert first.error_code == ErrorCode.NONE, first
    last = await token(client, scram.final(first.auth_bytes))
    if last.error_code == ErrorCode.NONE:
        assert scram.accepts(last.auth_bytes)
    return last


async def log_in_plain(client: RawClient, user: str = "alice", password: str = PASSWORD, version: int = 2) -> Any:
    """Authenticate with PLAIN, and return the last answer."""
    assert (await handshake(client, "PLAIN")).error_code == ErrorCode.NONE
    return await token(client, f"\0{user}\0{password}".encode(), version)
