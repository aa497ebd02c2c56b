"""Answers that the comparison treats as equal, and answers that it tells apart."""

from anabranch.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from anabranch.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from tests.differential.answers import ABSENT, Normal, Symbols, Tree, differences
from tests.differential.known_differences import Known
from tests.support.raw_client import batch_of


def tree(message: object, port: int = 9092) -> Tree:
    return Normal(Symbols(), {port: "<port>"}).tree(message)


def metadata(port: int, *topics: tuple[str, bytes]) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)]
    found = [MetadataResponseTopic(name=name, topic_id=topic_id) for name, topic_id in topics]
    return MetadataResponse(brokers=brokers, cluster_id=str(port), topics=found)


def fetched(records: bytes) -> FetchResponse:
    partition = PartitionData(partition_index=0, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])


def test_ids_ports_and_the_order_of_sets_say_nothing() -> None:
    one = tree(metadata(1, ("a", b"a" * 16), ("b", b"b" * 16)), port=1)
    other = tree(metadata(2, ("b", b"x" * 16), ("a", b"y" * 16)), port=2)
    assert differences(one, other) == []


def test_an_id_that_stands_for_two_topics_is_a_difference() -> None:
    one = tree(metadata(1, ("a", b"a" * 16), ("b", b"b" * 16)), port=1)
    other = tree(metadata(1, ("a", b"a" * 16), ("b", b"a" * 16)), port=1)
    assert [path for path, _, _ in differences(one, other)] == ["topics.b.topic_id"]


def test_what_only_one_has_is_named() -> None:
    one, other = tree(metadata(1, ("a", b"a" * 16)), port=1), tree(metadata(1), port=1)
    ((path, _, ours),) = differences(one, other)
    assert (path, ours) == ("topics.a", ABSENT)


def test_records_are_compared_one_by_one_and_a_cut_batch_is_passed_over() -> None:
    batch = bytes(batch_of(b"a", b"b"))
    assert differences(tree(fetched(batch)), tree(fetched(batch + batch[:70]))) == []
    other = bytes(batch_of(b"a", b"c"))
    paths = [path for path, _, _ in differences(tree(fetched(batch)), tree(fetched(other)))]
    assert "responses.0.partitions.0.records.0.record.1.value" in paths
    broken = bytearray(batch)
    broken[20] ^= 1
    assert tree(fetched(bytes(broken)))["responses"][0]["partitions"][0]["records"][0]["crc"] == "wrong"


def test_types_count() -> None:
    assert differences({"a": 0}, {"a": False}) == [("a", 0, False)]
    assert differences({"a": None}, {"a": ""}) == [("a", None, "")]
    assert differences([1, 2], [1]) == [("", [1, 2], [1])]


def test_a_known_difference_may_be_narrow() -> None:
    known = Known("step v*", "topics.*.name", "why", ours="x")
    assert known.covers("step v3", "topics.0.name", "y", "x")
    assert not known.covers("step v3", "topics.0.name", "y", "z")
    assert not known.covers("other v3", "topics.0.name", "y", "x")
    assert not known.covers("step v3", "topics.0.id", "y", "x")
