"""Records in flight whose locks end, that are deleted, in transactions, and in several partitions."""

from typing import Any

from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch, decode_records
from tests.differential.script import Script
from tests.differential.scripts.share_fetches import (
    ACCEPT,
    GAP,
    NEWEST,
    REJECT,
    RELEASE,
    RENEW,
    ROUNDS_MAX,
    Members,
)
from tests.differential.scripts.transactions import FOREVER, TransactionalProducer

TIME_MS = 1_700_000_000_000


def share_locks(script: Script) -> None:
    """Let locks end: another member gets the records, until their deliveries are used up."""
    members = Members(script, "sd-locks", {"share.record.lock.duration.ms": "1000", "share.delivery.count.limit": "2"})
    _join(members, "a", "b")
    members.produce(2, 2)
    members.fetch("fetched as two batches", "a", batch_size=2)
    members.acknowledge("one in time", "a", (0, 1, [ACCEPT]))
    members.fetch("by another when the lock has ended", "b")
    members.acknowledge("too late", "a", (2, 2, [ACCEPT]))
    members.acknowledge("in time", "b", (2, 2, [ACCEPT]))
    members.until_unlocked(3, "a")
    # Past the last delivery: refused, or passed over once the start offset has moved. Which one depends on a write.
    script.ask(members.acknowledge_request("b", members.next("b"), (3, 3, [ACCEPT])), NEWEST, on="b")
    members.produce(1)
    members.fetch("the next", "a")
    members.acknowledge("the next accepted", "a", (4, 4, [ACCEPT]))
    members.note_done("the others are used up")


def share_renewals(script: Script) -> None:
    """Renew locks for longer than they last, and let renewed locks end."""
    members = Members(script, "sd-renewals", {"share.record.lock.duration.ms": "1500"})
    _join(members, "a", "b")
    members.produce(3)
    members.fetch("fetched", "a")
    members.acknowledge("renewed without saying so", "a", (0, 0, [RENEW]))
    members.acknowledge("renewed by another", "b", (0, 0, [RENEW]), is_renew_ack=True)
    members.acknowledge("renewed and accepted at once", "a", (0, 1, [RENEW, ACCEPT]), is_renew_ack=True)
    members.until_unlocked(2, "b", renewed=("a", 0))
    members.fetch("the other one", "b")
    members.acknowledge("renewed too late", "a", (2, 2, [RENEW]), is_renew_ack=True)
    members.acknowledge("accepted after longer than a lock lasts", "a", (0, 0, [ACCEPT]))
    members.acknowledge("renewed when accepted", "a", (0, 0, [RENEW]), is_renew_ack=True)
    members.fetch("renewed by a fetch for records", "b", (2, 2, [RENEW]), is_renew_ack=True)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    members.fetch("renewed by a fetch", "b", (2, 2, [RENEW]), is_renew_ack=True, **nothing)
    members.fetch("again when the renewed lock has ended", "a")
    members.acknowledge("all accepted", "a", (2, 2, [ACCEPT]))
    members.note_done("done")
    never = Members(script, "sd-no-renewals", {"share.renew.acknowledge.enable": "false"})
    _join(never, "a")
    never.produce(1)
    never.fetch("fetched without renewals", "a")
    never.acknowledge("renewed all the same", "a", (0, 0, [RENEW]), is_renew_ack=True)


def share_deleted_records(script: Script) -> None:
    """Delete records that are acquired, released, acknowledged, and not yet delivered."""
    members = Members(script, "sd-deleted")
    _join(members, "a", "b")
    members.produce(4, 4, 4)
    members.fetch("fetched", "a", max_records=8)
    members.acknowledge("released", "a", (0, 1, [RELEASE]), (6, 6, [RELEASE]))
    _delete(members, 3)
    members.fetch_some("the rest", "b")
    members.acknowledge("before the start", "a", (2, 2, [ACCEPT]))
    members.acknowledge("across the start", "a", (2, 4, [ACCEPT]))
    members.acknowledge("after the start", "a", (5, 5, [RELEASE]), (7, 7, [REJECT]))
    members.acknowledge("by the other", "b", (6, 6, [ACCEPT]), (8, 11, [ACCEPT]))
    members.fetch_some("what was released", "a")
    _delete(members, 12)
    members.acknowledge("all are deleted", "a", (5, 5, [ACCEPT]))
    members.produce(3, 3)
    members.fetch_some("new ones", "b", max_records=2)
    _delete(members, 17)
    members.acknowledge("with some that were never delivered", "b", (12, 14, [ACCEPT]))
    members.fetch_some("what is left", "a")
    members.acknowledge("the end", "a", (17, 17, [ACCEPT]))
    members.note_done("done")


def _delete(members: Members, offset: int) -> None:
    topic = DeleteRecordsTopic(
        name=members.group, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
    )
    members.script.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=30_000), 2)


