"""Transactional producers that never wait for the end of a transaction (transaction.version 2).

Nobody else uses their transactional id. So the broker may abort a transaction that has timed out, and nothing more: the
producer can always abort, with the epoch that it has, and goes on with the epoch in the answer.
"""

import asyncio
from collections.abc import Mapping

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.end_txn import EndTxnRequest
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.simulation.history import History, Outcome, Transaction, Violation
from tests.simulation.producers import Batch
from tests.simulation.routing import Lost, Refused, check
from tests.simulation.transactions import TransactionalProducer
from tests.simulation.world import World

TIMEOUT_MS = 4_000
LATE_S = 6.0
"""Longer than the timeout, and than the time until the coordinator looks for transactions that have exceeded it."""
LATE_SHARE = 0.1
PAUSE_SHARE = 0.3
ABORTED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
"""Answers to a producer whose transaction has timed out."""


class RestlessProducer(TransactionalProducer):
    """Writes, commits and aborts one after the other; some of its transactions exceed their timeout."""

    def __init__(self, world: World, history: History, name: str, topics: Mapping[str, int]) -> None:
        super().__init__(world, history, name, topics)
        self.produce_version = 12

    async def run(self) -> None:
        await self.init(self.name, TIMEOUT_MS)
        while not self.world.faults_over.is_set():
            self.transactions += 1
            transaction = Transaction(f"{self.name}#{self.transactions}")
            self.outcomes.append(transaction)
            try:
                written = await self._write(transaction)
                commit = written and self.random.random() < 0.6
                if self.random.random() < LATE_SHARE:
                    await asyncio.sleep(LATE_S)
                if commit:
                    await self.end(transaction, commit=True)
            except Refused as error:
                if error.code not in ABORTED:
                    raise Violation(str(error)) from error
                transaction.outcome = Outcome.ABORTED  # a commit that took effect would have been repeated with success
                commit = False
            if not commit:
                await self._abort(transaction)
            if self.random.random() < PAUSE_SHARE:
                await asyncio.sleep(self.random.expovariate(1))

    async def _write(self, transaction: Transaction) -> bool:
        """Write to some partitions, or none. Return whether the transaction has begun. Raises Refused."""
        writes = self.random.choice((0, 1, 1, 2, 3))
        for _ in range(writes):
            where = self.choose()
            values = self.make_values(where, transaction)
            sequence = self.sequences.get(where, 0)
            self.sequences[where] = sequence + len(values)
            await self.deliver(
                [Batch(where, values, sequence, self.make_batch(values, sequence, transactional=True))], self.name
            )
        if writes and self.random.random() < 0.3:
            where = self.choose()
            self.offset += 1
            partition = TxnOffsetCommitRequestPartition(
                partition_index=where[1], committed_offset=self.offset, committed_metadata=""
            )
            request = TxnOffsetCommitRequest(
                transactional_id=self.name,
                group_id=f"{self.name}-group",
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[TxnOffsetCommitRequestTopic(name=where[0], partitions=[partition])],
            )
            await self.until_done(request, 5, lambda answer: answer.topics[0].partitions[0].error_code)
            transaction.offsets[where] = self.offset
        return writes > 0

    async def _abort(self, transaction: Transaction) -> None:
        """Abort, which nothing but its own successor may deny a producer."""
        try:
            await self.end(transaction, commit=False)
        except Refused as error:
            raise Violation(f"a producer that nobody has replaced: {error}") from error

    async def end(self, transaction: Transaction, *, commit: bool) -> None:
        if transaction.outcome is Outcome.OPEN:
            transaction.outcome = Outcome.COMMITTING if commit else Outcome.ABORTED
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        while True:
            try:
                answer = await self.client.call(request, 5)
                check(answer.error_code, f"{self.name} EndTxn, commit {commit}")
            except Lost:
                await self.client.pause()
            except Refused as error:
                if not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise
                await self.client.pause()
            else:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                break
        self.sequences.clear()
        if commit:
            transaction.outcome = Outcome.COMMITTED
            self.committed.append(transaction)
