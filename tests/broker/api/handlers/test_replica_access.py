"""Rights, users and quotas count on a replica as they do on the leader."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.acls.model import Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.broker.operator.admin.api.status import node_status
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.broker.api.handlers.test_client_quotas import alter
from tests.broker.api.handlers.test_delegation_tokens import KEY, log_in_with_token, password_of, sasl_client
from tests.broker.api.handlers.test_many_nodes import all_serve, assigned, create
from tests.broker.api.handlers.test_replicas import RACK, history, look_always, offsets
from tests.broker.kafka.sasl.clients import LISTENERS, add_user, log_in
from tests.support.node import running_nodes
from tests.support.raw_client import RawClient, raw_client

pytestmark = pytest.mark.slow

READ = Acl(AclResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", AclOperation.READ, Permission.ALLOW)
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
TOPIC_IDS_SINCE = 13


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    """Two nodes in one rack, with the user alice. Who is not authenticated may do everything."""
    look_always(monkeypatch)
    secure: dict[str, Any] = {
        "authorizer_enabled": True,
        "authorizer_super_users": ANONYMOUS,
        "delegation_token_secret_key": KEY,
    }
    async with running_nodes(tmp_path, 2, rack=RACK, listeners=LISTENERS, **secure) as running:
        assert await create(running[0], assigned("t", [1, 2])) == [(0, None)]
        await all_serve(running, "t")
        await add_user(running[0], "alice")
        await running[1].serving.membership.catch_up()
        yield running


@asynccontextmanager
async def alice(node: Node) -> AsyncIterator[RawClient]:
    """A client that is authenticated with SCRAM."""
    async with sasl_client(node) as client:
        assert (await log_in(client)).error_code == ErrorCode.NONE
        yield client


def fetch(node: Node, version: int = 12, session_id: int = 0, epoch: int = -1) -> FetchRequest:
    """Ask for the topic from its beginning, by its id where a version does; in a session for what it has."""
    found = node.serving.topics.get("t")
    assert found is not None
    named: dict[str, Any] = {"topic_id": found.topic_id} if version >= TOPIC_IDS_SINCE else {"topic": "t"}
    wanted = FetchTopic(**named, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)])
    return FetchRequest(
        max_wait_ms=5000,
        min_bytes=0,
        rack_id=RACK,
        session_id=session_id,
        session_epoch=epoch,
        topics=[wanted] if epoch <= 0 else [],
    )


async def alter_rights(nodes: list[Node], **change: list[Acl]) -> None:
    assert nodes[0].serving.acls is not None
    await nodes[0].serving.acls.alter(**change)
    await nodes[1].serving.membership.catch_up()


async def test_who_may_not_read_is_refused_as_by_the_leader_also_in_a_session(nodes: list[Node]) -> None:
    leader, replica = await history(nodes)
    async with alice(leader) as there, alice(replica) as here:
        for version in (TOPIC_IDS_SINCE - 1, TOPIC_IDS_SINCE):
            refused = (await here.call(fetch(replica, version), version)).responses
            assert refused[0].partitions[0].error_code == DENIED
            assert refused == (await there.call(fetch(leader, version), version)).responses
        await alter_rights(nodes, added=[READ])
        first = await here.call(fetch(replica, epoch=0), 12)
        assert offsets(first.responses[0].partitions[0]) == [0, 1, 2]
        await alter_rights(nodes, removed=[READ])
        later = await here.call(fetch(replica, session_id=first.session_id, epoch=1), 12)
        assert [each.error_code for each in later.responses[0].partitions] == [DENIED]


async def test_a_delegation_token_is_worth_the_same_on_a_replica(nodes: list[Node]) -> None:
    leader, replica = await history(nodes)
    await alter_rights(nodes, added=[READ])
    async with alice(leader) as there:
        made = await there.call(CreateDelegationTokenRequest(max_lifetime_ms=-1), 3)
    await replica.serving.membership.catch_up()
    async with sasl_client(replica) as here:
        answer = await log_in_with_token(here, made.token_id, password_of(made))
        assert answer.error_code == ErrorCode.NONE
        answer = await here.call(fetch(replica), 12)
        assert offsets(answer.responses[0].partitions[0]) == [0, 1, 2]


async def test_what_a_replica_sends_counts_for_the_quota_of_the_reader(nodes: list[Node]) -> None:
    leader, replica = await history(nodes)
    async with raw_client(leader.bootstrap) as client:
        assert await alter(client, {"client-id": "reader"}, consumer_byte_rate=1) == ErrorCode.NONE
    await replica.serving.membership.catch_up()
    async with raw_client(replica.bootstrap, client_id="reader") as client:
        answer = await client.call(fetch(replica), 12)
        assert (answer.throttle_time_ms > 0, list(answer.responses)) == (True, []), "empty, as on the leader"
    (throttled,) = (await node_status(replica)).quotas["consumer_byte_rate"].throttled
    assert (throttled.client_id, throttled.throttles) == ("reader", 1)
