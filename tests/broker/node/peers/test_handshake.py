"""Proofs of the handshake between two nodes."""

from dataclasses import replace

import pytest

from anabranch.broker.node.peers.handshake import NONCE_BYTES, Role, is_proof, make_proof
from anabranch.protocol.messages.internal.hello import HelloRequest

HELLO = HelloRequest(cluster="c", node_id=1, node_epoch=2, target_id=3, target_epoch=4, nonce=b"n" * NONCE_BYTES)
NONCE = b"m" * NONCE_BYTES
SECRET = b"s" * 32


@pytest.mark.parametrize("role", Role)
def test_who_knows_the_secret_can_prove_it(role: Role) -> None:
    assert is_proof(make_proof(SECRET, role, HELLO, NONCE), SECRET, role, HELLO, NONCE)


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": "d"},
        {"node_id": 9},
        {"node_epoch": 9},
        {"target_id": 9},
        {"target_epoch": 9},
        {"nonce": NONCE},
    ],
    ids=str,
)
def test_a_proof_is_for_one_hello(changed: dict[str, object]) -> None:
    proof = make_proof(SECRET, Role.SENDER, HELLO, NONCE)
    assert not is_proof(proof, SECRET, Role.SENDER, replace(HELLO, **changed), NONCE)  # type: ignore[arg-type]


def test_a_proof_is_for_one_secret_one_nonce_and_one_role() -> None:
    proof = make_proof(SECRET, Role.SENDER, HELLO, NONCE)
    assert not is_proof(proof, SECRET[::-1] + b"x", Role.SENDER, HELLO, NONCE)
    assert not is_proof(proof, SECRET, Role.SENDER, HELLO, HELLO.nonce)
    assert not is_proof(proof, SECRET, Role.RECEIVER, HELLO, NONCE)
    assert not is_proof(b"", SECRET, Role.SENDER, HELLO, NONCE)
