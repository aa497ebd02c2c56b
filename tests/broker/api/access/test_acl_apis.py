"""DescribeAcls, CreateAcls and DeleteAcls, and nodes that follow what others change."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.acls.authorizer import Authorizer
from anabranch.broker.kafka.acls.model import Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.kafka.acls.store import ClusterAcls
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from anabranch.protocol.messages.describe_acls import DescribeAclsRequest
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import AclRow
from anabranch.s3stream.errors import CatalogUnavailable, OutcomeUnknown
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import RawClient, raw_client
from tests.support.waiting import until

ANY: Mapping[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def creation(**fields: Any) -> AclCreation:
    given: dict[str, Any] = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return AclCreation(**{**given, **fields})


READ = Acl(AclResourceType.TOPIC, "t", PatternType.LITERAL, "User:a", "*", AclOperation.READ, Permission.ALLOW)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(
        tmp_path, authorizer_enabled=True, authorizer_super_users=ANONYMOUS, authorizer_acls_max=5
    ) as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


async def create(client: RawClient, *creations: AclCreation) -> list[tuple[int, str | None]]:
    answer = await client.call(CreateAclsRequest(creations=creations))
    return [(each.error_code, each.error_message) for each in answer.results]


async def described(client: RawClient, **fields: Any) -> set[tuple[Any, ...]]:
    answer = await client.call(DescribeAclsRequest(**{**ANY, **fields}))
    assert not answer.error_code
    return {
        (found.resource_type, found.resource_name, found.pattern_type, *(acl.principal, acl.operation))
        for found in answer.resources
        for acl in found.acls
    }


async def test_acls_are_created_described_and_deleted(client: RawClient) -> None:
    wanted = [creation(), creation(resource_pattern_type=4, operation=4), creation(resource_type=3, principal="User:b")]
    assert await create(client, *wanted, wanted[0]) == [(0, "")] * 4
    assert await create(client, wanted[0]) == [(0, "")], "it exists already"
    topic, prefix, group = (2, "t", 3, "User:a", 3), (2, "t", 4, "User:a", 4), (3, "t", 3, "User:b", 3)
    assert await described(client) == {topic, prefix, group}
    assert await described(client, resource_type_filter=2, pattern_type_filter=2, resource_name_filter="tea") == {
        prefix
    }
    filters = [
        DeleteAclsFilter(**{**ANY, "resource_type_filter": 2}),
        DeleteAclsFilter(**{**ANY, "pattern_type_filter": 4}),
        DeleteAclsFilter(**{**ANY, "resource_name_filter": "none"}),
    ]
    deleted = await client.call(DeleteAclsRequest(filters=filters))
    assert [len(each.matching_acls) for each in deleted.filter_results] == [2, 1, 0]
    assert await described(client) == {group}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
        ({"principal": "a"}, "Could not parse principal from `a` (no colon is present"),
        ({"resource_type": 3, "resource_name": "g" * 5000}, "may have 4096 characters"),
    ],
)
async def test_what_no_acl_may_say_is_refused_and_others_are_created(
    client: RawClient, fields: Mapping[str, Any], message: str
) -> None:
    (code, told), other = await create(client, creation(**fields), creation())
    assert code == ErrorCode.INVALID_REQUEST
    assert told is not None
    assert message in told
    assert other == (0, "")


async def test_an_unknown_code_closes_the_connection(node: Node) -> None:
    for request in (
        CreateAclsRequest(creations=[creation(operation=0)]),
        DescribeAclsRequest(**{**ANY, "permission_type": 0}),
        DeleteAclsRequest(filters=[DeleteAclsFilter(**{**ANY, "resource_type_filter": 0})]),
    ):
        async with raw_client(node.bootstrap) as client:
            client.send(request)
            assert await client.closed()


async def test_a_filter_of_a_code_that_kafka_does_not_define_is_refused(client: RawClient) -> None:
    filters = [DeleteAclsFilter(**{**ANY, field: 99}) for field in ("resource_type_filter", "operation")]
    deleted = await client.call(DeleteAclsRequest(filters=filters))
    assert [each.error_message for each in deleted.filter_results] == ["Unknown patternFilter.", "Unknown entryFilter."]


async def test_the_number_of_acls_is_bounded(node: Node, client: RawClient) -> None:
    assert await create(client, *(creation(operation=at) for at in range(3, 8))) == [(0, "")] * 5
    (failure,) = await create(client, creation(operation=8))
    assert failure == (ErrorCode.POLICY_VIOLATION, "too many ACLs: 5 (authorizer.acls_max)")
    assert node.serving.acls is not None
    assert len(node.serving.acls.authorizer.acls) == 5


async def test_without_an_authorizer_there_are_no_acls(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert await create(client, creation()) == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")]
        answer = await client.call(DescribeAclsRequest(**ANY))
        told = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
        assert (answer.error_code, answer.error_message) == told
        deleted = await client.call(DeleteAclsRequest(filters=[DeleteAclsFilter(**ANY)]))
        assert [each.error_code for each in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]


async def test_other_nodes_follow_and_a_restart_keeps_them(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"authorizer_enabled": True, "authorizer_super_users": ANONYMOUS}
    async with running_nodes(tmp_path, 2, **wanted) as (first, second):
        assert second.serving.acls is not None
        authorizer = second.serving.acls.authorizer
        async with raw_client(first.bootstrap) as client:
            await create(client, creation())
            await until(lambda: set(authorizer.acls) == {READ}, timeout_s=20, pause_s=0.01)
        async with raw_client(second.bootstrap) as client:
            await client.call(DeleteAclsRequest(filters=[DeleteAclsFilter(**ANY)]))
            await create(client, creation(operation=4))
    async with running_nodes(tmp_path, 1, **wanted) as (again,):
        assert again.serving.acls is not None
        assert set(again.serving.acls.authorizer.acls) == {READ._replace(operation=AclOperation.WRITE)}


async def test_what_was_created_through_another_node_can_be_deleted_at_once(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"authorizer_enabled": True, "authorizer_super_users": ANONYMOUS}
    async with (
        running_nodes(tmp_path, 2, **wanted) as (first, second),
        raw_client(first.bootstrap) as here,
        raw_client(second.bootstrap) as there,
    ):
        for _ in range(5):
            await create(here, creation())
            deleted = await there.call(DeleteAclsRequest(filters=[DeleteAclsFilter(**ANY)]))
            assert [len(each.matching_acls) for each in deleted.filter_results] == [1]


async def test_the_last_known_acls_apply_while_the_catalog_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    await catalog.alter_acls([AclRow(2, "t", 3, "User:a", "*", 3, 3)], [])
    acls = ClusterAcls(catalog, Authorizer(allow_if_no_acl=True), acls_max=10)
    action = ("User:a", "h", AclOperation.READ, AclResourceType.TOPIC, "t")
    assert not acls.authorizer.authorize(*action), "they were never read"
    await acls.load()
    assert acls.authorizer.authorize(*action)

    async def unavailable(*, settled: bool = False) -> Sequence[AclRow]:
        raise CatalogUnavailable(f"no answer, settled={settled}")

    monkeypatch.setattr(catalog, "list_acls", unavailable)
    with pytest.raises(CatalogUnavailable):
        await acls.load()
    assert acls.authorizer.authorize(*action)
    await catalog.close()


async def test_a_change_is_made_to_what_the_catalog_has_and_not_to_what_was_seen_of_it(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    one, other = (ClusterAcls(catalog, Authorizer(), acls_max=10) for _ in range(2))
    await one.alter(added=[READ])
    await other.load()
    await one.alter(removed=[READ])
    await other.alter(added=[READ])
    assert len(await catalog.list_acls()) == 1
    seen = await catalog.last_change()
    await other.alter(added=[READ])
    assert await catalog.last_change() == seen, "other nodes need not read anything"
    await other.alter(removed=[READ])
    await one.alter(added=[READ])
    await other.alter(removed=[READ])
    assert not await catalog.list_acls()
    await catalog.close()


@pytest.mark.parametrize("asked_by", ["settle", "the next change"])
@pytest.mark.parametrize("altered", [False, True])
async def test_a_change_whose_answer_is_lost_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_by: str, *, altered: bool
) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="c")
    acls = ClusterAcls(catalog, Authorizer(), acls_max=10)
    await acls.load()
    really = catalog.alter_acls

    async def answer_lost(added: Sequence[AclRow], removed: Sequence[AclRow]) -> Sequence[AclRow]:
        if altered:
            await really(added, removed)
        raise OutcomeUnknown("a commit was not answered")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "alter_acls", answer_lost)
        with pytest.raises(OutcomeUnknown):
            await acls.alter(added=[READ])
    assert not acls.authorizer.acls
    expected = {READ} if altered else set()
    if asked_by == "settle":
        await acls.resolve_outcomes()
    else:
        other = READ._replace(principal="User:b")
        await acls.alter(added=[other])
        expected.add(other)
    assert set(acls.authorizer.acls) == expected
    await catalog.close()
