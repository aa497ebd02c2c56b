"""Transactional producers of the simulation."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from anabranch.protocol.messages.end_txn import EndTxnRequest
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.simulation.consumers import committed_offset
from tests.simulation.history import History, Outcome, TopicPartition, Transaction, Violation
from tests.simulation.producers import Batch, Producer, request_of
from tests.simulation.routing import Lost, Refused, check
from tests.simulation.world import World

FENCED_SHARE = 0.05
"""Share of the transactions after which another instance of the producer takes over."""


class TransactionalProducer(Producer):
    """Sends records in transactions, which it commits or aborts, at times with the offsets of a group."""

    def __init__(self, world: World, history: History, name: str, topics: Mapping[str, int], *, keys: int = 0) -> None:
        super().__init__(world, history, name, topics, idempotent=True, keys=keys)
        self.transactions = 0
        self.outcomes: list[Transaction] = []
        self.offset = 0
        """Offset of its group that it wants to commit next."""
        self.committed: list[Transaction] = []

    async def run(self) -> None:
        await self.init(self.name, 20_000)
        while not self.world.faults_over.is_set():
            await self._transaction()
            if self.random.random() < FENCED_SHARE:
                await self._write_fenced()
            await asyncio.sleep(self.random.expovariate(2))

    async def _write_fenced(self) -> None:
        """Begin again, as another instance would, and let the former one write: it must never get an ack."""
        where = self.choose()
        producer_id, epoch, sequence = self.producer_id, self.epoch, self.sequences.get(where, 0)
        transaction = Transaction(f"{self.name} fenced in epoch {epoch}", Outcome.ABORTED)
        values = self.make_values(where, transaction)
        data = self.make_batch(values, sequence, transactional=True)
        await self.init(self.name, 20_000)
        with suppress(Lost):
            await self.client.call(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.name,
                    v3_and_below_producer_id=producer_id,
                    v3_and_below_producer_epoch=epoch,
                    v3_and_below_topics=[AddPartitionsToTxnTopic(name=where[0], partitions=[where[1]])],
                ),
                3,
            )
            answer = await self.client.call(request_of(Batch(where, values, sequence, data), self.name), 9)
            if not answer.responses[0].partition_responses[0].error_code:
                raise Violation(f"{where}: {values[0]!r} was acked, {transaction.name}")

    async def _transaction(self) -> None:
        self.transactions += 1
        transaction = Transaction(f"{self.name}#{self.transactions}")
        self.outcomes.append(transaction)
        try:
            for _ in range(self.random.randint(1, 3)):
                where = self.choose()
                await self.until_done(
                    AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=self.name,
                        v3_and_below_producer_id=self.producer_id,
                        v3_and_below_producer_epoch=self.epoch,
                        v3_and_below_topics=[AddPartitionsToTxnTopic(name=where[0], partitions=[where[1]])],
                    ),
                    3,
                    lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
                )
                values = self.make_values(where, transaction)
                sequence = self.sequences.get(where, 0)
                self.sequences[where] = sequence + len(values)
                data = self.make_batch(values, sequence, transactional=True)
                await self.deliver([Batch(where, values, sequence, data)], self.name)
            if self.random.random() < 0.3:
                await self._commit_offsets(transaction)
            await self.end(transaction, commit=self.random.random() < 0.7)
        except Refused as error:
            # For instance, the transaction timed out: a producer begins again.
            self.world.note("producer begins again", producer=self.name, reason=str(error))
            self.give_up(transaction)
            await self.init(self.name, 20_000)

    def give_up(self, transaction: Transaction) -> None:
        """Note a transaction that the broker refused to continue."""
        if transaction.outcome is Outcome.OPEN:
            transaction.outcome = Outcome.ABORTED
        elif transaction.outcome is Outcome.COMMITTING:
            transaction.outcome = Outcome.UNKNOWN

    async def _commit_offsets(self, transaction: Transaction) -> None:
        where = self.choose()
        group = f"{self.name}-group"
        self.offset += 1
        await self.until_done(
            AddOffsetsToTxnRequest(
                transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
            ),
            3,
            lambda answer: answer.error_code,
        )
        await self.until_done(
            TxnOffsetCommitRequest(
                transactional_id=self.name,
                group_id=group,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name=where[0],
                        partitions=[
                            TxnOffsetCommitRequestPartition(
                                partition_index=where[1], committed_offset=self.offset, committed_metadata=""
                            )
                        ],
                    )
                ],
            ),
            3,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        transaction.offsets[where] = self.offset

    async def end(self, transaction: Transaction, *, commit: bool) -> None:
        transaction.outcome = Outcome.COMMITTING if commit else Outcome.ABORTED
        await self.until_done(
            EndTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=commit,
            ),
            3,
            lambda answer: answer.error_code,
        )
        if commit:
            transaction.outcome = Outcome.COMMITTED
            self.committed.append(transaction)

    async def until_done(self, message: object, version: int, code_of: Any) -> None:
        """Repeat a request until it succeeds. Raises Refused for an error that cannot be retried."""
        while True:
            try:
                answer = await self.client.call(message, version)
                check(code_of(answer), f"{self.name} {type(message).__name__}")
            except Lost:
                await self.client.pause()
            except Refused as error:
                if not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise
                await self.client.pause()
            else:
                return

    async def check_offsets(self) -> None:
        """Check that the group has the offsets of the committed transactions."""
        expected: dict[TopicPartition, int] = {}
        possible: dict[TopicPartition, set[int]] = {}
        for transaction in self.outcomes:
            for where, offset in transaction.offsets.items():
                if transaction.outcome is Outcome.COMMITTED:
                    expected[where] = offset
                    possible[where] = {offset}
                elif transaction.outcome is Outcome.UNKNOWN:
                    possible.setdefault(where, {-1}).add(offset)
        for where, offsets in possible.items():
            found = await committed_offset(self.client, f"{self.name}-group", where)
            if found not in offsets:
                raise Violation(f"{self.name}-group {where}: committed {found}, expected one of {sorted(offsets)}")
