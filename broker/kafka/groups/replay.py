"""Replay of the log of a shard: its groups, their offsets, and the transactions that are still open."""

from anabranch.broker.kafka.coordination.log import KeyValue, ReplayedBatch
from anabranch.broker.kafka.groups.offsets import CommittedOffset, GroupOffsets
from anabranch.broker.kafka.groups.records import GroupRecord, OffsetRecord, UnknownRecord, parse_record
from anabranch.broker.kafka.partitions.producers import Producer

OpenTransactions = dict[int, tuple[int, set[str]]]
"""Epoch and groups of the producers that have committed offsets in an open transaction, by producer id."""


def add_open_transaction(transactions: OpenTransactions, producer: Producer, group_id: str) -> None:
    """Note that a producer has committed offsets of a group in its open transaction."""
    _, group_ids = transactions.get(producer.producer_id, (0, set[str]()))
    group_ids.add(group_id)
    transactions[producer.producer_id] = producer.epoch, group_ids


class Replay:
    """State of a shard, built from the batches of its log in order."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[bytes, bytes]] = {}
        """Records of each group, by key."""
        self.offsets: dict[str, GroupOffsets] = {}
        self.open_transactions: OpenTransactions = {}
        self.unknown_records: dict[bytes, bytes] = {}

    def group_ids(self) -> set[str]:
        """Return the ids of all groups that have a state or offsets."""
        return self.groups.keys() | {name for name, kept in self.offsets.items() if kept}

    def add(self, batch: ReplayedBatch) -> None:
        """Apply the next batch. Raises MalformedMessage."""
        if batch.producer is not None:
            self._add_transactional(batch, batch.producer)
            return
        for record in batch.records:
            self._add_record(record)

    def _add_transactional(self, batch: ReplayedBatch, producer: Producer) -> None:
        if batch.committed is not None:
            _, group_ids = self.open_transactions.pop(producer.producer_id, (0, set[str]()))
            for group_id in group_ids:
                self.offsets[group_id].end_transaction(producer.producer_id, committed=batch.committed)
            return
        for record in batch.records:
            match parse_record(record):
                case OffsetRecord(group_id, key, CommittedOffset() as committed):
                    kept = self.offsets.setdefault(group_id, GroupOffsets())
                    kept.put_transactional(producer.producer_id, key, committed)
                    add_open_transaction(self.open_transactions, producer, group_id)

    def _add_record(self, record: KeyValue) -> None:
        match parse_record(record):
            case OffsetRecord(group_id, key, None):
                if group_id in self.offsets:
                    self.offsets[group_id].remove(*key)
                    self.offsets[group_id].supersede(key)
            case OffsetRecord(group_id, key, CommittedOffset() as committed):
                kept = self.offsets.setdefault(group_id, GroupOffsets())
                # A rewrite repeats live records. If it has stopped half-way, the open transactions' do not follow them.
                if kept.get(*key) != committed:
                    kept.put(*key, committed)
                    kept.supersede(key)
            case GroupRecord(group_id, None):
                kept_records = self.groups.get(group_id, {})
                kept_records.pop(record.key, None)
                if not kept_records:
                    self.groups.pop(group_id, None)
            case GroupRecord(group_id, bytes() as value):
                self.groups.setdefault(group_id, {})[record.key] = value
            case UnknownRecord(key, None):
                self.unknown_records.pop(key, None)
            case UnknownRecord(key, bytes() as value):
                self.unknown_records[key] = value
