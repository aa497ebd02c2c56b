"""The transaction of a Produce request: a batch may open it in a partition when its coordinator has agreed."""

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.partition import ADDS_TO_TRANSACTION_SINCE, Partition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.partitions.transactions import Verification
from anabranch.broker.kafka.transactions.errors import code_for_writer
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageError

ABORTABLE_SINCE = 11
VERIFICATIONS_MAX = 5
"""Verifications of a batch that markers may overtake before the client must try again."""


class ProduceTransaction:
    """Verification of a request's batches, one after the other."""

    __slots__ = ("_adds", "_api_version", "_id", "_serving", "_verification", "_verifications")

    def __init__(self, serving: Serving, transactional_id: str, api_version: int) -> None:
        self._serving = serving
        self._id = transactional_id
        self._api_version = api_version
        self._adds = api_version >= ADDS_TO_TRANSACTION_SINCE
        self._verification: tuple[Partition, Verification] | None = None
        """Verification of the current batch's partition, or of an earlier one. The coordinator has agreed."""
        self._verifications = 0
        """Number of verifications for the current batch."""

    def begin_batch(self) -> None:
        """Go on to the next batch."""
        self._verifications = 0

    def verify(self, partition: Partition, producer: Producer) -> bool:
        """Return True if the transaction is open and includes the partition, False if `ask` must run first.

        Raises KafkaError.
        """
        if self._is_verified(partition, producer):
            return True
        if self._verifications == VERIFICATIONS_MAX:
            raise self._refusal(KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS))
        try:
            self._serving.transactions.verify(self._id, producer, TopicPartition(partition.topic, partition.index))
        except KafkaError as error:
            if self._adds or self._serving.verifier.leads_elsewhere(self._id):
                return False
            raise self._refusal(error) from None
        return True

    async def ask(self, partition: Partition, producer: Producer) -> None:
        """Add the partition to the transaction, durably, or verify that it is in it. Raises KafkaError."""
        self.end_verification()
        self._verifications += 1
        transactions = partition.transactions
        self._verification = partition, transactions.begin_verification(producer)
        try:
            await self._serving.verifier.ask(
                self._id,
                producer,
                TopicPartition(partition.topic, partition.index),
                add=self._adds,
                marked_by=transactions.coordinator_epoch(producer.producer_id),
            )
        except KafkaError as error:
            self.end_verification()
            raise self._refusal(error) from None
        except StorageError as error:
            self.end_verification()
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, str(error)) from None

    def end_verification(self) -> None:
        """Forget that the coordinator has agreed."""
        if self._verification is not None:
            partition, verification = self._verification
            self._verification = None
            partition.transactions.end_verification(verification)

    def _is_verified(self, partition: Partition, producer: Producer) -> bool:
        """Return whether the coordinator has agreed to the batch, and no marker has ended the transaction since."""
        if self._verification is None:
            return False
        verified, verification = self._verification
        return (
            verified is partition
            and verification.producer == producer
            and partition.transactions.is_valid(verification)
        )

    def _refusal(self, error: KafkaError) -> KafkaError:
        """Return the coordinator's error as a client of this version knows it."""
        code = code_for_writer(
            error.code, knows_abortable=self._api_version >= ABORTABLE_SINCE, retry=ErrorCode.NOT_ENOUGH_REPLICAS
        )
        if code == ErrorCode.CONCURRENT_TRANSACTIONS and not self._adds:
            code = ErrorCode.NOT_ENOUGH_REPLICAS  # the client would not try again
        not_added = code == ErrorCode.INVALID_TXN_STATE
        return KafkaError(code, "Partition was not added to the transaction" if not_added else error.message)
