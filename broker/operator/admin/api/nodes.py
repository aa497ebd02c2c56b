"""The nodes of the cluster with their logs, and orders about other nodes: drain, stop, fail, give up, remove."""

from http import HTTPStatus
from typing import Final

from pydantic import RootModel

from anabranch.broker.api.handlers.local import User
from anabranch.broker.cluster.membership.failover import Failover
from anabranch.broker.cluster.membership.overview import (
    BalanceState,
    ClusterFacts,
    ClusterStatus,
    Loss,
    NodeLog,
    RegisteredNode,
    describe_cluster,
    describe_log,
    describe_loss,
    describe_nodes,
)
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import ROOT_CONFIG, ApiError, Call, Endpoint, Model, ValidationQuery
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.internal.describe_balance import DescribeBalanceRequest
from anabranch.protocol.messages.internal.stop_node import StopNodeRequest, StopNodeResponse
from anabranch.s3stream.errors import NodeInUse

ID_DIGITS_MAX: Final = 10
BALANCE_TIMEOUT_S: Final = 2.0
"""Time for the controller's answer: the state of the cluster must be seen while a node hangs."""


class NodeList(Model):
    """The registered nodes."""

    nodes: list[RegisteredNode]


class ClusterAnswer(RootModel[ClusterStatus]):
    """The state of the cluster."""

    model_config = ROOT_CONFIG


class FailedNode(Model):
    """A node that was declared dead."""

    node: int
    log: NodeLog | None
    """The log that was recovered."""


class LossAnswer(RootModel[Loss]):
    """Records that are lost, or that would be."""

    model_config = ROOT_CONFIG


class GiveUpQuery(Model):
    """Parameters of a loss that is accepted."""

    epoch: int | None = None
    """Epoch of the plan that was seen: the request is refused if the node has another one now."""


class RemovedNode(Model):
    """A node that was removed."""

    node: int
    inherited: int
    """Objects that the heir compacts from now on."""
    heir: int


class Drain(Model):
    """State of a node that is drained, or was."""

    node: int
    draining: bool
    lives: bool
    leads: int
    """Number of partitions that it still leads."""
    failed: dict[str, str]
    """Reasons of moves that have failed and are tried again, by partition."""


class ChangedDrain(Drain):
    """State of a drain after a request to begin or end it."""

    changed: bool
    """False: it had begun or ended before."""


class StoppingNode(Model):
    """A drained node whose process ends."""

    node: int


