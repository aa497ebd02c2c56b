"""Replicas that follow, as their leader knows them, and invitations to others. On virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from anabranch.broker.kafka.topics import followers as followers_module
from anabranch.broker.kafka.topics.followers import FOLLOWS_S, INVITED_S, REFUSED_S, Followers, Held
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.protocol.codec import decode_exact
from anabranch.protocol.messages.internal.invite_follower import Invitation, InviteFollowerRequest
from anabranch.protocol.messages.internal.relay import RelayRequest, RelayResponse
from tests.support.virtual_time import run_virtual

OWN, OTHER = 1, 2


class Replica:
    """Notes the invitations that it gets."""

    def __init__(self) -> None:
        self.invited: list[list[int]] = []
        self.answer: RelayResponse | Exception = RelayResponse()

    async def call(self, node_id: int, request: RelayRequest, _version: int) -> RelayResponse:
        assert node_id == OTHER
        question = decode_exact(InviteFollowerRequest, request.body, 0)
        assert question.node_id == OWN
        self.invited.append([each.index for each in question.invitations])
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def leading(test: Callable[[Followers, Replica], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        replica = Replica()
        async with asyncio.TaskGroup() as group:
            await test(Followers(replica, OWN, group.create_task), replica)

    run_virtual(main())


def invite(followers: Followers, stream_id: int) -> None:
    now_s = asyncio.get_running_loop().time()
    followers.invite(OTHER, stream_id, Invitation(topic_id=bytes(16), index=stream_id), now_s)


def test_a_replica_has_what_it_has_said_lately_and_gets_next_what_follows() -> None:
    async def test(followers: Followers, _: Replica) -> None:
        assert not followers.has(OTHER, 1, 10, 0.0)
        followers.note(OTHER, {1: Held(10, 12)}, 5.0)
        assert [followers.has(OTHER, 1, offset, 5.0) for offset in (9, 10, 12, 13)] == [False, True, True, False]
        assert not followers.has(OTHER, 2, 10, 5.0)
        assert followers.has(OTHER, 1, 10, 5.0 + FOLLOWS_S)
        assert not followers.has(OTHER, 1, 10, 5.1 + FOLLOWS_S)
        followers.note(OTHER, {}, 5.0)
        assert not followers.has(OTHER, 1, 10, 5.0)

    leading(test)


def test_invitations_of_one_moment_go_together_and_are_repeated_after_a_while() -> None:
    async def test(followers: Followers, replica: Replica) -> None:
        for stream_id in (1, 2, 1):
            invite(followers, stream_id)
        await asyncio.sleep(INVITED_S / 2)
        invite(followers, 2)
        invite(followers, 3)
        await asyncio.sleep(INVITED_S / 2)
        invite(followers, 1)
        await asyncio.sleep(0.1)
        assert replica.invited == [[1, 2], [3], [1]]

    leading(test)


def test_a_node_that_refuses_is_left_alone_and_one_that_cannot_be_reached_is_not() -> None:
    async def test(followers: Followers, replica: Replica) -> None:
        replica.answer = PeerUnavailable("away")
        invite(followers, 1)
        await asyncio.sleep(INVITED_S)
        replica.answer = RelayResponse(failure="API key 32017 in version 0 is not relayed")
        invite(followers, 1)
        await asyncio.sleep(REFUSED_S - 1)
        invite(followers, 2)
        await asyncio.sleep(1)
        assert replica.invited == [[1], [1]]
        invite(followers, 2)
        await asyncio.sleep(0.1)
        assert replica.invited == [[1], [1], [2]]

    leading(test)


def test_the_number_of_invitations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers_module, "INVITATIONS_MAX", 2)

    async def test(followers: Followers, replica: Replica) -> None:
        for stream_id in (1, 2, 3):
            invite(followers, stream_id)
        await asyncio.sleep(0.1)
        assert replica.invited == [[1, 2]]

    leading(test)
