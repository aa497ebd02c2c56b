"""Validation of topologies, and the internal topics that they need."""

import pytest

from anabranch.broker.kafka.groups.modern.topic_image import TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.streams.configured_topology import (
    ConfiguredTopology,
    InternalTopic,
    Status,
    StatusCode,
    check_partitions,
    configure,
)
from anabranch.broker.kafka.groups.streams.topology import Copartition, Subtopology, TopicDescription, Topology
from anabranch.protocol.errors import ErrorCode, KafkaError


def topic(name: str, partitions: int = 0, replicas: int = 0) -> TopicDescription:
    return TopicDescription(name, partitions, replicas)


def configured(*subtopologies: Subtopology, **partitions: int) -> ConfiguredTopology:
    topics = [TopicMetadata(name.encode().ljust(16, b"-"), name, number) for name, number in partitions.items()]
    return configure(Topology(1, subtopologies), TopicImage.of(1, topics))


def decided(found: ConfiguredTopology) -> dict[str, int]:
    assert found.problem is not None
    assert found.problem.code is StatusCode.MISSING_INTERNAL_TOPICS
    return {name: topic.partitions for name, topic in found.missing_topics.items()}


def invalid(*subtopologies: Subtopology, **partitions: int) -> str:
    with pytest.raises(KafkaError) as error:
        configured(*subtopologies, **partitions)
    assert error.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY
    return error.value.message


def test_a_subtopology_has_a_task_for_each_partition_of_its_largest_topic() -> None:
    found = configured(Subtopology("0", ("a", "b")), a=3, b=5)
    assert found.is_ready
    assert found.subtopologies is not None
    assert found.subtopologies["0"].task_count == 5
    assert not found.subtopologies["0"].is_stateful


def test_subtopologies_are_in_the_order_of_their_ids() -> None:
    found = configured(Subtopology("1", ("a",)), Subtopology("0", ("a",)), a=1)
    assert found.subtopologies is not None
    assert list(found.subtopologies) == ["0", "1"]


def test_missing_source_topics_are_named_up_to_three() -> None:
    found = configured(Subtopology("0", ("e", "d")), Subtopology("1", ("c", "b", "a")), a=1)
    detail = "Source topics b, c, d and 1 additional topics are missing."
    assert found == ConfiguredTopology(1, problem=Status(StatusCode.MISSING_SOURCE_TOPICS, detail))


def test_a_changelog_has_a_partition_for_each_task() -> None:
    found = configured(Subtopology("0", ("a", "b"), changelogs=(topic("c", replicas=2),)), a=3, b=5)
    assert found.missing_topics == {"c": InternalTopic("c", 5, 2, {})}
    assert found.problem == Status(StatusCode.MISSING_INTERNAL_TOPICS, "Internal topics are missing: c")
    assert found.subtopologies is not None
    assert found.subtopologies["0"].is_stateful


def test_a_repartition_topic_has_the_partitions_of_what_its_writer_reads() -> None:
    found = configured(
        Subtopology("0", ("a", "b"), repartition_sinks=("r",)),
        Subtopology("1", (), repartition_sources=(topic("r"),), changelogs=(topic("c"),), repartition_sinks=("s",)),
        Subtopology("2", (), repartition_sources=(topic("s"),)),
        a=3,
        b=5,
    )
    assert decided(found) == {"r": 5, "s": 5, "c": 5}


def test_a_repartition_topic_downstream_may_come_first() -> None:
    found = configured(
        Subtopology("1", (), repartition_sources=(topic("r"),), repartition_sinks=("s",)),
        Subtopology("0", ("a",), repartition_sinks=("r",)),
        Subtopology("2", (), repartition_sources=(topic("s"),)),
        a=3,
    )
    assert decided(found) == {"r": 3, "s": 3}


def test_a_number_of_partitions_of_the_application_stays() -> None:
    found = configured(
        Subtopology("0", ("a",), repartition_sinks=("r",)),
        Subtopology("1", (), repartition_sources=(topic("r", 7),), changelogs=(topic("c"),)),
        a=3,
    )
    assert decided(found) == {"r": 7, "c": 7}


