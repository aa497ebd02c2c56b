"""Topic patterns that the members of a consumer group are subscribed to, and the topics that they match (KIP-848)."""

from collections.abc import Iterable, Mapping

from broker.coordination.patterns import PATTERN_CHARACTERS_MAX, Pattern
from broker.groups.consumer import records
from broker.groups.consumer.heartbeat import TopicFilter
from broker.groups.consumer.topic_image import TopicImage
from protocol.errors import ErrorCode, KafkaError


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
    """Patterns by their text, each with the topics that it matches and the value of its record."""

    def __init__(self) -> None:
        self._compiled: dict[str, TopicPattern] = {}
        self._matches: dict[str, frozenset[str]] = {}
        self._record_values: dict[str, bytes] = {}
        self._filters: dict[str, TopicFilter] = {}
        """By pattern, the topics that a member with it may know of, as of its last heartbeat."""

    def note_filter(self, text: str, topic_filter: TopicFilter | None) -> bool:
        """Note which topics a pattern may match; returns True if it has to be matched again."""
        before = self._filters.get(text)
        if topic_filter is None:
            return self._filters.pop(text, None) is not None
        self._filters[text] = topic_filter
        return before is None or before.version != topic_filter.version

    def restore(self, text: str, value: bytes) -> None:
        """Add a pattern from its record in the log. Raises MalformedMessage."""
        self._matches[text] = records.parse_pattern(value)
        self._record_values[text] = value

    def check(self, text: str) -> None:
        """Raise INVALID_REGULAR_EXPRESSION unless the pattern compiles."""
        self._compile(text)

    def matches(self, text: str) -> frozenset[str]:
        """Return the topics that a pattern matched at the last update, none for an unknown pattern."""
        return self._matches.get(text, frozenset())

    def record_value(self, text: str) -> bytes | None:
        """Return the value of a pattern's record, None if no member is subscribed to it."""
        return self._record_values.get(text)

    def update(self, subscribed: set[str], topics: TopicImage, now_ms: int) -> list[str]:
        """Match the subscribed patterns and drop all others. Return the patterns whose record has changed."""
        changed = []
        for text in (self._compiled.keys() | self._record_values.keys()) - subscribed:
            self._compiled.pop(text, None)
            self._matches.pop(text, None)
            self._record_values.pop(text, None)
            self._filters.pop(text, None)
            changed.append(text)
        for text in subscribed:
            try:
                pattern = self._compile(text)
            except KafkaError:
                continue  # from a log that Apache Kafka wrote: the pattern keeps the topics it matched there
            matched = pattern.matching(topics.by_name)
            if (topic_filter := self._filters.get(text)) is not None:
                matched = frozenset(name for name in matched if topic_filter.allows(name))
            if self._matches.get(text) != matched or text not in self._record_values:
                self._matches[text] = matched
                self._record_values[text] = records.pattern_value(matched, topics.version, now_ms)
                changed.append(text)
        return changed

    def _compile(self, text: str) -> TopicPattern:
        compiled = self._compiled.get(text)
        if compiled is None:
            compiled = self._compiled[text] = TopicPattern(text)
        return compiled
