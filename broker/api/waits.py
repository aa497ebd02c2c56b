"""Waits of requests for partitions that this node is opening, or groups and transactions that it is loading.

Produce and Fetch do this themselves, since their other partitions need not wait. All other requests wait here until
everything that they name is served, or the time is over.
"""

from collections.abc import Callable, Iterable
from typing import Any

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of

WaitsFor = Callable[[Serving, Any], bool]
"""Returns whether the node is about to serve something that a request names."""


def groups(names: Callable[[Any], Iterable[str]]) -> WaitsFor:
    """Return the wait for the groups that a request names."""

    def is_loading(serving: Serving, group_id: str) -> bool:
        return serving.groups.is_loading(group_id) or _awaits_coordinator(serving, OFFSETS_TOPIC, group_id)

    return lambda serving, request: any(is_loading(serving, name) for name in names(request))


def transactions(names: Callable[[Any], Iterable[str]]) -> WaitsFor:
    """Return the wait for the transactional ids that a request names."""

    def is_loading(serving: Serving, name: str) -> bool:
        return serving.transactions.is_loading(name) or _awaits_coordinator(serving, TRANSACTION_TOPIC, name)

    return lambda serving, request: any(is_loading(serving, name) for name in names(request))


def partitions(names: Callable[[Any], Iterable[tuple[str, int]]]) -> WaitsFor:
    """Return the wait for the partitions that a request names."""

    def is_opening(serving: Serving, topic_name: str, index: int) -> bool:
        topic = serving.topics.get(topic_name)
        return topic is not None and serving.topics.is_opening(topic, index)

    return lambda serving, request: any(is_opening(serving, *where) for where in names(request))


group = groups(lambda request: (request.group_id,))
"""The wait for the one group of a request."""
transaction = transactions(lambda request: () if request.transactional_id is None else (request.transactional_id,))
"""The wait for the one transaction of a request, if there is one."""


def _awaits_coordinator(serving: Serving, topic_name: str, name: str) -> bool:
    topic = serving.topics.get(topic_name)
    return topic is not None and serving.topics.is_opening(topic, partition_of(name, len(topic.partitions)))