def test_repartition_topics_in_a_loop_are_invalid() -> None:
    problem = invalid(
        Subtopology("0", (), repartition_sources=(topic("r"),), repartition_sinks=("s",)),
        Subtopology("1", (), repartition_sources=(topic("s"),), repartition_sinks=("r",)),
    )
    assert "There may be loops in the topology" in problem


def test_a_repartition_topic_that_nobody_writes_is_invalid() -> None:
    assert "never used as a sink topic" in invalid(Subtopology("0", ("a",), repartition_sources=(topic("r"),)), a=1)


def test_a_subtopology_without_topics_is_invalid() -> None:
    assert invalid(Subtopology("0", ())) == "No source topics found for subtopology 0"


def test_a_changelog_with_a_number_of_partitions_is_invalid() -> None:
    with pytest.raises(
        KafkaError, match="Changelog topic c must have an undefined partition count, but it is set to 2"
    ):
        check_partitions(Topology(1, (Subtopology("0", ("a",), changelogs=(topic("c", 2),)),)))


def joined(*sources: TopicDescription, external: tuple[str, ...] = ("b",)) -> tuple[Subtopology, Subtopology]:
    """Return a subtopology that joins repartitioned topics with external ones, after the one that writes them."""
    group = Copartition(tuple(range(len(external))), (), tuple(range(len(sources))))
    return (
        Subtopology("0", ("a",), repartition_sinks=tuple(each.name for each in sources)),
        Subtopology("1", external, repartition_sources=sources, copartitions=(group,)),
    )


def test_a_repartition_topic_follows_the_topic_that_it_is_joined_with() -> None:
    assert decided(configured(*joined(topic("r")), a=3, b=8)) == {"r": 8}


def test_copartitioned_repartition_topics_get_the_largest_number() -> None:
    group = Copartition((), (), (0, 1))
    found = configured(
        Subtopology("0", ("a",), repartition_sinks=("r",)),
        Subtopology("1", ("b",), repartition_sinks=("s",)),
        Subtopology("2", (), repartition_sources=(topic("r"), topic("s")), copartitions=(group,)),
        a=3,
        b=8,
    )
    assert decided(found) == {"r": 8, "s": 8}


def test_copartitioned_repartition_topics_follow_the_one_with_a_number() -> None:
    assert decided(configured(*joined(topic("r"), topic("s", 5), external=()), a=3)) == {"r": 5, "s": 5}


def test_external_topics_that_are_not_copartitioned_are_reported() -> None:
    found = configured(Subtopology("0", ("b", "a"), copartitions=(Copartition((0, 1)),)), a=3, b=5)
    detail = "Following topics do not have the same number of partitions: [{a=3, b=5}]"
    assert found.problem == Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)
    assert found.subtopologies is None


def test_a_repartition_topic_whose_number_differs_is_reported() -> None:
    found = configured(*joined(topic("r", 5)), a=3, b=8)
    detail = (
        "Number of partitions [5] of repartition topic [r] doesn't match number of partitions [8] of the source topic."
    )
    assert found.problem == Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def test_repartition_topics_with_different_numbers_are_reported() -> None:
    found = configured(*joined(topic("r", 5), topic("s", 6), external=()), a=3)
    detail = "Following topics do not have the same number of partitions: [{r=5, s=6}]"
    assert found.problem == Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def test_an_existing_internal_topic_with_another_number_is_reported() -> None:
    found = configured(Subtopology("0", ("a",), changelogs=(topic("c"),)), a=3, c=2)
    detail = "Existing topic c has different number of partitions: expected 3, found 2"
    assert found.problem == Status(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def test_an_index_without_a_topic_is_an_error() -> None:
    for index in (-1, 1):
        with pytest.raises(KafkaError) as error:
            configured(Subtopology("0", ("a",), copartitions=(Copartition((index,)),)), a=1)
        assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_topology_is_ready_when_its_internal_topics_exist() -> None:
    found = configured(Subtopology("0", ("a",), changelogs=(topic("c"),)), a=3, c=3)
    assert found.is_ready
    assert not found.missing_topics
