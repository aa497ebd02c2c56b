"""Exactly-once copies: reads one topic, and writes each record once to another, with the offsets in the transaction."""

import asyncio

from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.simulation.consumers import Reader, committed_offset
from tests.simulation.history import History, Outcome, TopicPartition, Transaction, Violation
from tests.simulation.producers import Batch
from tests.simulation.routing import Refused
from tests.simulation.transactions import TransactionalProducer
from tests.simulation.world import World

COPIED_MAX = 100
"""Records of a transaction at most: after a long time without one, all that was read would not fit in a request."""


class Copier(TransactionalProducer):
    """Copies one partition into a topic of its own."""

    def __init__(self, world: World, history: History, name: str, source: TopicPartition, target: str) -> None:
        super().__init__(world, history, name, {target: 1})
        self.source = source
        self.group = f"{name}-copies"
        self.reader = Reader(world, history, f"{name}-source", source, committed=True)
        self.copied_from: dict[str, tuple[int, str]] = {}
        """Source offset and value of each value that was sent as a copy."""
        self.target = (target, 0)
        self.position = 0

    async def run(self) -> None:
        await self.init(self.name, 20_000)
        await self._begin_at_committed()
        while not self.world.faults_over.is_set():
            await self.reader.step()
            if self.reader.found or self.reader.offset > self.position:
                await self._copy()
            await asyncio.sleep(self.random.expovariate(3))

    async def _begin_at_committed(self) -> None:
        found = await committed_offset(self.client, self.group, self.source)
        self.position = self.reader.offset = max(found, 0)
        self.reader.found.clear()

    async def _copy(self) -> None:
        self.transactions += 1
        transaction = Transaction(f"{self.name}#{self.transactions}")
        self.outcomes.append(transaction)
        target = self.target
        found = sorted(self.reader.found.items())
        source_values, rest = found[:COPIED_MAX], found[COPIED_MAX:]
        self.reader.found = dict(rest)
        end = rest[0][0] if rest else self.reader.offset
        try:
            await self.until_done(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.name,
                    v3_and_below_producer_id=self.producer_id,
                    v3_and_below_producer_epoch=self.epoch,
                    v3_and_below_topics=[AddPartitionsToTxnTopic(name=target[0], partitions=[0])],
                ),
                3,
                lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            )
            values = []
            for offset, value in source_values:
                self.numbers += 1
                copy = f"{self.name}:{self.numbers}"
                self.copied_from[copy] = (offset, value)
                values.append(copy)
            if values:
                self.history.send(target, values, transaction)
                sequence = self.sequences.get(target, 0)
                self.sequences[target] = sequence + len(values)
                data = self.make_batch(values, sequence, transactional=True)
                await self.deliver([Batch(target, values, sequence, data)], self.name)
            await self._send_offset(end)
            transaction.offsets[self.source] = end
            await self.end(transaction, commit=self.random.random() < 0.8)
            if transaction.outcome is not Outcome.COMMITTED:
                await self._begin_at_committed()
            else:
                self.position = end
        except Refused as error:
            self.world.note("copier begins again", producer=self.name, reason=str(error))
            self.give_up(transaction)
            await self.init(self.name, 20_000)
            await self._begin_at_committed()

    async def _send_offset(self, offset: int) -> None:
        await self.until_done(
            AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=self.group,
            ),
            3,
            lambda answer: answer.error_code,
        )
        await self.until_done(
            TxnOffsetCommitRequest(
                transactional_id=self.name,
                group_id=self.group,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name=self.source[0],
                        partitions=[
                            TxnOffsetCommitRequestPartition(
                                partition_index=self.source[1], committed_offset=offset, committed_metadata=""
                            )
                        ],
                    )
                ],
            ),
            3,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    async def check_offsets(self) -> None:
        """The offsets are checked together with the copies."""

    async def check_copies(self, committed: dict[int, str], source: dict[int, str]) -> None:
        """Check that each committed source record before the group's offset was copied once, in order."""
        end = await committed_offset(self.client, self.group, self.source)
        expected = [(offset, value) for offset, value in sorted(source.items()) if offset < end]
        first = expected[0][0] if expected else 0
        copies = [self.copied_from[value] for _, value in sorted(committed.items())]
        found = [copy for copy in copies if copy[0] >= first]
        if found != expected:
            for index, (one, other) in enumerate(zip(found, expected, strict=False)):
                if one != other:
                    raise Violation(f"{self.name}: copy {index} is of {one}, expected {other}")
            raise Violation(f"{self.name}: {len(found)} copies of {len(expected)} records before offset {end}")
