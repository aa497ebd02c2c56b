"""Links between nodes: pipelined calls, lost connections, restarted and silent nodes, limits."""

import asyncio
import re
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from anabranch.broker.node.peers import links
from anabranch.broker.node.peers.handshake import NONCE_BYTES
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.links import CALL_S, LOST_S, PAUSE_S
from anabranch.broker.node.peers.members import Member
from anabranch.broker.node.settings.client_areas import NetworkSettings
from anabranch.protocol.header import response_frame
from anabranch.protocol.messages.add_partitions_to_txn import KEY as ADD
from anabranch.protocol.messages.internal import authenticate, hello
from anabranch.protocol.registry import INTERNAL_APIS
from anabranch.wal.interface import Buffer
from tests.simulation.network import Port
from tests.support.linked_nodes import VERSION, LinkedNode, LinkedNodes, answer, linked

BAD_SECRET = bytes(32)


async def failure(call: "asyncio.Task[Any]") -> str:
    """Wait for a call to fail; return the text of its error."""
    with pytest.raises(PeerUnavailable) as raised:
        await call
    return str(raised.value)


async def lasting(call: "asyncio.Task[Any]") -> tuple[str, float]:
    """Wait for a call to fail; return the text of its error and the seconds until then."""
    before = asyncio.get_running_loop().time()
    text = await failure(call)
    return text, asyncio.get_running_loop().time() - before


