"""Consumers of a share group (KIP-932), and what their acknowledgements promise.

What is checked, by the invariants of share groups: an acknowledged record is not delivered again (S1) nor acknowledged
twice (S3), every record is acknowledged at last (S2), delivery counts go on from what was released (S4), no record of
an aborted transaction is delivered to a group that reads committed records (S6), and rejected records are in the
dead-letter topic, and none that was accepted (S7).
"""

import asyncio
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from anabranch.client.share import ACCEPT, GAP, REJECT, RELEASE, acknowledge_request
from anabranch.protocol.batch import check_crc, iterate_batches
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.fetch import FetchPartition as ReadPartition
from anabranch.protocol.messages.fetch import FetchRequest
from anabranch.protocol.messages.fetch import FetchTopic as ReadTopic
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from anabranch.protocol.records import decode_records
from tests.simulation.consumers import EARLIEST, LATEST, answered, list_offset
from tests.simulation.history import History, TopicPartition, Violation
from tests.simulation.node import SimNode
from tests.simulation.routing import Client, Lost, NoRoute, Refused, check
from tests.simulation.world import World

GROUP_RESOURCE: Final = 32
BEAT_S: Final = 1.0
DELIVERIES_MAX: Final = 10
"""The delivery count limit of the nodes: a record whose deliveries are used up is given up."""
QUIET_S: Final = 20.0
"""Time without a record after which all are taken: locks have ended, and states were read from new coordinators."""
DEAD: Final = "dlq.share"
"""Dead-letter topic. Nodes create it with the first dead letter."""
DEAD_S: Final = 60.0
"""Time within which all dead letters are written, without faults."""
REJOIN: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})


class Delivery(NamedTuple):
    """A record that a member has got."""

    where: TopicPartition
    offset: int
    delivery_count: int
    is_gap: bool


class ShareHistory:
    """Knowledge of the members of a share group. `committed`: the group reads committed records only."""

    def __init__(self, world: World, group: str, *, committed: bool, has_dead_letters: bool) -> None:
        self.world = world
        self.group = group
        self.committed = committed
        self.has_dead_letters = has_dead_letters
        self.accepted: set[tuple[TopicPartition, int]] = set()
        self.rejected: set[tuple[TopicPartition, int]] = set()
        """Records whose rejection was answered with success."""
        self.done_s: dict[tuple[TopicPartition, int], float] = {}
        """Time at which the acknowledgement of a record, for good, was answered with success."""
        self.unsure: set[tuple[TopicPartition, int]] = set()
        """Records whose acknowledgement was not answered, or in part: they may be done."""
        self.released: dict[tuple[TopicPartition, int], tuple[int, float]] = {}
        """Delivery count of a record when its release was answered, and the time of that."""
        self.counts: Counter[tuple[TopicPartition, int]] = Counter()
        """Highest delivery count that was seen of each record."""
        self.lost_fetches: Counter[TopicPartition] = Counter()
        """Requests without an answer, which may have delivered records."""

    def deliver(self, each: Delivery, sent_s: float) -> None:
        """A record was delivered by a request that was sent then."""
        place = each.where, each.offset
        done_s = self.done_s.get(place)
        if done_s is not None and sent_s > done_s:
            raise Violation(f"share group {self.group} {each.where} offset {each.offset}: delivered after it was done")
        count, released_s = self.released.get(place, (0, 0.0))
        if sent_s > released_s and each.delivery_count <= count:
            raise Violation(
                f"share group {self.group} {each.where} offset {each.offset}: "
                f"delivery count {each.delivery_count} after {count}"
            )
        self.counts[place] = max(self.counts[place], each.delivery_count)

    def acknowledge(self, each: Delivery, kind: int) -> None:
        """An acknowledgement was answered with success."""
        place = each.where, each.offset
        if kind == RELEASE:
            self.released[place] = each.delivery_count, self.world.now_s
            return
        if place in self.done_s:
            raise Violation(f"share group {self.group} {each.where} offset {each.offset}: acknowledged twice")
        self.done_s[place] = self.world.now_s
        (self.accepted if kind == ACCEPT else self.rejected).add(place)

    def missing(
        self,
        starts: Mapping[TopicPartition, int],
        letters: Mapping[tuple[TopicPartition, int], str],
        found: Mapping[TopicPartition, Mapping[int, str]],
    ) -> set[tuple[TopicPartition, int]]:
        """Return the rejected records without dead letters. Raises Violation for dead letters that must not be."""
        for (where, offset), value in letters.items():
            if (where, offset) in self.accepted:
                raise Violation(
                    f"share group {self.group} {where} offset {offset}: a dead letter of an accepted record"
                )
            expected = found[where].get(offset)
            if value and expected is not None and value != expected:
                raise Violation(f"share group {self.group} {where} offset {offset}: dead letter {value!r}")
        kept = {(where, offset) for where, offset in self.rejected if offset >= starts[where]}
        return kept - letters.keys()

    def check_final(self, where: TopicPartition, start: int, found: Mapping[int, str]) -> None:
        """Check that every record of a partition is done, or may be."""
        for offset, value in found.items():
            place = where, offset
            is_used_up = self.counts[place] + self.lost_fetches[where] >= DELIVERIES_MAX
            if offset >= start and not (place in self.done_s or place in self.unsure or is_used_up):
                raise Violation(f"share group {self.group} {where} offset {offset}: {value!r} was never delivered")


