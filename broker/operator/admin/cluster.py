"""Requests of the admin port about all nodes of the cluster, and orders about other nodes.

GET  /nodes                         the registered nodes, with their logs
GET  /cluster                       nodes, partitions without a leader, moves, logs that are not drained
POST /nodes/fail?node=ID            declare a node dead; responds when its log is recovered
GET  /nodes/give-up?node=ID         what is lost when the log of a dead node is given up
POST /nodes/give-up/accept?node=ID&epoch=E    give it up, if that is still the node's epoch
POST /nodes/remove?node=ID          remove the registration of a node that has left or failed
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from anabranch.broker.cluster.membership.failover import TakeoverRefused
from anabranch.broker.cluster.membership.operations import LossPlan
from anabranch.broker.cluster.membership.overview import ClusterFacts, describe_cluster, describe_log, describe_nodes
from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.responses import Query, Response, Route, json_response, text_response
from anabranch.s3stream.errors import NodeInUse, NotFound, StorageError
from anabranch.wal.interface import WalError


class ClusterRoutes:
    """Handlers of requests about nodes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.routes: Mapping[str, Route] = {
            "/nodes": ("GET", self._nodes),
            "/cluster": ("GET", self._cluster),
            "/nodes/fail": ("POST", self._fail),
            "/nodes/give-up": ("GET", self._plan_loss),
            "/nodes/give-up/accept": ("POST", self._give_up),
            "/nodes/remove": ("POST", self._remove),
        }

    async def _nodes(self, _: Query) -> Response:
        return await _answer(lambda: self._described(describe_nodes))

    async def _cluster(self, _: Query) -> Response:
        members = self._node.members
        return await _answer(
            lambda: self._described(
                lambda facts: describe_cluster(facts, controller=members.controller_id, observer=members.own.node_id)
            )
        )

    async def _described(self, describe: Callable[[ClusterFacts], Any]) -> Any:
        return describe(await cluster_facts(self._node))

    async def _fail(self, query: Query) -> Response:
        async def work(node_id: int) -> Any:
            log = await self._node.operations.fail(node_id)
            return {"node": node_id, "log": None if log is None else describe_log(log)}

        return await _order(query, work)

    async def _plan_loss(self, query: Query) -> Response:
        async def work(node_id: int) -> Any:
            return _describe_loss(await self._node.operations.plan_loss(node_id))

        return await _order(query, work)

    async def _give_up(self, query: Query) -> Response:
        async def work(node_id: int) -> Any:
            epoch = query.get("epoch", "")
            wanted = int(epoch) if epoch.isdecimal() else None
            return _describe_loss(await self._node.operations.give_up(node_id, epoch=wanted))

        return await _order(query, work)

    async def _remove(self, query: Query) -> Response:
        async def work(node_id: int) -> Any:
            inherited = await self._node.operations.remove(node_id)
            return {"node": node_id, "inherited": inherited, "heir": self._node.node_id}

        return await _order(query, work)


async def cluster_facts(node: Node) -> ClusterFacts:
    """Return what the catalog has about the cluster, and what this node observes. Raises StorageError."""
    catalog = node.catalog
    nodes = await catalog.list_nodes()
    silent = node.follower.silent()
    judgements = [found for each in nodes if (found := node.failover.judge(each)) is not None]
    return ClusterFacts(
        nodes=nodes,
        logs=await catalog.list_all_wals(),
        topics=await catalog.list_topics(),
        last_commits=await catalog.last_commits(),
        now_ms=node.now_ms(),
        living=frozenset(member.node_id for member in node.members.living()),
        beat_ages_ms={node.node_id: 0} | {key: int(1000 * silence.seconds) for key, silence in silent.items()},
        judgements=judgements,
        unreached=node.reach.unreached(),
        stopped={
            partition.stream.stream_id: str(partition.stream.error)
            for topic in node.topics
            for partition in topic.partitions
            if partition is not None and partition.stream.error is not None
        },
    )


def _describe_loss(plan: LossPlan) -> dict[str, Any]:
    return {
        "node": plan.node.node_id,
        "epoch": plan.node.epoch,
        "machine": plan.node.holder.host_name,
        "log": describe_log(plan.log),
        "partitions": [{"partition": each.partition, "from_offset": each.end_offset} for each in plan.partitions],
    }


async def _order(query: Query, work: Callable[[int], Awaitable[Any]]) -> Response:
    wanted = query.get("node", "")
    if not wanted.isdecimal():
        return text_response(HTTPStatus.BAD_REQUEST, f"node={wanted}: expected a node id")
    return await _answer(lambda: work(int(wanted)))


async def _answer(work: Callable[[], Awaitable[Any]]) -> Response:
    try:
        return json_response(await work())
    except (TakeoverRefused, NodeInUse, NotFound) as error:
        return text_response(HTTPStatus.CONFLICT, str(error))
    except (StorageError, WalError) as error:
        return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
