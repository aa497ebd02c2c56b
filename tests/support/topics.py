"""Topics of a catalog by their names, where a test knows that there is just one."""

from s3stream.catalog.catalog import Catalog


async def delete_topic(catalog: Catalog, name: str, *, now_ms: int, delete_after_ms: int) -> None:
    """Delete the topic that has the name."""
    (topic_id,) = [topic.topic_id for topic in await catalog.list_topics() if topic.name == name]
    await catalog.delete_topics([topic_id], now_ms=now_ms, delete_after_ms=delete_after_ms)