class ShareConsumer:
    """A member that takes records of any partition, and accepts, releases, rejects or forgets them."""

    def __init__(
        self, world: World, history: History, shares: ShareHistory, name: str, topics: Mapping[str, int]
    ) -> None:
        self.client = Client(world, name)
        self.random = self.client.random
        self.world = world
        self.history = history
        self.shares = shares
        self.name = name
        self.places = [(topic, index) for topic, count in topics.items() for index in range(count)]
        self.topics = sorted(topics)
        self.ids: dict[bytes, str] = {}
        self.member_id = urlsafe_b64encode(self.random.randbytes(16)).rstrip(b"=").decode()
        self.member_epoch = 0
        self.beat_s = 0.0
        self.session_epochs: dict[int, int] = {}
        """Epoch of the next request to each node that has a session."""

    async def run(self) -> None:
        """Consume until the faults are over. The sessions stay, so that only locks that end free what was forgotten."""
        while not self.world.faults_over.is_set():
            await self.step(careless=True)
            await asyncio.sleep(self.random.uniform(0.1, 0.5))

    async def take_all(self) -> None:
        """Accept records until none have come for a while."""
        quiet_since_s = self.world.now_s
        while self.world.now_s < quiet_since_s + QUIET_S:
            if await self.step(careless=False):
                quiet_since_s = self.world.now_s
            await asyncio.sleep(0.1)
        await self.client.drop()

    async def check_dead_letters(
        self, starts: Mapping[TopicPartition, int], found: Mapping[TopicPartition, Mapping[int, str]]
    ) -> None:
        """Check that all dead letters are written, or will be soon. `found` has all records."""
        until_s = self.world.now_s + DEAD_S
        while missing := self.shares.missing(starts, await self._dead_letters(), found):
            if self.world.now_s > until_s:
                where, offset = min(missing)
                raise Violation(f"share group {self.shares.group} {where} offset {offset}: no dead letter")
            await asyncio.sleep(1)
        self.world.note("dead letters are complete", rejected=len(self.shares.rejected))
        await self.client.drop()

    async def _dead_letters(self) -> Mapping[tuple[TopicPartition, int], str]:
        """Read the dead-letter topic: the values of copies, or empty, by the records that they tell of."""
        letters: dict[tuple[TopicPartition, int], str] = {}
        for index in range(await self._dead_partitions()):
            where = DEAD, index
            offset, end = await list_offset(self.client, where, EARLIEST), await list_offset(self.client, where, LATEST)
            while offset < end:
                partition = ReadPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
                request = FetchRequest(topics=[ReadTopic(topic=DEAD, partitions=[partition])])

                async def ask(request: FetchRequest = request) -> bytes:
                    result = (await self.client.call(request, 11)).responses[0].partitions[0]
                    check(result.error_code, f"Fetch {DEAD}")
                    return bytes(result.records or b"")

                for header, batch in iterate_batches(await answered(self.client, ask)):
                    check_crc(batch, header)
                    offset = header.next_offset
                    for record in decode_records(batch):
                        tells = {name: (value or b"").decode() for name, value in record.headers}
                        source = tells["__dlq.errors.topic"], int(tells["__dlq.errors.partition"])
                        value = "" if record.value is None else self.history.identify(record.value)
                        letters[source, int(tells["__dlq.errors.offset"])] = value
        return letters

    async def _dead_partitions(self) -> int:
        """Return the number of partitions of the dead-letter topic; 0 if there is none."""
        while True:
            try:
                asked = MetadataRequest(topics=[MetadataRequestTopic(name=DEAD)], allow_auto_topic_creation=False)
                (topic,) = (await self.client.call(asked, 12)).topics
            except Lost:
                await self.client.pause()
            else:
                return len(topic.partitions)

    async def step(self, *, careless: bool) -> bool:
        """Beat if it is time, fetch once and acknowledge. Returns False if there was no record and no error."""
        try:
            if not self.ids:
                await self._prepare()
            if self.world.now_s >= self.beat_s:
                await self._beat()
            where = self.random.choice(self.places)
            node = await self.client.node_for(where)
            deliveries = await self._fetch(node, where)
            if deliveries:
                await self._acknowledge(node, deliveries, careless=careless)
        except Lost:
            await self.client.pause()
        except Refused as error:
            if error.code in REJOIN:
                self.member_epoch = 0
            await self.client.pause()
        else:
            return bool(deliveries)
        return True

    async def _prepare(self) -> None:
        """Learn the ids of the topics, and let the group begin with the first records."""
        configs = {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed" if self.shares.committed else "read_uncommitted",
        }
        if self.shares.has_dead_letters:
            configs |= {
                "errors.deadletterqueue.topic.name": DEAD,
                "errors.deadletterqueue.copy.record.enable": "true",
            }
        resource = AlterConfigsResource(
            resource_type=GROUP_RESOURCE,
            resource_name=self.shares.group,
            configs=[AlterableConfig(name=name, config_operation=0, value=value) for name, value in configs.items()],
        )
        altered = await self.client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        check(altered.responses[0].error_code, "IncrementalAlterConfigs")
        asked = [MetadataRequestTopic(name=name) for name in self.topics]
        answer = await self.client.call(MetadataRequest(topics=asked), 12)
        for topic in answer.topics:
            check(topic.error_code, f"Metadata {topic.name}")
        self.ids = {bytes(topic.topic_id): topic.name for topic in answer.topics}

    async def _beat(self) -> None:
        joining = self.member_epoch == 0
        request = ShareGroupHeartbeatRequest(
            group_id=self.shares.group,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            subscribed_topic_names=self.topics if joining else None,
        )
        answer = await self.client.call(request, 1)
        check(answer.error_code, f"ShareGroupHeartbeat {self.name}")
        self.member_epoch = answer.member_epoch
        self.beat_s = self.world.now_s + BEAT_S

    # -- Fetches -----------------------------------------------------------------------------------------------------

    async def _fetch(self, node: SimNode, where: TopicPartition) -> Sequence[Delivery]:
        """Fetch a partition, and with it those that the session has from before. Raises Lost, Refused."""
        partition = FetchPartition(partition_index=where[1])
        request = ShareFetchRequest(
            group_id=self.shares.group,
            member_id=self.member_id,
            share_session_epoch=self.session_epochs.get(node.node_id, 0),
            max_wait_ms=self.random.choice((0, 100, 500)),
            min_bytes=1,
            max_bytes=self.random.choice((10_000, 1 << 20)),
            max_records=self.random.choice((1, 10, 100)),
            batch_size=self.random.choice((1, 10, 100)),
            topics=[FetchTopic(topic_id=self._id_of(where[0]), partitions=[partition])],
        )
        sent_s = self.world.now_s
        answer = await self._send(node, request)
        found = [
            delivery
            for topic in answer.responses
            for each in topic.partitions
            for delivery in self._take((self.ids[bytes(topic.topic_id)], each.partition_index), each, sent_s)
        ]
        errors = {each.error_code for topic in answer.responses for each in topic.partitions} - {0}
        if errors:
            self.client.hear(where, *errors)
            if not found:
                # A session of its own for what is asked for next: this one may have partitions that others lead now.
                self.session_epochs.pop(node.node_id, None)
                raise Refused(min(errors), f"ShareFetch {where}")
        return found

    def _take(self, where: TopicPartition, found: Any, sent_s: float) -> Sequence[Delivery]:
        values: dict[int, str] = {}
        for header, batch in iterate_batches(bytes(found.records or b"")):
            check_crc(batch, header)
            if not header.is_control:
                values.update(self.history.values_of(header, batch))
        deliveries = []
        for acquired in found.acquired_records:
            for offset in range(acquired.first_offset, acquired.last_offset + 1):
                value = values.get(offset)
                delivery = Delivery(where, offset, acquired.delivery_count, value is None)
                if value is not None:
                    self.shares.deliver(delivery, sent_s)
                    self.history.read(where, offset, value, committed=self.shares.committed)
                deliveries.append(delivery)
        return deliveries

    # -- Acknowledgements --------------------------------------------------------------------------------------------

    async def _acknowledge(self, node: SimNode, deliveries: Sequence[Delivery], *, careless: bool) -> None:
        if careless and self.random.random() < 0.05:
            return  # the locks end by themselves
        kinds = {each: self._kind(each, careless=careless) for each in deliveries}
        by_place: dict[TopicPartition, list[Delivery]] = {}
        for each in deliveries:
            by_place.setdefault(each.where, []).append(each)
        runs = {
            (self._id_of(topic), index): [(each.offset, each.offset, kinds[each]) for each in found]
            for (topic, index), found in by_place.items()
        }
        epoch = self.session_epochs[node.node_id]
        request = acknowledge_request(self.shares.group, self.member_id, epoch, runs)
        for_good = [each for each in deliveries if kinds[each] in {ACCEPT, REJECT}]
        unsure = {(each.where, each.offset) for each in for_good}
        self.shares.unsure |= unsure
        answer = await self._send(node, request)
        for topic in answer.responses:
            for result in topic.partitions:
                where = self.ids[bytes(topic.topic_id)], result.partition_index
                self.client.hear(where, result.error_code)
                for each in by_place[where] if not result.error_code else ():
                    if not each.is_gap:
                        self.shares.acknowledge(each, kinds[each])

    def _kind(self, each: Delivery, *, careless: bool) -> int:
        if each.is_gap:
            return GAP
        if not careless or self.random.random() < 0.8:
            return ACCEPT
        return self.random.choice((RELEASE, RELEASE, REJECT))

    async def _send(self, node: SimNode, request: Any) -> Any:
        """Send a request of the session with a node. Raises Lost, Refused; the session begins anew then."""
        epoch = self.session_epochs.pop(node.node_id, 0)
        try:
            answer = await self.client.call_node(node, request, 2)
        except Lost as error:
            if isinstance(request, ShareFetchRequest) and not isinstance(error, NoRoute):
                self.shares.lost_fetches.update(self.places)
            raise
        check(answer.error_code, f"{type(request).__name__} {self.name}")
        self.session_epochs[node.node_id] = epoch + 1
        return answer

    def _id_of(self, topic: str) -> bytes:
        return next(topic_id for topic_id, name in self.ids.items() if name == topic)
