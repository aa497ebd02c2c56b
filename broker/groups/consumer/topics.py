"""What consumer groups see of this node's topics, made anew only when a topic has changed."""

from broker.groups.consumer.values import TopicImage, TopicView
from broker.topics.manager import TopicManager


class TopicImages:
    """Called by each heartbeat: costs nothing as long as topics stay as they are."""

    def __init__(self, topics: TopicManager) -> None:
        self._topics = topics
        self._image = TopicImage(-1)

    def __call__(self) -> TopicImage:
        """Return all topics as of now."""
        if self._image.version != self._topics.version:
            views = [TopicView(topic.topic_id, topic.name, len(topic.partitions)) for topic in self._topics]
            self._image = TopicImage.of(self._topics.version, views)
        return self._image
