"""The handshake of two nodes: each proves to the other that it knows the cluster's secret. Pure.

    sender                                                  receiver
    Hello(cluster, ids and epochs of both, nonce)   ->
                                                    <-      nonce
    Authenticate(proof of the sender)               ->      accepts the sender
    accepts the receiver                            <-      proof of the receiver

A proof is an HMAC of everything in Hello, of both nonces, and of the role of its author. So a proof is worthless on
another connection, sent back to its author, or for another node or another life of a node. The receiver proves nothing
to a sender that has not proved itself. What follows on the connection is neither encrypted nor signed unless TLS is
below it (`cluster.internal_tls`): an attacker who can change packets can change requests.
"""

import hmac
from enum import IntEnum
from struct import Struct
from typing import Final

from anabranch.protocol.messages.internal.hello import HelloRequest

NONCE_BYTES: Final = 32
SECRET_BYTES: Final = 32
STRANGER_BYTES_MAX: Final = 1024
"""Size of a request or response before the other side is authenticated."""
_TRANSCRIPT: Final = Struct(f">BiqiqI{NONCE_BYTES}s{NONCE_BYTES}s")


class Role(IntEnum):
    """Author of a proof."""

    SENDER = 1
    RECEIVER = 2


def make_proof(secret: bytes, role: Role, hello: HelloRequest, receiver_nonce: bytes) -> bytes:
    """Return the proof of one side. Both nonces must have their size."""
    assert len(hello.nonce) == len(receiver_nonce) == NONCE_BYTES, "nonces are checked when they are received"
    cluster = hello.cluster.encode()
    transcript = _TRANSCRIPT.pack(
        role,
        hello.node_id,
        hello.node_epoch,
        hello.target_id,
        hello.target_epoch,
        len(cluster),
        hello.nonce,
        receiver_nonce,
    )
    return hmac.digest(secret, transcript + cluster, "sha256")


def is_proof(found: bytes, secret: bytes, role: Role, hello: HelloRequest, receiver_nonce: bytes) -> bool:
    """Return whether the other side knows the secret."""
    return hmac.compare_digest(found, make_proof(secret, role, hello, receiver_nonce))
