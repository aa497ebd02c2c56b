"""Topic patterns of a consumer group: their matches, their records, and the errors that clients see."""

import pytest

from broker.groups.consumer import records
from broker.groups.consumer.heartbeat import TopicFilter
from broker.groups.consumer.topic_image import TopicImage, TopicMetadata
from broker.groups.consumer.topic_patterns import TopicPatterns
from protocol.errors import ErrorCode, KafkaError

NOW_MS = 1_700_000_000_000


def image(version: int, *names: str) -> TopicImage:
    return TopicImage.of(version, [TopicMetadata(name.encode().ljust(16), name, 1) for name in names])


def test_matches_follow_the_topics() -> None:
    patterns = TopicPatterns()
    assert patterns.update({"fl.*"}, image(1, "flights", "planes"), NOW_MS) == ["fl.*"]
    assert patterns.matches("fl.*") == {"flights"}
    assert patterns.update({"fl.*"}, image(2, "flights", "planes", "cars"), NOW_MS) == []
    assert patterns.update({"fl.*"}, image(3, "flights", "flowers"), NOW_MS) == ["fl.*"]
    assert patterns.matches("fl.*") == {"flights", "flowers"}
    value = patterns.record_value("fl.*")
    assert value is not None
    assert records.parse_pattern(value) == {"flights", "flowers"}


def test_a_pattern_that_nobody_is_subscribed_to_is_dropped() -> None:
    patterns = TopicPatterns()
    patterns.update({"a", "b"}, image(1, "a", "b"), NOW_MS)
    assert patterns.update({"b"}, image(1, "a", "b"), NOW_MS) == ["a"]
    assert patterns.matches("a") == frozenset()
    assert patterns.record_value("a") is None


def test_a_pattern_matches_only_what_its_filter_allows() -> None:
    patterns = TopicPatterns()
    known = {"flights"}
    topic_filter = TopicFilter(1, known.__contains__)
    assert patterns.note_filter("fl.*", topic_filter), "it was matched without one"
    assert not patterns.note_filter("fl.*", topic_filter)
    topics = image(1, "flights", "flowers")
    patterns.update({"fl.*"}, topics, NOW_MS)
    assert patterns.matches("fl.*") == {"flights"}
    known.add("flowers")
    assert patterns.note_filter("fl.*", topic_filter._replace(version=2))
    assert patterns.update({"fl.*"}, topics, NOW_MS) == ["fl.*"]
    assert patterns.matches("fl.*") == {"flights", "flowers"}
    assert patterns.note_filter("fl.*", None), "there is no filter any more"
    assert not patterns.note_filter("fl.*", None)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "SubscribedTopicRegex `(` is not a valid regular expression: missing closing )."),
        (
            "(?=a)b",
            "SubscribedTopicRegex `(?=a)b` is not a valid regular expression: invalid or unsupported Perl syntax.",
        ),
        ("a" * 1025, "SubscribedTopicRegex has 1025 characters, more than the 1024 served."),
    ],
)
def test_an_invalid_pattern_is_refused_in_apache_kafkas_words(pattern: str, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        TopicPatterns().check(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.value.message == message