def share_compacted_records(script: Script) -> None:
    """Deliver records of a log in which compaction has left holes, some of them while records were in flight."""
    script.ask(_cleaner_backoff("200"), 1)  # Apache Kafka's
    members = Members(script, "sd-holes", cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")
    _join(members, "a", "b")
    _put(members, 0, *(b"k%d" % at for at in range(10)))
    _put(members, 0, b"x", b"y", b"z")
    _fetch_until(members, "a", 12)
    members.acknowledge("released before it is compacted", "a", (3, 8, [RELEASE]), (10, 12, [RELEASE]))
    _put(members, 50, b"k0", b"k1", b"k4", b"k5", b"x", b"y", b"z")
    _put(members, 2_000, b"the next segment")
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    everything = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchTopic(topic=members.group, partitions=[part])]
    )
    script.until(everything, 12, lambda answer: 0 not in _offsets(answer))
    members.fetch("what was released, of holes, too", "b", max_records=9, batch_size=9)
    members.acknowledge("a whole hole", "b", (10, 12, [GAP]))
    members.acknowledge("across a hole", "b", (3, 8, [ACCEPT]))
    _fetch_until(members, "b", 20)
    members.acknowledge("acquired before it was compacted", "a", (0, 2, [RELEASE]), (9, 9, [ACCEPT]))
    members.fetch("a hole and its neighbour again", "b", max_records=1, batch_size=1)
    members.acknowledge("of a record that is gone", "b", (0, 0, [ACCEPT]))
    _fetch_until(members, "b", 2)
    members.acknowledge("the rest", "b", (1, 2, [ACCEPT]), (13, 20, [ACCEPT]))
    members.note_done("done")
    script.ask(_cleaner_backoff(None), 1)


def _cleaner_backoff(value: str | None) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="log.cleaner.backoff.ms", config_operation=0 if value else 1, value=value)
    return IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=4, resource_name="", configs=[config])]
    )


def _put(members: Members, time_ms: int, *keys: bytes) -> None:
    """Produce a batch of records with these keys, so long after the first ones."""
    batch = build_batch([Record(key, b"v", TIME_MS + time_ms) for key in keys])
    data = PartitionProduceData(index=0, records=bytes(batch))
    topics = [TopicProduceData(name=members.group, partition_data=[data])]
    members.script.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics), 9)


def _offsets(answer: Any) -> list[int]:
    """Return the offsets in the answer to a Fetch of one partition."""
    data = bytes(answer.responses[0].partitions[0].records or b"")
    return [record.offset for _, batch in iterate_batches(data) for record in decode_records(batch)]


def _fetch_until(members: Members, member: str, offset: int) -> None:
    """Fetch until a member has acquired an offset, and note what it has: Apache Kafka reads a segment at a time."""
    for _ in range(ROUNDS_MAX):
        if offset in members.held[member]:
            break
        members.fetch_quietly(member)
    members.script.note(f"{member} has up to {offset}", str(sorted(members.held[member])))


def share_transactions(script: Script) -> None:
    """Read records of transactions that were committed or aborted, or are open."""
    for name in ("read_committed", "read_uncommitted"):
        members = Members(script, f"sd-{name}", {"share.isolation.level": name}, segment_ms=FOREVER)
        _join(members, "a")
        producer = TransactionalProducer(script, members.group, members.group)
        members.produce(2)
        producer.produce(b"a", b"b")
        producer.end(committed=False)
        members.produce(1)
        producer.produce(b"c")
        producer.produce(b"d", b"e")
        producer.end(committed=True)
        producer.produce(b"f")
        members.produce(2)
        members.fetch(f"{name}: one is open", "a")
        members.acknowledge(f"{name}: some released", "a", (0, 1, [RELEASE]), (5, 5, [ACCEPT]))
        members.fetch(f"{name}: these again", "a", max_records=1)
        producer.end(committed=False)
        members.fetch(f"{name}: it was aborted", "a")
        members.acknowledge(f"{name}: of an aborted one", "a", (2, 2, [ACCEPT]))
        members.acknowledge(f"{name}: a marker", "a", (4, 4, [ACCEPT]))


def share_partitions(script: Script) -> None:
    """Fetch from several partitions with limits of records and bytes."""
    members = Members(script, "sd-partitions", partitions=3)
    _join(members, "a", "b")
    for _ in range(4):
        for partition in range(3):
            members.produce(3, partition=partition)
    for at, count in enumerate((2, 3, 4, 1, 7)):
        members.fetch(f"{count} records", "ab"[at % 2], max_records=count)
    for at, count in enumerate((2, 3)):
        members.fetch(f"strictly {count} records", "ab"[at % 2], max_records=count, share_acquire_mode=1)
    members.fetch("few bytes", "a", max_bytes=300)
    members.fetch("the rest", "b")


def _join(members: Members, *names: str) -> None:
    """Let the first member join, and all begin their sessions; wait until the share partitions serve.

    Members read partitions that they are not assigned, too.
    """
    members.join(names[0])
    for name in names[1:]:
        members.begin(name)
    members.fetch("the state is loaded", names[0], max_wait_ms=300)


SCRIPTS = (
    share_locks,
    share_renewals,
    share_deleted_records,
    share_compacted_records,
    share_transactions,
    share_partitions,
)
