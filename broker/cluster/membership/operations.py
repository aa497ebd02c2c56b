"""Orders of an operator about other nodes: declare one dead, give up the records that only it has, remove it.

Nothing here happens by itself. A node that another one can replace is replaced (`broker.cluster.membership.failover`);
records are lost only by these orders, and each loss is logged with its offsets.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.broker.cluster.membership.failover import Failover, TakeoverRefused
from anabranch.broker.cluster.membership.loop import Membership
from anabranch.broker.cluster.membership.loss import PartitionAtRisk, give_up_logs, log_loss, partitions_at_risk
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, WalInfo
from anabranch.s3stream.errors import NodeInUse, NotFound


@dataclass(frozen=True, slots=True)
class LossPlan:
    """Partitions that may lose records when the log of a dead node is given up."""

    node: NodeInfo
    log: WalInfo
    partitions: Sequence[PartitionAtRisk]


class NodeOperations:
    """Orders about other nodes, carried out by this one."""

    def __init__(
        self,
        catalog: Catalog,
        membership: Membership,
        failover: Failover,
        *,
        node_id: int,
        new_leaders: Callable[[], Sequence[int]],
        now_ms: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._membership = membership
        self._failover = failover
        self._node_id = node_id
        self._new_leaders = new_leaders
        self._now_ms = now_ms

    async def fail(self, node_id: int) -> WalInfo | None:
        """Declare a node dead, and recover its log; return the log, None if it had none.

        Raises TakeoverRefused, StorageError, WalError.
        """
        await self._membership.catch_up()
        log = await self._failover.declare_dead(node_id)
        await self._membership.catch_up()
        return log

    async def plan_loss(self, node_id: int) -> LossPlan:
        """Return what is lost with a node's log. Raises TakeoverRefused when it is not lost, StorageError."""
        await self._membership.catch_up()
        node, log = await self._failover.find_lost_log(node_id)
        return LossPlan(node, log, await partitions_at_risk(self._catalog, node_id))

    async def give_up(self, node_id: int, *, epoch: int | None = None) -> LossPlan:
        """Accept the loss of a dead node's log: its partitions continue at their committed ends, at other nodes.

        With `epoch`, only while that is the node's epoch, as in a plan. Raises TakeoverRefused, StorageError.
        """
        plan = await self.plan_loss(node_id)
        if epoch not in (None, plan.node.epoch):
            raise TakeoverRefused(f"node {node_id} is in epoch {plan.node.epoch} now, not {epoch} as in the plan")
        logs = [wal for wal in await self._catalog.list_wals(node_id) if wal.is_live]
        try:
            await give_up_logs(
                self._catalog,
                logs,
                plan.partitions,
                seen=plan.node,
                leaders=self._successors_of(node_id),
                now_ms=self._now_ms(),
            )
        except NodeInUse as error:
            raise TakeoverRefused(str(error)) from None
        await self._membership.catch_up()
        return plan

    async def give_up_partitions(self, node_id: int, stream_ids: Collection[int]) -> Mapping[int, PartitionAtRisk]:
        """As `give_up`, for some partitions of a dead node: its log stays that of the others.

        Returns those that were given up, by stream id. Raises TakeoverRefused, StorageError.
        """
        node, log = await self._failover.find_lost_log(node_id)
        at_risk = await partitions_at_risk(self._catalog, node_id, only=stream_ids)
        wanted = {each.stream_id: each for each in at_risk}
        try:
            await self._catalog.give_up_streams(wanted.keys(), seen=node, leaders=self._successors_of(node_id))
        except NodeInUse as error:
            raise TakeoverRefused(str(error)) from None
        log_loss(log, at_risk)
        await self._membership.catch_up()
        return wanted

    async def remove(self, node_id: int) -> int:
        """Remove the registration of a node that has left or failed, and inherit its objects; return their number.

        Raises NotFound, NodeInUse when the node is needed or lives, StorageError.
        """
        await self._membership.catch_up()
        if node_id == self._node_id:
            raise NodeInUse(f"node {node_id} is alive: it answers this")
        found = await self._catalog.observe_node(node_id)
        if found is None:
            raise NotFound(f"node {node_id} is not registered")
        seen, beat = found
        if beat.has_lease:
            try:
                seen = await self._failover.find_dead(node_id)
            except TakeoverRefused as error:
                raise NodeInUse(str(error)) from None
        removed = await self._catalog.remove_node(seen, heir=self._node_id, now_ms=self._now_ms())
        await self._membership.catch_up()
        return removed

    def _successors_of(self, node_id: int) -> Sequence[int]:
        return [each for each in self._new_leaders() if each != node_id]
