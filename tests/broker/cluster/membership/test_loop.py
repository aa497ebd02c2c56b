"""Nodes of one cluster see what the others change: topics, partitions, leaders, configs, and who lives."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from anabranch.broker.api.handlers.leadership import find_leadership
from anabranch.broker.cluster.membership.join import NO_ADDRESS
from anabranch.broker.cluster.node import Node
from anabranch.protocol.errors import ErrorCode
from anabranch.s3stream.errors import CatalogUnavailable
from tests.support.node import running_node, running_nodes
from tests.support.postgres import PostgresServer
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.new_database()


@pytest.fixture
async def nodes(tmp_path: Path, catalog_url: str) -> AsyncIterator[list[Node]]:
    async with running_nodes(tmp_path, 3, catalog_url) as running:
        yield running


async def eventually(condition: object, *arguments: object) -> None:
    """Wait until `condition(*arguments)` holds."""
    assert callable(condition)
    await until(lambda: condition(*arguments), timeout_s=60, pause_s=0.01)


def led(node: Node, name: str) -> Sequence[int]:
    """Indexes of the topic's partitions that the node serves."""
    topic = node.serving.topics.get(name)
    return [] if topic is None else [index for index, each in enumerate(topic.partitions) if each is not None]


def leaders(node: Node, name: str) -> Sequence[int]:
    """Leaders of the topic's partitions as the node sees them; -1 for one that nobody has opened."""
    topic = node.serving.topics.get(name)
    return () if topic is None else [each.leader if each.owner == each.leader else -1 for each in topic.info.partitions]


async def test_a_new_topic_is_spread_over_the_nodes_and_served_when_it_is_answered(nodes: list[Node]) -> None:
    await nodes[1].serving.topic_commands.create("t", partitions=6, configs={"retention.ms": "5"})
    # A node answers for a partition that it is about to have open; it waits until it has.
    await eventually(lambda: [len(led(node, "t")) for node in nodes] == [2, 2, 2])
    assert sorted(index for node in nodes for index in led(node, "t")) == list(range(6))
    for node in nodes:
        assert await node.serving.catalog.list_topics() != []
        topic = node.serving.topics.get("t")
        assert topic is not None
        assert topic.config.retention_ms == 5
        async with raw_client(node.bootstrap) as client:
            for index in range(6):
                answer = await client.produce("t", [batch_of(b"x")], partition=index)
                (found,) = answer.responses[0].partition_responses
                expected = ErrorCode.NONE if index in led(node, "t") else ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert found.error_code == expected
        await eventually(lambda node=node: leaders(node, "t") == leaders(nodes[1], "t"))


async def test_a_node_of_a_version_that_takes_no_connections_gets_no_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"catalog_url": f"sqlite:///{tmp_path}/catalog.db", "objects_path": tmp_path / "objects"}
    async with running_node(tmp_path / "1", node_id=1, **shared) as linked:
        monkeypatch.setattr("anabranch.broker.app.internal_address", lambda *_: NO_ADDRESS)
        async with running_node(tmp_path / "2", node_id=2, **shared):
            await eventually(lambda: len(linked.serving.members.living()) == 2)
            await linked.serving.topic_commands.create("t", partitions=12, configs={})
            assert len(led(linked, "t")) == 12


async def test_partitions_added_through_any_node_are_served_by_all(nodes: list[Node]) -> None:
    await nodes[0].serving.topic_commands.create("t", partitions=1, configs={})
    await nodes[2].serving.topic_commands.grow("t", 7)
    await eventually(lambda: sorted(index for node in nodes for index in led(node, "t")) == list(range(7)))
    assert max(len(led(node, "t")) for node in nodes) == 3
    for node in nodes:
        await eventually(lambda node=node: node.serving.topics.has_partition("t", 6))


