"""Batches of dead letters: what is in them, and where they end."""

from anabranch.broker.kafka.share.dead_letters.batches import Source, build_dead_batch, split_letters
from anabranch.broker.kafka.share.partition.machine import DeadLetter
from anabranch.protocol.records import Record, decode_records

SOURCE = Source("sharers", "t", 3)
LARGE = 1 << 20


def letter(first: int, last: int, count: int = 1, *, is_rejected: bool = True) -> DeadLetter:
    return DeadLetter(first, last, count, is_rejected)


def test_headers_tell_which_record_it_was_and_why() -> None:
    letters = [letter(7, 7), letter(9, 9, 5, is_rejected=False)]
    copies = {9: Record(b"key", b"value", 1, (("own", b"header"),), 9)}
    batch = build_dead_batch(SOURCE, letters, copies, 1234, bytes_max=LARGE)
    first, second = decode_records(batch.records)
    assert batch.size == 2
    assert (first.key, first.value, first.timestamp_ms) == (None, None, 1234)
    assert first.headers == (
        ("__dlq.errors.topic", b"t"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.group", b"sharers"),
        ("__dlq.errors.delivery.count", b"1"),
        ("__dlq.errors.message", b"Offset rejected by client."),
    )
    assert (second.key, second.value, second.timestamp_ms) == (b"key", b"value", 1234)
    assert dict(second.headers)["__dlq.errors.delivery.count"] == b"5"
    assert dict(second.headers)["__dlq.errors.message"] == b"Offset delivery count exceeded the threshold."
    assert "own" not in dict(second.headers), "as in Apache Kafka 4.4"


def test_a_batch_ends_where_the_topic_has_no_more_room() -> None:
    letters = [letter(0, 4), letter(10, 14)]
    copies = {offset: Record(None, bytes(1000), offset=offset) for offset in range(20)}
    batch = build_dead_batch(SOURCE, letters, copies, 0, bytes_max=4000)
    assert batch.size == 3
    assert len(batch.records) <= 4000
    assert split_letters(letters, batch.size) == ([letter(0, 2)], [letter(3, 4), letter(10, 14)])
    assert split_letters(letters, 5) == ([letter(0, 4)], [letter(10, 14)])
    assert split_letters(letters, 10) == (letters, ())


def test_a_record_too_large_for_its_dead_letter_is_not_copied() -> None:
    copies = {0: Record(None, bytes(5000), offset=0), 1: Record(None, b"small", offset=1)}
    batch = build_dead_batch(SOURCE, [letter(0, 1)], copies, 0, bytes_max=4000)
    assert [record.value for record in decode_records(batch.records)] == [None, b"small"]
