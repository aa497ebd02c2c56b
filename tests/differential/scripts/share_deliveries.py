"""Records in flight whose locks end, that are deleted, in transactions, and in several partitions."""

from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.differential.script import Script
from tests.differential.scripts.share_fetches import ACCEPT, REJECT, RELEASE, Members
from tests.differential.scripts.transactions import FOREVER, TransactionalProducer


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
    members.acknowledge("past the last delivery", "b", (3, 3, [ACCEPT]))
    members.produce(1)
    members.fetch("the next", "a")
    members.acknowledge("the next accepted", "a", (4, 4, [ACCEPT]))
    members.note_done("the others are used up")


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


SCRIPTS = (share_locks, share_deleted_records, share_transactions, share_partitions)
