"""Topic patterns of a consumer group: their matches, their records, and the errors that clients see."""

from collections.abc import Iterable

import pytest

from anabranch.broker.kafka.groups.consumer import records
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse, TopicFilter
from anabranch.broker.kafka.groups.consumer.kind import ConsumerKind
from anabranch.broker.kafka.groups.consumer.topic_patterns import TopicPatterns
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition, TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.requests import Now
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

NOW_MS = 1_700_000_000_000
NOW = Now(0, NOW_MS)


def image(version: int, *names: str) -> TopicImage:
    return TopicImage.of(version, [TopicMetadata(name.encode().ljust(16), name, 1) for name in names])


def only(*names: str, version: int = 1, principal: str = "User:a") -> TopicFilter:
    """The filter of a member that may know of these topics."""
    return TopicFilter(version, principal, "127.0.0.1", names.__contains__)


def test_matches_follow_the_topics() -> None:
    patterns = TopicPatterns()
    patterns.note_filter("m", None)
    assert patterns.update({"m": "fl.*"}, image(1, "flights", "planes"), NOW_MS) == ["fl.*"]
    assert patterns.matches("m", "fl.*") == {"flights"}
    assert patterns.update({"m": "fl.*"}, image(2, "flights", "planes", "cars"), NOW_MS) == []
    assert patterns.update({"m": "fl.*"}, image(3, "flights", "flowers"), NOW_MS) == ["fl.*"]
    assert patterns.matches("m", "fl.*") == {"flights", "flowers"}
    value = patterns.record_value("fl.*")
    assert value is not None
    assert records.parse_pattern(value) == {"flights", "flowers"}


def test_a_pattern_that_nobody_is_subscribed_to_is_dropped() -> None:
    patterns = TopicPatterns()
    for member_id in "mn":
        patterns.note_filter(member_id, None)
    patterns.update({"m": "a", "n": "b"}, image(1, "a", "b"), NOW_MS)
    assert patterns.update({"n": "b"}, image(1, "a", "b"), NOW_MS) == ["a"]
    assert patterns.matches("m", "a") == frozenset()
    assert patterns.record_value("a") is None


def test_a_pattern_matches_only_what_its_member_may_know_of() -> None:
    patterns = TopicPatterns()
    few = only("flights")
    assert patterns.note_filter("m", few), "it was matched without one"
    assert not patterns.note_filter("m", few)
    topics = image(1, "flights", "flowers")
    patterns.update({"m": "fl.*"}, topics, NOW_MS)
    assert patterns.matches("m", "fl.*") == {"flights"}
    assert patterns.note_filter("m", only("flights", "flowers", version=2))
    assert patterns.update({"m": "fl.*"}, topics, NOW_MS) == ["fl.*"]
    assert patterns.matches("m", "fl.*") == {"flights", "flowers"}
    assert patterns.note_filter("m", None), "there is no filter any more"
    assert not patterns.note_filter("m", None)


class Group:
    """A group whose members have the pattern `.*`, on topics with one partition each."""

    def __init__(self) -> None:
        self.kind = ConsumerKind(GroupSettings(), lambda: self.topics)
        self.machine = self.kind.restore("g", {}, NOW)
        self.topics = image(1, "open", "secret")
        self.log: dict[bytes, bytes] = {}
        self.told: dict[str, set[str]] = {}
        self.epochs: dict[str, int] = {}

    def beat(self, member_id: str, topic_filter: TopicFilter | None, *, owned: Iterable[str] | None = None) -> None:
        """Send a heartbeat, the first one as a member that joins; `owned` are the topics that it still reads."""
        epoch = self.epochs.get(member_id, 0)
        owned = self.told.get(member_id, set()) if owned is None else owned
        request = ConsumerHeartbeat(
            member_id=member_id,
            epoch=epoch,
            rebalance_timeout_ms=10_000 if epoch == 0 else -1,
            topic_names=() if epoch == 0 else None,
            topic_regex=".*" if epoch == 0 else None,
            owned=frozenset(TopicIdPartition(self.topics.by_name[name].topic_id, 0) for name in owned),
            topic_filter=topic_filter,
        )
        outcome = self.machine.handle(request, NOW)
        ((_, answer),) = outcome.when_durable
        assert isinstance(answer, ConsumerHeartbeatResponse)
        self.epochs[member_id] = answer.epoch
        if answer.assignment is not None:
            self.told[member_id] = {self.topics.names[each.topic_id] for each in answer.assignment}
        for key, value in outcome.records:
            if value is None:
                self.log.pop(key, None)
            else:
                self.log[key] = value

    def load_again(self) -> None:
        """Go on as a coordinator does that has read the log."""
        self.machine = self.kind.restore("g", self.log, NOW)


@pytest.mark.parametrize("first", ["all", "few"])
def test_members_with_one_pattern_may_know_of_different_topics(first: str) -> None:
    """Whoever joins or sends a heartbeat last, and after a change of the coordinator."""
    filters = {"all": only("open", "secret", principal="User:b"), "few": only("open")}
    group = Group()
    order = [first, *({"all", "few"} - {first})]
    for _ in range(3):
        for member_id in order * 3:
            group.beat(member_id, filters[member_id])
            assert "secret" not in group.told.get("few", set())
        assert group.told == {"few": {"open"}, "all": {"secret"}}
        group.load_again()
        assert group.machine.group.subscribed_topics() == {"open", "secret"}


def test_a_member_gets_nothing_that_is_new_before_it_is_known_what_it_may_know_of() -> None:
    group = Group()
    group.beat("few", only("open"))
    group.load_again()
    group.topics = image(2, "open", "secret", "secret2")
    group.beat("other", only("secret2", principal="User:b"))
    assert group.machine.group.subscribed_topics() == {"open", "secret2"}
    group.beat("few", only("open"))
    assert (group.told["few"], group.told["other"]) == ({"open"}, {"secret2"})


def test_a_member_loses_what_it_may_know_of_no_longer() -> None:
    group = Group()
    group.beat("m", only("open", "secret"))
    assert group.told["m"] == {"open", "secret"}
    group.beat("m", only("open", version=2))
    assert group.told["m"] == {"open"}


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