class NodeEndpoints:
    """Endpoints of nodes."""

    def __init__(self, serving: Serving, failover: Failover, calls: Calls) -> None:
        self._serving = serving
        self._calls = calls
        self._failover = failover
        path, drain = "/nodes/{node}", "/nodes/{node}/drain"
        status = "Nodes, partitions without a leader, moves, and logs that are not drained."
        fail, remove = "Declare a node dead, and recover its log.", "Remove a node that has left or failed."
        loss, give_up = "What is lost with the log of a dead node.", "Accept the loss of a dead node's log."
        self.endpoints = [
            Endpoint("GET", "/cluster/status", status, self._status, ClusterAnswer),
            Endpoint("GET", "/nodes", "The registered nodes, with their logs.", self._list, NodeList),
            Endpoint("DELETE", path, remove, self._remove, RemovedNode, is_limited=False),
            Endpoint("POST", f"{path}/stop", "End the process of a drained node.", self._stop, StoppingNode),
            Endpoint("POST", f"{path}/fail", fail, self._fail, FailedNode, is_limited=False),
            Endpoint("GET", f"{path}/loss", loss, self._loss, LossAnswer, is_limited=False),
            Endpoint("POST", f"{path}/give-up", give_up, self._give_up, LossAnswer, GiveUpQuery, is_limited=False),
            Endpoint("GET", drain, "How far the drain of a node is.", self._drain, Drain),
            Endpoint(
                "POST",
                drain,
                "Move away what a node leads.",
                self._begin_drain,
                ChangedDrain,
                ValidationQuery,
                is_limited=False,
            ),
            Endpoint(
                "DELETE",
                drain,
                "End the drain of a node.",
                self._end_drain,
                ChangedDrain,
                ValidationQuery,
                is_limited=False,
            ),
        ]

    async def _status(self, call: Call) -> ClusterAnswer:
        members, facts = self._serving.members, await cluster_facts(self._serving, self._failover)
        return ClusterAnswer(
            describe_cluster(
                facts,
                controller=members.controller_id,
                observer=members.own.node_id,
                balance=await self._balance(call.user),
            )
        )

    async def _balance(self, user: User) -> BalanceState | None:
        members = self._serving.members
        if len(members.living()) < 2:
            return None
        answers, _ = await self._calls.call_each(
            [members.controller_id], lambda _: DescribeBalanceRequest(partitions_max=0), user, BALANCE_TIMEOUT_S
        )
        return next(
            (
                BalanceState(each.is_on, each.waits or None, each.spread_before, len(each.moves))
                for each in answers.values()
            ),
            None,
        )

    async def _list(self, _: Call) -> NodeList:
        return NodeList(nodes=describe_nodes(await cluster_facts(self._serving, self._failover)))

    async def _stop(self, call: Call) -> StoppingNode:
        node_id = _node_id(call)
        if node_id == self._serving.node_id:
            raise NodeInUse(f"node {node_id} answers this: ask another node, which can remove it")
        answer: StopNodeResponse = await self._calls.call(node_id, StopNodeRequest(), call.user)
        if answer.failure:
            raise NodeInUse(answer.failure)
        return StoppingNode(node=node_id)

    async def _fail(self, call: Call) -> FailedNode:
        node_id = _node_id(call)
        log = await self._serving.operations.fail(node_id)
        return FailedNode(node=node_id, log=None if log is None else describe_log(log))

    async def _loss(self, call: Call) -> LossAnswer:
        plan = await self._serving.operations.plan_loss(_node_id(call))
        return LossAnswer(describe_loss(plan.node, plan.log, plan.partitions))

    async def _give_up(self, call: Call) -> LossAnswer:
        plan = await self._serving.operations.give_up(_node_id(call), epoch=call.query.epoch)
        return LossAnswer(describe_loss(plan.node, plan.log, plan.partitions))

    async def _remove(self, call: Call) -> RemovedNode:
        node_id = _node_id(call)
        inherited = await self._serving.operations.remove(node_id)
        return RemovedNode(node=node_id, inherited=inherited, heir=self._serving.node_id)

    async def _begin_drain(self, call: Call) -> ChangedDrain:
        node_id, members = _node_id(call), self._serving.members
        if members.get(node_id) is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node {node_id} is not running: it has nothing to be moved.")
        others = [each for each in members.living() if each.node_id != node_id and each.node_id not in members.draining]
        if not others:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"No other node could lead the partitions of node {node_id}.")
        return await self._set_draining(call, draining=True)

    async def _end_drain(self, call: Call) -> ChangedDrain:
        return await self._set_draining(call, draining=False)

    async def _set_draining(self, call: Call, *, draining: bool) -> ChangedDrain:
        changed = False
        if not call.query.validate_only:
            changed = await self._serving.move_requests.set_draining(_node_id(call), draining=draining)
        return ChangedDrain(**dict(await self._drain(call)), changed=changed)

    async def _drain(self, call: Call) -> Drain:
        node_id, members = _node_id(call), self._serving.members
        led = self._serving.move_requests.led_by(node_id)
        return Drain(
            node=node_id,
            draining=node_id in members.draining,
            lives=members.get(node_id) is not None,
            leads=len(led),
            failed={
                str(place): info.order.failure
                for place, info in led.items()
                if info.order is not None and info.order.failure
            },
        )


async def cluster_facts(serving: Serving, failover: Failover) -> ClusterFacts:
    """Return what the catalog has about the cluster, and what this node observes. Raises StorageError."""
    catalog = serving.catalog
    nodes = await catalog.list_nodes()
    silent = serving.membership.silent()
    judgements = [found for each in nodes if (found := failover.judge(each)) is not None]
    return ClusterFacts(
        nodes=nodes,
        logs=await catalog.list_all_wals(),
        topics=await catalog.list_topics(),
        last_commits=await catalog.last_commits(),
        now_ms=serving.now_ms(),
        living=frozenset(member.node_id for member in serving.members.living()),
        beat_ages_ms={serving.node_id: 0} | {key: int(1000 * silence.seconds) for key, silence in silent.items()},
        judgements=judgements,
        unreached=serving.reach.unreached(),
        stopped={
            partition.stream.stream_id: str(partition.stream.error)
            for topic in serving.topics
            for partition in topic.partitions
            if partition is not None and partition.stream.error is not None
        },
        obstacles=serving.storage.obstacles(),
    )


def _node_id(call: Call) -> int:
    """Return the node's id that a path names. Raises ApiError."""
    text = call.path["node"]
    if not (text.isascii() and text.isdecimal() and len(text) <= ID_DIGITS_MAX):
        raise ApiError(HTTPStatus.BAD_REQUEST, f"expected a node id, found {text!r}")
    return int(text)
