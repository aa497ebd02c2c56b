"""Components of a node as one of many: its membership, commands that others must see, moves, takeovers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.broker.app.storage import Basis, OpenStorage
from anabranch.broker.cluster.handover.orders import BEAT_AGE_S, MoveOrders
from anabranch.broker.cluster.handover.source import PartitionSource
from anabranch.broker.cluster.handover.target import PartitionTarget
from anabranch.broker.cluster.membership.copies import Copies
from anabranch.broker.cluster.membership.failover import Failover
from anabranch.broker.cluster.membership.log_recovery import LogRecovery, takeover_of
from anabranch.broker.cluster.membership.loop import Membership
from anabranch.broker.cluster.membership.operations import NodeOperations
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.kafka.configs.broker import BrokerConfigs
from anabranch.broker.kafka.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_TOPIC,
    InternalTopics,
)
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.move_requests import MoveRequests
from anabranch.broker.kafka.topics.moves import TopicMoves
from anabranch.broker.node.peers.links import LinkContext, Links
from anabranch.broker.node.peers.members import Member, Members, member_of
from anabranch.broker.node.peers.reach import Reach
from anabranch.broker.node.settings.package_settings import storage_settings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import Takeover

if TYPE_CHECKING:
    from anabranch.broker.node.net.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Commands that change topics, each in a turn of the membership."""

    topics: TopicCommands
    internal_topics: InternalTopics
    move_requests: MoveRequests
    moves: TopicMoves


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeovers:
    """Takeovers of dead nodes, by this node or by order of a person."""

    failover: Failover
    operations: NodeOperations


def make_links(basis: Basis, opened: OpenStorage, members: Members, tasks: NodeTasks, tls: "Tls | None") -> Links:
    """Build the connections to other nodes."""
    environment, settings = basis.environment, basis.settings
    used = tls if settings.cluster.internal_tls in {"preferred", "required"} else None
    context = LinkContext(
        settings.node.cluster,
        opened.shared.secret,
        environment.open_connection if used is None else used.open_connection,
        environment.random_bytes,
        environment.random(),
    )
    return Links(context, members, tasks.spawn)


def make_reach(opened: OpenStorage, members: Members, links: Links) -> Reach:
    """Build the watch over the connections between the nodes."""
    return Reach(members, links, has_started=lambda other: _has_started(opened.catalog, other))


async def _has_started(catalog: Catalog, node: Member) -> bool:
    """Return whether a node has recovered its log in this life of it. Raises StorageError."""
    return any(wal.node_epoch == node.epoch for wal in await catalog.list_wals(node.node_id))


def make_membership(
    basis: Basis, opened: OpenStorage, members: Members, topics: TopicManager, groups: GroupCoordinator
) -> Membership:
    """Build the loop that beats from its `start` on."""
    shared = opened.shared
    return Membership(
        opened.catalog,
        opened.lease,
        wal=opened.wal,
        is_exclusive=takeover_of(basis.settings, opened.wal) is not Takeover.SHARED,
        storage=opened.storage,
        members=members,
        copies=Copies(
            topics=topics,
            groups=groups,
            configs=shared.configs,
            acls=shared.acls,
            tokens=shared.tokens,
            secret=shared.secret,
        ),
        seen=shared.seen_change,
        nodes=shared.nodes,
        on_lost=basis.failure.report,
    )


def make_commands(
    basis: Basis, opened: OpenStorage, members: Members, topics: TopicManager, membership: Membership
) -> Commands:
    """Build the commands."""
    environment, settings, catalog = basis.environment, basis.settings, opened.catalog
    commands = TopicCommands(
        catalog=catalog,
        topics=topics,
        turns=membership,
        members=members,
        settings=settings,
        now_ms=environment.now_ms,
        new_topic_id=environment.new_topic_id,
    )
    requests = MoveRequests(
        catalog=catalog, topics=topics, turns=membership, members=members, now_ms=environment.now_ms
    )
    return Commands(
        topics=commands,
        internal_topics=InternalTopics(
            topics,
            commands,
            {
                OFFSETS_TOPIC: settings.group.offsets_partitions,
                TRANSACTION_TOPIC: settings.transaction.state_partitions,
                SHARE_STATE_TOPIC: settings.share.state_partitions,
            },
        ),
        move_requests=requests,
        moves=TopicMoves(
            catalog=catalog,
            storage=opened.storage,
            topics=topics,
            turns=membership,
            requests=requests,
            members=members,
            settings=settings,
            node=opened.info.identity,
            now_ms=environment.now_ms,
            new_topic_id=environment.new_topic_id,
        ),
    )


def make_orders(
    opened: OpenStorage, topics: TopicManager, membership: Membership, links: Links, tasks: NodeTasks
) -> MoveOrders:
    """Build what carries out orders to move partitions that this node leads."""
    source = PartitionSource(
        opened.catalog, opened.storage, topics, links, may_seal=lambda: membership.beat_age_s <= BEAT_AGE_S
    )
    return MoveOrders(
        opened.catalog,
        topics,
        source,
        node_id=opened.info.node_id,
        beat_age_s=lambda: membership.beat_age_s,
        spawn=tasks.spawn,
    )


def make_target(opened: OpenStorage, topics: TopicManager, membership: Membership, tasks: NodeTasks) -> PartitionTarget:
    """Build what receives partitions of other nodes."""
    return PartitionTarget(opened.catalog, opened.storage, topics, membership, tasks.spawn)


def make_takeovers(
    basis: Basis,
    opened: OpenStorage,
    topics: TopicManager,
    membership: Membership,
    links: Links,
    *,
    defaults: BrokerConfigs,
    tasks: NodeTasks,
) -> Takeovers:
    """Build what takes dead nodes over. Nothing is taken over yet."""
    environment, info = basis.environment, opened.info
    recovery = LogRecovery(
        catalog=opened.catalog,
        stores=opened.stores,
        settings=basis.settings,
        storage_settings=storage_settings(basis.settings, basis.memory.sizes),
        files=environment.logs,
        host_name=info.holder.host_name,
        work=opened.work,
        defaults=defaults,
        now_ms=environment.now_ms,
        new_writer_id=basis.new_writer_id,
    )
    failover = Failover(
        opened.catalog,
        membership,
        recovery,
        own=info.identity,
        new_leaders=topics.new_leaders,
        left_any=topics.names_node,
        reaches=lambda other: links.reaches(member_of(other)),
        spawn=tasks.spawn,
    )
    operations = NodeOperations(
        opened.catalog,
        membership,
        failover,
        node_id=info.node_id,
        new_leaders=topics.new_leaders,
        now_ms=environment.now_ms,
    )
    return Takeovers(failover=failover, operations=operations)