async def test_a_topic_deleted_through_any_node_is_gone_from_all(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    await nodes[0].serving.topic_commands.create("t", partitions=3, configs={})
    streams = [partition.stream for node in nodes for partition in node.serving.topics.led_partitions()]
    gone: list[tuple[int, str]] = []
    for node in nodes:
        monkeypatch.setattr(
            node.serving.groups,
            "forget_topics",
            lambda names, node_id=node.serving.node_id: gone.extend((node_id, name) for name in names),
        )
    await nodes[1].serving.topic_commands.delete("t")
    for node in nodes:
        await eventually(lambda node=node: node.serving.topics.get("t") is None)
    await eventually(lambda: sorted(gone) == [(1, "t"), (3, "t")])
    assert not [
        stream for stream in streams for node in nodes if node.serving.storage.stream(stream.stream_id) is not None
    ]
    created = await nodes[2].serving.topic_commands.create("t", partitions=3, configs={})
    for node in nodes:
        await eventually(lambda node=node: node.serving.topics.get(created.topic_id) is not None)


async def test_a_topic_can_be_detached_on_one_node_and_attached_on_another(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = nodes
    topic = await first.serving.topic_commands.create("t", partitions=1, configs={})
    (leader,) = [node for node in nodes if led(node, "t")]
    (other, *_) = [node for node in nodes if not led(node, "t")]
    gone: list[str] = []
    monkeypatch.setattr(other.serving.groups, "forget_topics", gone.extend)
    await leader.moves.detach("t")
    await eventually(lambda: other.serving.topics.get("t") is None)
    await other.moves.attach("t", "back")
    assert led(other, "back") == [0]
    for node in (first, second, third):
        await eventually(lambda node=node: leaders(node, "back") == [other.serving.node_id])
        found = node.serving.topics.get("back")
        assert found is not None
        assert found.topic_id == topic.topic_id
    assert gone == [], "it was not deleted"


async def test_configs_of_topics_are_followed(nodes: list[Node]) -> None:
    await nodes[0].serving.topic_commands.create("t", partitions=3, configs={})
    await nodes[1].serving.topic_commands.alter("t", lambda own: own | {"retention.ms": "7"})
    for node in nodes:
        await eventually(
            lambda node=node: [each.config.retention_ms for each in node.serving.topics.led_partitions()] == [7]
        )


async def test_a_node_that_stops_or_starts_is_seen_by_all(tmp_path: Path, catalog_url: str) -> None:
    catalog_url = catalog_url or f"sqlite:///{tmp_path}/catalog.db"
    async with running_nodes(tmp_path, 2, catalog_url) as nodes:
        shared = {"catalog_url": catalog_url, "objects_path": tmp_path / "objects"}
        async with running_node(tmp_path / "3", node_id=3, **shared, rack="r") as third:
            for node in nodes:
                await eventually(lambda node=node: node.serving.members.get(3) is not None)
                found = node.serving.members.get(3)
                assert found is not None
                assert found.listeners == (third.advertised,)
                assert found.rack == "r"
            await eventually(lambda: [each.node_id for each in third.serving.members.living()] == [1, 2, 3])
        for node in nodes:
            await eventually(lambda node=node: [each.node_id for each in node.serving.members.living()] == [1, 2])


async def test_what_changed_while_the_catalog_was_away_is_seen_afterwards(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def away(_seen: int) -> None:
        nonlocal asked
        asked += 1
        raise CatalogUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(nodes[0].serving.catalog, "read_changes", away)
        await nodes[1].serving.catalog.alter_config(
            "group", "g", set_configs={"consumer.session.timeout.ms": "50000"}, unset=()
        )
        await eventually(lambda: asked > 0)
    await eventually(lambda: nodes[0].serving.cluster_configs.get("group", "g") != {})


async def test_nodes_upload_sooner_beside_others_for_what_these_would_have_to_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.cluster.membership.loop.TAIL_BYTES_MAX", 3 << 20)
    shared = {"catalog_url": f"sqlite:///{tmp_path}/catalog.db", "objects_path": tmp_path / "objects"}
    async with running_node(tmp_path / "1", node_id=1, **shared) as first:
        alone = first.serving.storage.upload_threshold_bytes
        assert alone > 1 << 20
        async with running_node(tmp_path / "2", node_id=2, **shared) as second:
            assert second.serving.storage.upload_threshold_bytes == 1 << 20
            await eventually(lambda: first.serving.storage.upload_threshold_bytes == 1 << 20)
    wanted = {"node_id": 3, "storage_upload_bytes": 2 << 20, **shared}
    async with running_node(tmp_path / "3", **wanted) as third:
        third.serving.storage.limit_upload(1 << 20)
        assert third.serving.storage.upload_threshold_bytes == 2 << 20, "as it was set"


async def test_a_node_knows_who_lives_before_clients_can_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client that asks it, and then meets an outage of the catalog, would know no other node."""
    monkeypatch.setattr("anabranch.broker.cluster.membership.loop.BEATS_MISSED", 120)  # however slow the machine is
    async with running_nodes(tmp_path, 1) as (first,):
        settings: dict[str, object] = {
            "catalog_url": f"sqlite:///{tmp_path}/catalog.db",
            "objects_path": tmp_path / "objects",
            "cluster_internal_port": 0,
        }
        async with running_node(tmp_path / "2", node_id=2, **settings) as second:
            assert [each.node_id for each in second.serving.members.living()] == [
                first.serving.node_id,
                second.serving.node_id,
            ]


async def test_a_node_that_is_cut_off_from_the_catalog_only_is_named_as_long_as_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 2) as (cut_off, other):
        await other.serving.topic_commands.create("t", partitions=2, configs={})
        await eventually(lambda: sorted(leaders(other, "t")) == [1, 2])
        led_there = leaders(other, "t").index(cut_off.serving.node_id)

        async def no_beat(*_: object, **__: object) -> None:
            raise CatalogUnavailable("away")

        def named() -> int | None:
            found = find_leadership(other.serving, "t", led_there)
            assert found is not None
            return None if found.leader is None else found.leader.node_id

        with monkeypatch.context() as patch:
            patch.setattr("anabranch.broker.cluster.membership.loop.VOUCHED_S", 2.0)
            patch.setattr(cut_off.serving.catalog, "beat", no_beat)
            await eventually(lambda: other.serving.members.get(cut_off.serving.node_id) is None)
            await eventually(lambda: named() == cut_off.serving.node_id)
            assert other.serving.members.is_listed(cut_off.serving.node_id)
            async with raw_client(cut_off.bootstrap) as client:
                answer = await client.produce("t", [batch_of(b"x")], partition=led_there)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

            async def unreachable(_: object) -> bool:
                return False

            patch.setattr(other.upkeep.failover, "_reaches", unreachable)
            await eventually(lambda: named() is None)
        await eventually(lambda: other.serving.members.get(cut_off.serving.node_id) is not None)
        assert named() == cut_off.serving.node_id
