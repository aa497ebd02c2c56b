"""The internal port against whoever is not a node of the cluster in its present life, and what nodes may ask there."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from anabranch.broker.api.handlers import write_txn_markers
from anabranch.broker.api.handlers.internal import SWEEP_S
from anabranch.broker.kafka.transactions.markers import MarkerWriter
from anabranch.broker.node.net.exchange import Peer
from anabranch.broker.node.peers.handshake import NONCE_BYTES, STRANGER_BYTES_MAX, Role, make_proof
from anabranch.broker.node.peers.links import REQUEST_BYTES_MAX
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.internal.authenticate import AuthenticateRequest
from anabranch.protocol.messages.internal.hello import HelloRequest
from anabranch.protocol.messages.metadata import MetadataRequest
from anabranch.protocol.messages.write_txn_markers import (
    MarkerSender,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.linked_nodes import CLUSTER, SECRET, VERSION, LinkedNode, LinkedNodes, answer, linked, request
from tests.support.raw_client import RawClient

NONCE = b"n" * NONCE_BYTES
ID, EPOCH = 2, 5
"""The node that the requests go to, and its epoch. Node 1 has epoch 3."""


def greeting(**changed: Any) -> HelloRequest:
    """The Hello of node 1 to node 2."""
    values = {
        "cluster": CLUSTER,
        "node_id": 1,
        "node_epoch": 3,
        "target_id": ID,
        "target_epoch": EPOCH,
        "nonce": NONCE,
        **changed,
    }
    return HelloRequest(**values)


async def start(nodes: LinkedNodes) -> LinkedNode:
    """Start both nodes; return the one to be tested."""
    await nodes.start(1, epoch=3)
    return await nodes.start(ID, epoch=EPOCH)


async def authenticated(nodes: LinkedNodes, node: LinkedNode, **changed: Any) -> RawClient:
    """Connect as a node that knows the secret."""
    client = await nodes.connect(node)
    hello = greeting(**changed)
    challenge = await client.call(hello)
    proof = make_proof(SECRET, Role.SENDER, hello, challenge.nonce)
    response = await client.call(AuthenticateRequest(proof=proof))
    assert response.proof == make_proof(SECRET, Role.RECEIVER, hello, challenge.nonce)
    return client


async def reason(client: RawClient) -> str:
    """Wait until a connection is closed without a response; return the reason in the log."""
    with capture_logs() as said:
        assert await client.closed()
    (line,) = [line for line in said if line["event"] == "connection closed"]
    text: str = line["reason"]
    assert text.isprintable()
    return text


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "another cluster": ({"cluster": "d\n"}, "Hello of node 1 of cluster 'd\\n': this is cluster 'c'"),
    "another target": ({"target_id": 9}, "Hello of node 1 for epoch 5 of node 9: this is epoch 5 of node 2"),
    "its former life": ({"target_epoch": 4}, "Hello of node 1 for epoch 4 of node 2: this is epoch 5 of node 2"),
    "its next life": ({"target_epoch": 6}, "Hello of node 1 for epoch 6 of node 2"),
    "its own id": ({"node_id": ID}, "Hello of node 2 for epoch 5 of node 2"),
    "an old sender": ({"node_epoch": 2}, "epoch 2 of node 1, which has epoch 3 now"),
    "a short nonce": ({"nonce": b"n"}, "Hello of node 1 with a nonce of 1 bytes"),
}


@pytest.mark.parametrize("kind", REFUSED)
@linked
async def test_a_hello_is_refused_before_anything_is_proved(nodes: LinkedNodes, kind: str) -> None:
    changed, expected = REFUSED[kind]
    client = await nodes.connect(await start(nodes))
    client.send(greeting(**changed))
    assert (await reason(client)).startswith(expected)


@linked
async def test_a_recorded_handshake_is_worth_nothing(nodes: LinkedNodes) -> None:
    node = await start(nodes)
    client = await nodes.connect(node)
    challenge = await client.call(greeting())
    proof = AuthenticateRequest(proof=make_proof(SECRET, Role.SENDER, greeting(), challenge.nonce))
    await client.call(proof)
    replay = await nodes.connect(node)
    assert (await replay.call(greeting())).nonce != challenge.nonce
    replay.send(proof)
    assert "does not know the secret" in await reason(replay)


@pytest.mark.parametrize("proof", [b"", bytes(32), make_proof(SECRET, Role.RECEIVER, greeting(), NONCE)], ids=len)
@linked
async def test_a_wrong_proof_is_refused(nodes: LinkedNodes, proof: bytes) -> None:
    client = await nodes.connect(await start(nodes))
    await client.call(greeting())
    client.send(AuthenticateRequest(proof=proof))
    assert await reason(client) == "Hello of node 1, which does not know the secret of the cluster"


@linked
async def test_a_hello_allows_one_attempt(nodes: LinkedNodes) -> None:
    node = await start(nodes)
    client = await nodes.connect(node)
    challenge = await client.call(greeting())
    client.send(AuthenticateRequest(proof=bytes(32)))
    client.send(AuthenticateRequest(proof=make_proof(SECRET, Role.SENDER, greeting(), challenge.nonce)))
    assert "does not know" in await reason(client)
    assert not node.server.connections


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (AuthenticateRequest(proof=bytes(32)), "Authenticate before a Hello"),
        (request(), "request with API key 24 in version 5 before a Hello: this port is for nodes of the cluster"),
        (ApiVersionsRequest(), "request with API key 18 in version 5 before a Hello"),
    ],
    ids=lambda value: type(value).__name__,
)
@linked
async def test_nothing_is_served_before_a_hello(nodes: LinkedNodes, message: object, expected: str) -> None:
    node = await start(nodes)
    client = await nodes.connect(node)
    client.send(message)
    assert (await reason(client)).startswith(expected)
    assert node.inbox.empty()


@pytest.mark.parametrize("after_hello", [False, True])
@linked
async def test_frames_of_strangers_are_small(nodes: LinkedNodes, after_hello: bool) -> None:
    client = await nodes.connect(await start(nodes))
    if after_hello:
        await client.call(greeting())
    client.send_bytes((STRANGER_BYTES_MAX + 1).to_bytes(4, "big"))
    assert await reason(client) == "frame of 1025 bytes, allowed are 8 to 1024"


@pytest.mark.parametrize("after_hello", [False, True])
@linked
async def test_strangers_are_not_waited_for(nodes: LinkedNodes, after_hello: bool) -> None:
    client = await nodes.connect(await start(nodes))
    if after_hello:
        await client.call(greeting())
    loop = asyncio.get_running_loop()
    before = loop.time()
    client.send_bytes(b"\0\0")
    assert await reason(client) == "no node has authenticated itself within 5 s"
    assert SWEEP_S <= loop.time() - before <= 2 * SWEEP_S + 0.1


@linked
async def test_a_node_is_served_for_as_long_as_it_likes(nodes: LinkedNodes) -> None:
    node = await start(nodes)
    client = await authenticated(nodes, node)
    await asyncio.sleep(3 * SWEEP_S)
    client.send(request(size=20 * STRANGER_BYTES_MAX), VERSION)
    exchange = await node.received()
    assert exchange.peer == (1, 3)
    exchange.complete(answer())
    await client.receive(AddPartitionsToTxnRequest, VERSION)
    client.send_bytes((REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
    assert await reason(client) == "frame of 1048577 bytes, allowed are 8 to 1048576"


@pytest.mark.parametrize(
    ("message", "version", "expected"),
    [
        (MetadataRequest(), 12, "request with API key 3, which is not served"),
        (ApiVersionsRequest(), 4, "request with API key 18, which is not served"),
        (greeting(), 0, "request with API key 32000, which is not served"),
        (AddPartitionsToTxnRequest(), 3, "AddPartitionsToTxn request in version 3, served are 4 to 5"),
    ],
    ids=lambda value: type(value).__name__,
)
@linked
async def test_nodes_are_served_two_apis_only(nodes: LinkedNodes, message: object, version: int, expected: str) -> None:
    client = await authenticated(nodes, await start(nodes))
    client.send(message, version)
    assert await reason(client) == expected


@linked
async def test_a_later_life_of_a_node_ends_the_connections_of_the_former_one(nodes: LinkedNodes) -> None:
    node = await start(nodes)
    former = await authenticated(nodes, node)
    await authenticated(nodes, node, node_epoch=4)
    assert await former.closed()
    with pytest.raises(asyncio.IncompleteReadError):
        await authenticated(nodes, node)
    assert [each.peer for each in node.server.connections if each.peer] == [(1, 4)]


@linked
async def test_a_life_that_is_known_to_be_over_is_not_served_any_more(nodes: LinkedNodes) -> None:
    node = await start(nodes)
    client = await authenticated(nodes, node)
    await nodes.nodes[1].stop()
    await nodes.start(1, epoch=4)
    client.send(request(), VERSION)
    assert await reason(client) == "epoch 3 of node 1, which has epoch 4 now"
    assert node.inbox.empty()


def is_overtaken(sender: MarkerSender | None, peer: Peer | None) -> bool:
    """Return whether a request is refused after one of node 1, in epoch 3, with the sequence 7."""
    writer = MarkerWriter(cast("Any", None), cast("Any", None))
    assert writer.admit(MarkerSender(node_id=1, node_epoch=3, sequence=7))
    serving, exchange = SimpleNamespace(markers=writer), SimpleNamespace(peer=peer)
    marker = WritableTxnMarker(producer_id=1, topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])])
    asked = WriteTxnMarkersRequest(markers=[marker], sender=sender)
    work = write_txn_markers.handle(cast("Any", serving), asked, cast("Any", exchange))
    with suppress(AttributeError):  # there is nothing to append to
        response = asyncio.run(work)
        return bool(response.markers[0].topics[0].partitions[0].error_code == ErrorCode.OPERATION_NOT_ATTEMPTED)
    return False


@pytest.mark.parametrize(
    ("sender", "peer", "overtaken"),
    [
        ((1, 3, 8), Peer(1, 3), False),
        ((1, 3, 7), Peer(1, 3), True),
        ((1, 3, 8), Peer(1, 2), True),
        ((1, 3, 8), Peer(2, 3), True),
        ((1, 3, 7), None, False),
        (None, Peer(1, 3), False),
    ],
)
def test_the_order_of_markers_is_that_of_the_node_that_sends_them(
    sender: tuple[int, int, int] | None, peer: Peer | None, *, overtaken: bool
) -> None:
    message = sender and MarkerSender(node_id=sender[0], node_epoch=sender[1], sequence=sender[2])
    assert is_overtaken(message or None, peer) is overtaken


async def test_a_client_cannot_take_the_place_of_a_node_in_the_order_of_markers() -> None:
    writer = MarkerWriter(cast("Any", None), cast("Any", None))
    serving, exchange, last = SimpleNamespace(markers=writer), SimpleNamespace(peer=None), 2**63 - 1
    asked = WriteTxnMarkersRequest(sender=MarkerSender(node_id=1, node_epoch=last, sequence=last))
    await write_txn_markers.handle(cast("Any", serving), asked, cast("Any", exchange))
    assert writer.admit(MarkerSender(node_id=1, node_epoch=3, sequence=1))
