"""Requests that are passed to other nodes: their envelope, and answers that are no responses."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from anabranch.broker.node.peers.relay import RelayRefused, relay
from anabranch.protocol.codec import encode
from anabranch.protocol.messages.internal.describe_loads import DescribeLoadsRequest
from anabranch.protocol.messages.internal.relay import RelayRequest, RelayResponse
from anabranch.protocol.messages.list_groups import KEY, ListedGroup, ListGroupsRequest, ListGroupsResponse

VERSION = 4


@dataclass
class Peer:
    answer: RelayResponse
    asked: list[tuple[int, Any, int]] = field(default_factory=list)

    async def call(self, node_id: int, request: Any, version: int) -> Any:
        self.asked.append((node_id, request, version))
        return self.answer


async def test_a_request_and_its_response_are_wrapped_in_the_version_that_is_asked_for() -> None:
    request, response = (
        ListGroupsRequest(states_filter=("Empty",)),
        ListGroupsResponse(groups=(ListedGroup(group_id="g", protocol_type="consumer"),)),
    )
    peer = Peer(RelayResponse(body=encode(response, VERSION)))
    assert await relay(peer, 3, request, VERSION, principal="User:a", host="h") == response
    body = encode(request, VERSION)
    envelope = RelayRequest(api_key=KEY, api_version=VERSION, principal="User:a", host="h", body=body)
    assert peer.asked == [(3, envelope, 0)]


async def test_a_refusal_names_the_node() -> None:
    peer = Peer(RelayResponse(failure="API key 16 in version 4 is not relayed"))
    with pytest.raises(RelayRefused, match="node 3: API key 16 in version 4 is not relayed"):
        await relay(peer, 3, ListGroupsRequest(), VERSION)


async def test_a_response_of_another_version_of_the_program_is_no_response() -> None:
    """A task that asks all nodes, such as the balancer, must outlive a node that is upgraded."""
    with pytest.raises(RelayRefused, match="node 3: DescribeLoadsResponse v0: "):
        await relay(Peer(RelayResponse(body=bytes(7))), 3, DescribeLoadsRequest(), 0)
