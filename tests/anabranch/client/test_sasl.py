"""The client's side of SCRAM against the node's: proofs of both are checked."""

import pytest

from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed
from anabranch.broker.kafka.sasl.scram import ScramCredential, ScramExchange, make_credential, salted_password
from anabranch.client.sasl import SaslError, bearer, plain, scram

SALT = b"0123456789abcdef"


class Users:
    """Credentials of alice."""

    def __init__(self, password: str, iterations: int) -> None:
        self._password, self._iterations = password, iterations

    def find(self, mechanism: str, user: str) -> ScramCredential | None:
        salted = salted_password(mechanism, self._password, SALT, self._iterations)
        return make_credential(mechanism, salted, SALT, self._iterations) if user == "a,l=ice" else None

    def invent(self, mechanism: str, user: str) -> ScramCredential:
        return ScramCredential(SALT, b"x" * 32, b"x" * 32, self._iterations)


def run(password: str, mechanism: str = "SCRAM-SHA-512", iterations: int = 4096) -> ScramExchange:
    node = ScramExchange(mechanism, Users("right", iterations), lambda count: b"n" * count)
    client = scram(mechanism, "a,l=ice", password, "own")
    final = client.send(node.answer(next(client)))
    proof = node.answer(final)
    with pytest.raises(StopIteration):
        client.send(proof)
    return node


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_both_sides_accept_each_other(mechanism: str) -> None:
    node = run("right", mechanism)
    assert node.is_complete
    assert node.user == "a,l=ice"


def test_a_wrong_password() -> None:
    with pytest.raises(AuthenticationFailed, match="wrong password"):
        run("wrong")


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"r=other,s=AAAA,i=4096", "malformed"),
        (b"r=own,s=AAAA,i=4096", "malformed"),
        (b"r=ownx,s=AAAA,i=4095", "asks for 4095 iterations"),
        (b"r=ownx,s=AAAA,i=999999999", "asks for 999999999 iterations"),
        (b"r=ownx,s=A=A,i=4096", "base64"),
        (b"\xff", "not ASCII"),
        (b"e=other-error", "malformed"),
    ],
)
def test_a_node_that_answers_something_else(first: bytes, reason: str) -> None:
    client = scram("SCRAM-SHA-256", "alice", "right", "own")
    next(client)
    with pytest.raises(SaslError, match=reason):
        client.send(first)


@pytest.mark.parametrize("final", [b"v=AAAA", b"e=invalid-proof", b"", b"v="])
def test_a_node_that_does_not_know_the_password_is_refused(final: bytes) -> None:
    client = scram("SCRAM-SHA-256", "alice", "right", "own")
    next(client)
    client.send(b"r=ownx,s=AAAA,i=4096")
    with pytest.raises(SaslError, match="does not know the password"):
        client.send(final)


def test_other_messages() -> None:
    assert next(plain("alice", "right")) == b"\0alice\0right"
    assert next(bearer("token")) == b"n,,\x01auth=Bearer token\x01\x01"
    assert next(scram("SCRAM-SHA-256", "id", "hmac", "own", has_token=True)) == b"n,,n=id,r=own,tokenauth=true"