@linked
async def test_calls_share_a_connection_and_are_answered_in_any_order(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    calls = {name: first.ask(2, name) for name in "abcd"}
    received = await second.received_names(4)
    for code, name in enumerate("dbca", 1):
        received[name].complete(answer(code))
        assert (await calls[name]).error_code == code
    assert first.attempts == 1
    assert {exchange.peer for exchange in received.values()} == {(1, 1)}


@linked
async def test_nodes_call_each_other_at_the_same_time(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    there, back = first.ask(2), second.ask(1)
    (await first.received()).complete(answer(1))
    (await second.received()).complete(answer(2))
    assert [(await there).error_code, (await back).error_code] == [2, 1]


@linked
async def test_a_lost_connection_fails_its_calls_and_the_next_call_opens_another(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    calls = [first.ask(2), first.ask(2)]
    await second.received_names(1)
    nodes.network.reset("node-2", 1.0)
    assert [await failure(call) for call in calls] == ["node 2 at node-2:7001: reset"] * 2
    await asyncio.sleep(1)
    call = first.ask(2)
    while not call.done():
        (await second.received()).complete(answer(7))
        await asyncio.sleep(0.1)
    assert (await call).error_code == 7
    assert first.attempts == 2


@linked
async def test_who_has_answered_is_tried_again_soon(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    for _ in range(10):
        call = first.ask(2)
        (await second.received()).complete(answer())
        await call
        nodes.network.reset("node-2", 1.0)
        await asyncio.sleep(2 * PAUSE_S[0])
    assert first.attempts == 10


@linked
async def test_a_node_that_restarts_is_called_at_its_new_address(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    call = first.ask(2)
    await second.received()
    reborn = await nodes.start(2, epoch=2)
    assert "another epoch or address" in await failure(call)
    call = first.ask(2)
    (await reborn.received()).complete(answer())
    await call
    assert not second.server.connections
    await second.stop()


@linked
async def test_a_node_that_does_not_answer_is_given_up_in_time(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    text, seconds = await lasting(first.ask(2))
    assert text == "node 2 has not answered within 5 s"
    assert seconds == pytest.approx(CALL_S)
    await asyncio.sleep(1)
    assert not second.server.connections, "its silence may be that of the network"


@linked
async def test_silence_is_noticed_at_its_first_check(nodes: LinkedNodes) -> None:
    first, _ = await nodes.start(1), await nodes.start(2)
    for number in range(40):  # at some of these moments (sent + CALL_S) - sent is rounded to less than CALL_S
        await asyncio.sleep(PAUSE_S[1] + number / 30)
        assert "answer" in await failure(first.ask(2))


@linked
async def test_one_slow_response_fails_its_call_only(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    slow = first.ask(2)
    waiting = await second.received()
    for _ in range(10):
        quick = first.ask(2)
        (await second.received()).complete(answer())
        await quick
        await asyncio.sleep(CALL_S / 8)
    assert await failure(slow) == "node 2 has not answered within 5 s"
    waiting.complete(answer())
    await asyncio.sleep(1)
    quick = first.ask(2)
    (await second.received()).complete(answer())
    await quick
    assert first.attempts == 1


@linked
async def test_a_response_that_never_comes_ends_the_connection_even_if_others_do(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    await_failure = asyncio.create_task(failure(first.ask(2)))
    await second.received()
    began = asyncio.get_running_loop().time()
    while second.server.connections:
        quick = first.ask(2)
        (await second.received()).complete(answer())
        await quick
        await asyncio.sleep(1)
    assert LOST_S - 1 < asyncio.get_running_loop().time() - began < LOST_S + 3
    await await_failure


@linked
async def test_a_caller_that_leaves_disturbs_nobody(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    leaving, staying = first.ask(2, "leaving"), first.ask(2, "staying")
    received = await second.received_names(2)
    leaving.cancel()
    received["leaving"].complete(answer(1))
    received["staying"].complete(answer(2))
    assert (await staying).error_code == 2
    assert leaving.cancelled()
    assert first.attempts == 1


@linked
async def test_a_caller_may_leave_while_the_connection_is_opened(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    leaving = first.ask(2, "leaving")
    await asyncio.sleep(0)
    leaving.cancel()
    staying = first.ask(2, "staying")
    assert list(await second.received_names(1)) == ["staying"]
    staying.cancel()


@linked
async def test_calls_beyond_the_limit_wait_for_their_turn(nodes: LinkedNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "CALLS_MAX", 2)
    first, second = await nodes.start(1), await nodes.start(2)
    calls = [first.ask(2, name) for name in "abc"]
    received = await second.received_names(2)
    calls[0].cancel()
    await asyncio.sleep(1)
    assert second.inbox.empty(), "who has left still takes a place: its request is not answered yet"
    received["a"].complete(answer())
    (await second.received_names(1))["c"].complete(answer())
    await calls[2]
    calls[1].cancel()


@linked
async def test_bytes_beyond_the_limit_are_refused(nodes: LinkedNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "CALLS_BYTES_MAX", 1_000)
    first, second = await nodes.start(1), await nodes.start(2)
    large = first.ask(2, size=800)
    received = await second.received()
    assert "no room for" in await failure(first.ask(2, size=200))
    received.complete(answer())
    await large
    small = first.ask(2, size=200)
    (await second.received()).complete(answer())
    await small


@linked
async def test_a_node_that_cannot_be_reached_is_not_tried_all_the_time(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    await second.server.stop_accepting()
    nodes.network.ports.clear()
    with capture_logs() as said:
        for _ in range(1000):
            assert "nothing listens on" in await failure(first.ask(2))
            await asyncio.sleep(0.01)
    assert 10 < first.attempts < 40
    assert [line["event"] for line in said] == ["no connection to a node"], "once, until it answers again"


@linked
async def test_a_node_may_be_away_for_an_hour(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    ports = dict(nodes.network.ports)
    nodes.network.ports.clear()
    while first.attempts < 3600:
        assert "nothing listens on" in await failure(first.ask(2))
        await asyncio.sleep(PAUSE_S[1])
    nodes.network.ports.update(ports)
    call = first.ask(2)
    (await second.received()).complete(answer())
    await call


@linked
async def test_the_end_of_an_unused_connection_is_nothing_to_warn_of(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    for expected in ([], ["no connection to a node"]):
        call = first.ask(2)
        received = await second.received()
        with capture_logs() as said:
            if expected:
                second.server.drop_all()
                await failure(call)
            else:
                received.complete(answer())
                await call
                await asyncio.sleep(NetworkSettings().idle_timeout_ms * 1.2 / 1000)
                assert not second.server.connections
            await asyncio.sleep(1)
        assert [line["event"] for line in said if line["log_level"] != "debug"] == expected


@linked
async def test_a_node_that_lets_nobody_through_is_given_up_in_time(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    nodes.network.cut("node-2")
    for _ in range(3):
        _, seconds = await lasting(first.ask(2))
        assert seconds < CALL_S + 0.1
    nodes.network.heal()
    await asyncio.sleep(1)
    call = first.ask(2)
    (await second.received()).complete(answer())
    await call


@linked
async def test_nodes_that_are_unknown_or_take_no_connections_are_unavailable(nodes: LinkedNodes) -> None:
    first = await nodes.start(1)
    assert await failure(first.ask(2)) == "node 2 is not known to live"
    first.members.update([Member(2, 1, ())])
    assert "it runs an earlier version" in await failure(first.ask(2))
    first.links.close()
    assert await failure(first.ask(2)) == "this node is stopping"


@linked
async def test_a_stop_fails_what_is_under_way(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    await nodes.start(3)
    call = first.ask(2)
    await second.received()
    opening = first.ask(3)
    await asyncio.sleep(0)
    first.links.close()
    for each in (call, opening):
        assert "this node is stopping" in await failure(each)


@linked
async def test_a_replaced_secret_is_used_from_then_on(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    open_call = first.ask(2)
    await second.received()
    nodes.secret = BAD_SECRET
    await second.secret.load()
    assert "it refuses the connection" in await failure(first.ask(2)) or "the connection is lost" in await failure(
        open_call
    )
    assert not [each for each in second.server.connections if each.peer is not None]
    with capture_logs() as said:
        await asyncio.sleep(2 * PAUSE_S[1])
        assert "it refuses the connection, and its log says why" in await failure(first.ask(2))
    assert {"Hello of node 1, which does not know the secret of the cluster"} <= {line.get("reason") for line in said}
    await first.secret.load()
    await asyncio.sleep(2 * PAUSE_S[1])
    call = first.ask(2)
    (await second.received()).complete(answer())
    await call


@linked
async def test_connections_begin_anew_on_both_sides_when_the_secret_is_replaced(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    call = first.ask(2)
    await second.received()
    await first.secret.load()
    assert not call.done(), "it is the same as before"
    nodes.secret = BAD_SECRET
    await first.secret.load()
    assert "the secret of the cluster was replaced" in await failure(call)
    await second.secret.load()
    call = first.ask(2)
    (await second.received()).complete(answer())
    await call
    assert first.attempts == 2


@linked
async def test_a_node_with_another_secret_is_refused(nodes: LinkedNodes) -> None:
    first, second = await nodes.start(1), await nodes.start(2, secret=BAD_SECRET)
    with capture_logs() as said:
        assert "it refuses the connection, and its log says why" in await failure(first.ask(2))
    assert {"Hello of node 1, which does not know the secret of the cluster"} <= {line.get("reason") for line in said}
    assert second.server.stats.closed_bad_input == 1


class BlackHole(asyncio.Protocol):
    """A server whose answers are lost, and which closes the connection after some seconds."""

    def __init__(self, close_s: float) -> None:
        self._close_s = close_s

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        asyncio.get_running_loop().call_later(self._close_s, transport.close)


@linked
async def test_a_node_that_does_not_answer_is_not_said_to_refuse(nodes: LinkedNodes) -> None:
    """A node closes a connection on which nobody proves himself: it may never have received anything."""
    first = await nodes.start(1)
    for node_id, close_s, text in (
        (2, 0.2, "it refuses the connection"),
        (3, 3.0, r"no answer for 3[.]\d s, and then"),
        (4, 60.0, "no answer within 5 s"),
    ):
        where = Member(node_id, 1, (), internal_host=f"node-{node_id}", internal_port=7001)
        Port(nodes.network, where.internal_host, 7001).listen(partial(BlackHole, close_s))
        first.members.update([where])
        with capture_logs() as said:
            await failure(first.ask(node_id))
            await asyncio.sleep(1)
        assert re.search(text, said[0]["reason"])


class Impostor(asyncio.Protocol):
    """A server that answers each request with the frames that `reply` returns for its API key and body."""

    def __init__(self, reply: Callable[[int, bytes], list[Buffer]]) -> None:
        self._reply = reply
        self._transport: asyncio.Transport
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := int.from_bytes(self._data[:4], "big")):
            frame, self._data = self._data[4 : 4 + size], self._data[4 + size :]
            self._transport.writelines(self._reply(int.from_bytes(frame[:2], "big"), frame))


async def with_impostor(nodes: LinkedNodes, reply: Callable[[int, bytes], list[Buffer]]) -> LinkedNode:
    """Start node 1, for which an impostor answers as node 2."""
    first = await nodes.start(1)
    Port(nodes.network, "node-2", 7001).listen(lambda: Impostor(reply))
    first.members.update([Member(2, 1, (), internal_host="node-2", internal_port=7001)])
    return first


def respond(key: int, message: object) -> list[Buffer]:
    return response_frame(key, INTERNAL_APIS[key].max_version, 0, message)


def challenge(nonce: bytes = bytes(NONCE_BYTES)) -> list[Buffer]:
    return respond(hello.KEY, hello.HelloResponse(nonce=nonce))


IMPOSTORS: dict[str, tuple[Callable[[int, bytes], list[Buffer]], str]] = {
    "sends the proof back": (
        lambda key, frame: (
            challenge()
            if key == hello.KEY
            else respond(authenticate.KEY, authenticate.AuthenticateResponse(proof=frame[-32:]))
        ),
        "it does not know the cluster's secret",
    ),
    "sends the nonce back, and the proof": (
        lambda key, frame: (
            challenge(frame[-32:])
            if key == hello.KEY
            else respond(authenticate.KEY, authenticate.AuthenticateResponse(proof=frame[-32:]))
        ),
        "it does not know the cluster's secret",
    ),
    "has a short nonce": (lambda _key, _frame: challenge(b"short"), "its nonce has 5 bytes"),
    "sends much": (lambda _key, _frame: [struct.pack(">i", 1 << 20), bytes(100)], "a response of 1048576 bytes"),
    "sends garbage": (lambda _key, _frame: [bytes.fromhex("00000008 0000000000001000")], "HelloResponse v0"),
}


@pytest.mark.parametrize("kind", IMPOSTORS)
@linked
async def test_an_impostor_gets_no_request(nodes: LinkedNodes, kind: str) -> None:
    reply, expected = IMPOSTORS[kind]
    keys: list[int] = []

    def noted(key: int, frame: bytes) -> list[Buffer]:
        keys.append(key)
        return reply(key, frame)

    first = await with_impostor(nodes, noted)
    assert expected in await failure(first.ask(2))
    assert ADD not in keys


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (struct.pack(">ii", 4, 99), "a response to request 99, which was not sent"),
        (struct.pack(">i", 1 << 30), "a response of 1073741824 bytes"),
        (struct.pack(">iib", 5, 1, 0), f"AddPartitionsToTxnResponse v{VERSION}"),
    ],
)
@linked
async def test_a_node_that_sends_nonsense_is_hung_up_on(nodes: LinkedNodes, sent: bytes, expected: str) -> None:
    first, second = await nodes.start(1), await nodes.start(2)
    call = first.ask(2)
    await second.received()
    (connection,) = second.server.connections
    connection._transport.write(sent)  # type: ignore[union-attr]  # noqa: SLF001
    assert expected in await failure(call)
    await asyncio.sleep(1)
    assert not second.server.connections
