"""Topic patterns that the members of a consumer group are subscribed to, and the topics that they match (KIP-848)."""

from collections.abc import Iterable, Mapping

from anabranch.broker.kafka.coordination.patterns import PATTERN_CHARACTERS_MAX, Pattern
from anabranch.broker.kafka.groups.consumer import records
from anabranch.broker.kafka.groups.consumer.heartbeat import TopicFilter
from anabranch.broker.kafka.groups.modern.topic_image import TopicImage
from anabranch.protocol.errors import ErrorCode, KafkaError


class TopicPattern:
    """A compiled pattern that remembers which topics it matched the last time."""

    def __init__(self, text: str) -> None:
        """Compile `text`. Raises INVALID_REGULAR_EXPRESSION, in Apache Kafka's words."""
        if len(text) > PATTERN_CHARACTERS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"SubscribedTopicRegex has {len(text)} characters, more than the {PATTERN_CHARACTERS_MAX} served.",
            )
        try:
            self._pattern = Pattern(text)
        except KafkaError as error:
            raise KafkaError(
                error.code, f"SubscribedTopicRegex `{text}` is not a valid regular expression: {error.message}."
            ) from None
        self._decided: Mapping[str, bool] = {}

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that match. Only names that were not there the last time are compared."""
        decided, matches = self._decided, self._pattern.matches
        self._decided = {name: decided[name] if name in decided else matches(name) for name in names}
        return frozenset(name for name, matched in self._decided.items() if matched)


class TopicPatterns:
    """Patterns by their text, and for each member the topics that its pattern matches and that it may know of."""

    def __init__(self) -> None:
        self._compiled: dict[str, TopicPattern] = {}
        self._matches: dict[str, frozenset[str]] = {}
        """By pattern, all topics that it matches."""
        self._recorded: dict[str, frozenset[str]] = {}
        """By pattern, the topics of its record: those that some member with it may know of."""
        self._record_values: dict[str, bytes] = {}
        self._filters: dict[str, TopicFilter | None] = {}
        """By member, the topics that it may know of, as of its last heartbeat; None: all."""
        self._visible: dict[tuple[str, int, str, str], frozenset[str]] = {}
        """By pattern and filter, the topics of `_matches` that the filter allows."""

    def note_filter(self, member_id: str, topic_filter: TopicFilter | None) -> bool:
        """Note which topics a member may know of; returns True if its pattern may match others now."""
        before = self._filters.get(member_id)
        known = member_id in self._filters
        self._filters[member_id] = topic_filter
        if before is None or topic_filter is None:
            return not known or before is not topic_filter
        return before[:-1] != topic_filter[:-1]

    def restore(self, text: str, value: bytes) -> None:
        """Add a pattern from its record in the log. Raises MalformedMessage."""
        self._matches[text] = self._recorded[text] = records.parse_pattern(value)
        self._record_values[text] = value

    def check(self, text: str) -> None:
        """Raise INVALID_REGULAR_EXPRESSION unless the pattern compiles."""
        self._compile(text)

    def matches(self, member_id: str, text: str) -> frozenset[str]:
        """Return the topics that a member's pattern matched at the last update and that the member may know of.

        A member that has sent no heartbeat since the group was loaded keeps those that were recorded.
        """
        if not text:
            return frozenset()
        if member_id not in self._filters:
            return self._recorded.get(text, frozenset()) & self._matches.get(text, frozenset())
        found, topic_filter = self._matches.get(text, frozenset()), self._filters[member_id]
        if topic_filter is None:
            return found
        key = (text, *topic_filter[:-1])
        visible = self._visible.get(key)
        if visible is None:
            visible = self._visible[key] = frozenset(filter(topic_filter.allows, found))
        return visible

    def record_value(self, text: str) -> bytes | None:
        """Return the value of a pattern's record, None if no member is subscribed to it."""
        return self._record_values.get(text)

    def update(self, subscribed: Mapping[str, str], topics: TopicImage, now_ms: int) -> list[str]:
        """Match the patterns of members, by member id, and drop all others. Return those whose record has changed."""
        texts = set(subscribed.values())
        gone = (self._compiled.keys() | self._record_values.keys()) - texts
        for text in gone:
            for each in (self._compiled, self._matches, self._recorded, self._record_values):
                each.pop(text, None)
        self._filters = {key: value for key, value in self._filters.items() if key in subscribed}
        self._visible.clear()
        for text in texts:
            try:
                pattern = self._compile(text)
            except KafkaError:
                continue  # from a log that Apache Kafka wrote: the pattern keeps the topics it matched there
            self._matches[text] = pattern.matching(topics.by_name)
        known: dict[str, set[frozenset[str]]] = {text: set() for text in texts}
        for member_id, text in subscribed.items():
            known[text].add(self.matches(member_id, text))
        changed = list(gone)
        for text, matches in known.items():
            names = frozenset[str]().union(*matches)
            if self._recorded.get(text) != names or text not in self._record_values:
                self._recorded[text] = names
                self._record_values[text] = records.pattern_value(names, topics.version, now_ms)
                changed.append(text)
        return changed

    def _compile(self, text: str) -> TopicPattern:
        compiled = self._compiled.get(text)
        if compiled is None:
            compiled = self._compiled[text] = TopicPattern(text)
        return compiled
