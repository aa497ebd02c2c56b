"""Leaders and owners of a topic's partitions, as this node knows them. Pure.

A move ends at both of its nodes before they have read the change that it makes in the catalog, and maybe while they
apply older ones. Leader epochs grow with every change of a leader, so the larger one is the newer state.
"""

from dataclasses import replace

from anabranch.s3stream.catalog.values import TopicInfo


def with_leader(info: TopicInfo, index: int, node_id: int, leader_epoch: int) -> TopicInfo:
    """Return the topic with a partition that a node has and leads now, as was ordered."""
    partitions = list(info.partitions)
    before = partitions[index]
    outcome = before.order.outcome if before.order is not None and before.order.to_node == node_id else None
    preferred, replicas = outcome or (before.preferred, before.replicas)
    partitions[index] = replace(
        before,
        leader=node_id,
        owner=node_id,
        leader_epoch=leader_epoch,
        preferred=preferred,
        order=None,
        replicas=replicas,
    )
    return replace(info, partitions=partitions)


def without_older(found: TopicInfo, known: TopicInfo) -> TopicInfo:
    """Return `found` with those partitions of `known` that have larger leader epochs."""
    if all(
        each.leader_epoch >= other.leader_epoch for each, other in zip(found.partitions, known.partitions, strict=False)
    ):
        return found
    partitions = [
        other if other.leader_epoch > each.leader_epoch else each
        for each, other in zip(found.partitions, known.partitions, strict=False)
    ]
    return replace(found, partitions=[*partitions, *found.partitions[len(partitions) :]])
