"""Load by node and by partition, the plan and the moves of the balancer, and its pause."""

from typing import Annotated, Final

from pydantic import Field

from anabranch.broker.api.handlers.local import LocalRequests
from anabranch.broker.api.resources.values import ResourceType
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.configs.broker_table import BALANCER
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import Call, Endpoint, Model, check
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.internal.describe_balance import (
    BalanceMove,
    DescribeBalanceRequest,
    DescribeBalanceResponse,
)

PARTITIONS: Final = 100
PARTITIONS_MAX: Final = 10_000
_SET: Final = 0
_ALL_NODES: Final = ""
"""Name of the resource whose configs are those of all nodes."""


class BalanceQuery(Model):
    """Parameters of the state of the balancer."""

    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_MAX)] = PARTITIONS
    """Number of partitions to show: those that cost most."""


class NodeLoad(Model):
    """Load of a living node, as means of the last minute."""

    node: int
    rack: str
    cores: float
    """Cost of its partitions by their traffic, and of `replica_cores`: 0.5 is half a processor."""
    replica_cores: float
    """Cost of the consumers that read from it as a replica: no move of a partition takes it away."""
    partitions: int
    """Number of partitions that it leads."""
    received_bytes: float
    """A second, as the next ones."""
    sent_bytes: float
    requests: float
    up_ms: int | None
    """Time since it began to serve; null: it does not tell its load."""
    draining: bool


class PartitionLoad(Model):
    """Load of a partition, as means of the last minute."""

    topic: str
    partition: int
    leader: int
    cores: float
    received_bytes: float
    """A second, as the next ones."""
    sent_bytes: float
    requests: float
    resting: bool
    """True: it was moved a moment ago, and stays where it is."""
    advice: str | None
    """Advice for a hot partition, which costs more than a node does in the mean: no move helps."""


class BalancingMove(Model):
    """A move that is planned, or was ordered."""

    topic: str
    partition: int
    from_node: Annotated[int, Field(serialization_alias="from")]
    to: int
    cores: float
    rule: str
    """`fill`: the target has joined, `shed`: the source is overloaded, `zone`: the clients are in the target's rack,
    `spread`: numbers of partitions differ.
    """
    reason: str
    ordered_ms: int | None
    """Null: it is only planned."""
    done: bool
    failure: str | None


class ClusterBalance(Model):
    """Loads, the last plan, and earlier moves, as the controller has them."""

    controller: int
    now_ms: int
    is_on: bool
    """False: the balancer is paused. It plans, and moves nothing."""
    waits: str | None
    """Reason for which nothing is planned now."""
    planned_ms: int | None
    spread_before: float
    """Highest load of a node, in multiples of the mean; 1 is even. Before the moves of the plan."""
    spread_after: float
    nodes: list[NodeLoad]
    partitions: list[PartitionLoad]
    """The most expensive first."""
    plan: list[BalancingMove]
    """Moves of the last plan, which is made every ten seconds."""
    history: list[BalancingMove]
    """Moves that the controller has ordered since it became one, the newest first."""


class BalancerSwitch(Model):
    """State of the balancer: it may move partitions, or it is paused."""

    is_on: bool


class BalanceEndpoints:
    """Endpoints of the balancer."""

    def __init__(self, serving: Serving, calls: Calls, local: LocalRequests) -> None:
        self._serving = serving
        self._calls = calls
        self._local = local
        path, show = "/cluster/balance", "Load by node and by partition, the plan of the balancer, and its last moves."
        pause, resume = "Let the balancer move nothing.", "Let the balancer move partitions again."
        self.endpoints = [
            Endpoint("GET", path, show, self._show, ClusterBalance, BalanceQuery),
            Endpoint("POST", f"{path}/pause", pause, self._pause, BalancerSwitch),
            Endpoint("POST", f"{path}/resume", resume, self._resume, BalancerSwitch),
        ]

    async def _show(self, call: Call) -> ClusterBalance:
        controller = self._serving.members.controller_id
        request = DescribeBalanceRequest(partitions_max=call.query.partitions)
        answer: DescribeBalanceResponse = await self._calls.call(controller, request, call.user)
        return ClusterBalance(
            controller=controller,
            now_ms=self._serving.now_ms(),
            is_on=answer.is_on,
            waits=answer.waits or None,
            planned_ms=_known(answer.planned_ms),
            spread_before=answer.spread_before,
            spread_after=answer.spread_after,
            nodes=[
                NodeLoad(
                    node=each.node_id,
                    rack=each.rack,
                    cores=each.cores,
                    replica_cores=each.replica_cores,
                    partitions=each.partitions,
                    received_bytes=each.received_bytes,
                    sent_bytes=each.sent_bytes,
                    requests=each.requests,
                    up_ms=_known(each.up_ms),
                    draining=each.draining,
                )
                for each in answer.nodes
            ],
            partitions=[
                PartitionLoad(
                    topic=each.topic,
                    partition=each.partition,
                    leader=each.leader,
                    cores=each.cores,
                    received_bytes=each.received_bytes,
                    sent_bytes=each.sent_bytes,
                    requests=each.requests,
                    resting=each.resting,
                    advice=each.advice or None,
                )
                for each in answer.partitions
            ],
            plan=[_move(each) for each in answer.moves],
            history=[_move(each) for each in answer.history],
        )

    async def _pause(self, call: Call) -> BalancerSwitch:
        return await self._switch(call, is_on=False)

    async def _resume(self, call: Call) -> BalancerSwitch:
        return await self._switch(call, is_on=True)

    async def _switch(self, call: Call, *, is_on: bool) -> BalancerSwitch:
        """Set the config of all nodes. The controller sees it within a beat."""
        config = AlterableConfig(name=BALANCER, config_operation=_SET, value=str(is_on).lower())
        resource = AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name=_ALL_NODES, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (result,) = (await self._local.call(request, call.user)).responses
        check(result.error_code, result.error_message)
        return BalancerSwitch(is_on=is_on)


def _move(each: BalanceMove) -> BalancingMove:
    return BalancingMove(
        topic=each.topic,
        partition=each.partition,
        from_node=each.from_node,
        to=each.to_node,
        cores=each.cores,
        rule=each.rule,
        reason=each.reason,
        ordered_ms=_known(each.ordered_ms),
        done=each.done,
        failure=each.failure or None,
    )


def _known(ms: int) -> int | None:
    return None if ms < 0 else ms
