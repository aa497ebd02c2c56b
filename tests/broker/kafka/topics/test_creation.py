"""Topics are checked against the existing ones, and against those created together with them."""

import pytest

from anabranch.broker.kafka.topics.creation import TopicCreation, TopicSpec
from anabranch.broker.kafka.topics.names import CLUSTER_METADATA_TOPIC
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.protocol.errors import ErrorCode, KafkaError


def code_of(creation: TopicCreation, name: str) -> ErrorCode:
    try:
        creation.check_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_names_collide_with_those_of_the_same_creation() -> None:
    creation = TopicCreation(TopicMap(), partitions_max=9)
    assert code_of(creation, "a.b") == ErrorCode.NONE
    creation.add(TopicSpec("a.b", 1, {}))
    assert code_of(creation, "a.b") == ErrorCode.TOPIC_ALREADY_EXISTS
    assert code_of(creation, "a_b") == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(creation, CLUSTER_METADATA_TOPIC) == ErrorCode.INVALID_REQUEST
    assert code_of(creation, "a/b") == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_partitions_of_one_creation_count_together() -> None:
    creation = TopicCreation(TopicMap(), partitions_max=3)
    creation.check_room(3)
    creation.add(TopicSpec("a", 2, {}))
    creation.check_room(1)
    with pytest.raises(
        KafkaError, match=r"2 partitions more than the 2 there are .* limit of 3 \(topic.partitions_max\)"
    ):
        creation.check_room(2)
