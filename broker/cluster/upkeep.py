"""Upkeep of a node: the work behind the requests, which no handler needs."""

from dataclasses import dataclass

from anabranch.broker.cluster.balancer.balancer import Balancer
from anabranch.broker.cluster.balancer.loads import LoadMeter
from anabranch.broker.cluster.handover.orders import MoveOrders
from anabranch.broker.cluster.membership.drain import Drain
from anabranch.broker.cluster.membership.failover import Failover
from anabranch.broker.cluster.tables import TablesOnDemand
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.scheduler import CleaningScheduler
from anabranch.compaction.service import CompactionService
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.maintain.manifest_keeper import ManifestKeeper


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Components that run in the background only, and that operators order about."""

    failover: Failover
    drain: Drain
    orders: MoveOrders
    """Moves of partitions to other nodes."""
    meter: LoadMeter
    balancer: Balancer
    manifests: ManifestKeeper
    collector: GarbageCollector
    compaction_context: CompactionContext
    compaction: CompactionService
    cleaning: CleaningScheduler
    tables: TablesOnDemand
