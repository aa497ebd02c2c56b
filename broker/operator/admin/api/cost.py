"""Use of the cluster, asked of all nodes, and what it costs in a month."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final

from pydantic import Field, RootModel

from anabranch.broker.api.handlers.local import User
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.traffic import DELETED
from anabranch.broker.operator.admin.api.calls import Calls
from anabranch.broker.operator.admin.api.endpoints import ROOT_CONFIG, ApiError, Call, Endpoint, Model
from anabranch.broker.operator.admin.cost import Cost, TopicUse, Traffic, Use, price
from anabranch.broker.operator.admin.prices import InvalidPrices, parse_prices
from anabranch.protocol.messages.internal.describe_usage import DescribeUsageRequest, DescribeUsageResponse

TIMEOUT_S: Final = 5.0
SECONDS_MAX: Final = 86_400
DELETED_TOPICS: Final = "(deleted)"
Answers = Mapping[int, DescribeUsageResponse]
"""Counters by node."""


class CostQuery(Model):
    """Parameters of a cost."""

    seconds: Annotated[int, Field(ge=0, le=SECONDS_MAX)] = 0
    """Time to measure for, before there is an answer; 0: rates are means since the start of the nodes."""
    prices: str = ""
    """Price list in TOML, as `anabranch cluster cost --print-prices` prints it; what it leaves out has that price."""


@dataclass(frozen=True, slots=True)
class RackBytes:
    """Bytes of record batches a second between the clients of a rack and the nodes of another one."""

    clients: str
    """Empty: not known, as the next one."""
    nodes: str
    received: float
    sent: float


@dataclass(frozen=True, slots=True)
class ClusterCost:
    """Use of the cluster, and its cost in a month."""

    use: Use
    racks: list[RackBytes]
    cost: Cost
    unreachable: list[int]
    """Nodes whose use is not known."""


class CostAnswer(RootModel[ClusterCost]):
    """Use of the cluster, and its cost in a month."""

    model_config = ROOT_CONFIG


class CostEndpoints:
    """Endpoint of the cost."""

    def __init__(self, serving: Serving, calls: Calls) -> None:
        self._serving = serving
        self._calls = calls
        summary = "Traffic across zones, calls to object stores and stored bytes, by topic, with their cost in a month."
        self.endpoints = [
            Endpoint("GET", "/cluster/cost", summary, self._cost, CostAnswer, CostQuery, is_limited=False)
        ]

    async def _cost(self, call: Call) -> CostAnswer:
        try:
            prices = parse_prices(call.query.prices, "prices")
        except InvalidPrices as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from None
        before: Answers = {}
        if call.query.seconds:
            before, _ = await self._ask(call.user)
            await asyncio.sleep(call.query.seconds)
        answers, unreachable = await self._ask(call.user)
        catalog, topics = self._serving.catalog, self._serving.topics
        names = {each.stream_id: topic.name for topic in topics for each in topic.info.partitions}
        stored, objects = await catalog.stream_bytes(list(names)), await catalog.count_objects()
        racks = {member.node_id: member.rack for member in self._serving.members.living()}
        rates = {
            node_id: NodeRates(answer, before.get(node_id), racks.get(node_id, ""))
            for node_id, answer in answers.items()
        }
        use = make_use(rates, racks, names, stored, sum(size for _, size in objects.values()))
        return CostAnswer(ClusterCost(use, list(_matrix(rates)), price(use, prices), unreachable))

    async def _ask(self, user: User) -> tuple[Answers, list[int]]:
        living = self._calls.living()
        return await self._calls.call_each(living, lambda _: DescribeUsageRequest(), user, TIMEOUT_S)


class NodeRates:
    """Rates of a node: between two answers, or since its start if there is no earlier one of the same process."""

    def __init__(self, after: DescribeUsageResponse, before: DescribeUsageResponse | None, rack: str) -> None:
        if before is None or before.epoch != after.epoch:
            before = DescribeUsageResponse()
        self.rack = rack
        self.seconds = max(after.up_ms - before.up_ms, 1) / 1000
        self.log_disk_bytes = after.log_disk_bytes
        counts = _counts(after)
        earlier = _counts(before)
        for (rack_name, stream_id), (received, sent) in list(earlier.items()):
            if (rack_name, stream_id) not in counts:  # it was deleted meanwhile, and its bytes of before count as such
                gone = earlier.get((rack_name, DELETED), (0, 0))
                earlier[rack_name, DELETED] = gone[0] + received, gone[1] + sent
        self.streams = {
            key: (self._rate(received - earlier.get(key, (0, 0))[0]), self._rate(sent - earlier.get(key, (0, 0))[1]))
            for key, (received, sent) in counts.items()
        }
        """Bytes received and sent a second, by the rack of clients and stream."""
        links = {each.node_id: each.exchanged_bytes for each in before.links}
        self.links = {
            each.node_id: self._rate(each.exchanged_bytes - links.get(each.node_id, 0)) for each in after.links
        }
        self.writes = self._rate(sum(each.writes for each in after.stores) - sum(each.writes for each in before.stores))
        self.reads = self._rate(sum(each.reads for each in after.stores) - sum(each.reads for each in before.stores))

    def _rate(self, count: int) -> float:
        return max(count, 0) / self.seconds


def _counts(answer: DescribeUsageResponse) -> dict[tuple[str, int], tuple[int, int]]:
    """Return bytes received and sent, by the rack of clients and stream."""
    return {
        (rack.rack, each.stream_id): (each.received_bytes, each.sent_bytes)
        for rack in answer.racks
        for each in rack.streams
    }


def make_use(
    rates: Mapping[int, NodeRates],
    racks: Mapping[int, str],
    names: Mapping[int, str],
    stored: Mapping[int, int],
    object_bytes: int,
) -> Use:
    """Add up the rates of nodes. `names` are topics, `stored` bytes in objects, by stream."""
    received: dict[str, Traffic] = defaultdict(Traffic)
    sent: dict[str, Traffic] = defaultdict(Traffic)
    kept: dict[str, int] = defaultdict(int)
    peers = Traffic()
    for stream_id, size in stored.items():
        kept[names[stream_id]] += size
    for node in rates.values():
        for (rack, stream_id), (received_bytes, sent_bytes) in node.streams.items():
            topic = names.get(stream_id, DELETED_TOPICS)
            received[topic] += _place(rack, node.rack, received_bytes)
            sent[topic] += _place(rack, node.rack, sent_bytes)
        for other, exchanged in node.links.items():
            peers += _place(racks.get(other, ""), node.rack, exchanged)
    return Use(
        measured_s=min((each.seconds for each in rates.values()), default=0.0),
        zones=sorted({rack for rack in racks.values() if rack}),
        topics=[
            TopicUse(topic, received[topic], sent[topic], kept[topic])
            for topic in sorted(kept.keys() | received.keys() | sent.keys())
        ],
        peers=peers,
        object_writes=sum(each.writes for each in rates.values()),
        object_reads=sum(each.reads for each in rates.values()),
        object_bytes=object_bytes,
        log_disk_bytes=sum(each.log_disk_bytes for each in rates.values()),
    )


def _place(one: str, other: str, size: float) -> Traffic:
    if not (one and other):
        return Traffic(unknown=size)
    return Traffic(near=size) if one == other else Traffic(far=size)


def _matrix(rates: Mapping[int, NodeRates]) -> Iterator[RackBytes]:
    found: dict[tuple[str, str], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for node in rates.values():
        for (rack, _), (received, sent) in node.streams.items():
            before = found[rack, node.rack]
            found[rack, node.rack] = before[0] + received, before[1] + sent
    for (clients, nodes), (received, sent) in sorted(found.items()):
        yield RackBytes(clients, nodes, received, sent)
