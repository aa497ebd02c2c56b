"""States of share partitions, as leaders and group coordinators of other brokers read and write them (KIP-932)."""

import random
from collections.abc import Sequence
from typing import Any

from anabranch.broker.kafka.share.interface import DeliveryState, ShareKey
from anabranch.protocol.messages import delete_share_group_state as deletion
from anabranch.protocol.messages import initialize_share_group_state as initialization
from anabranch.protocol.messages import read_share_group_state as reading
from anabranch.protocol.messages import read_share_group_state_summary as summarizing
from anabranch.protocol.messages import write_share_group_state as writing
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.differential.script import Script

NO_TOPIC = bytes([9] * 16)
ROUNDS = 150
Batch = tuple[int, int, int, int]
"""First and last offset, delivery state and count."""


def initialize(group: str, topic_id: bytes, *states: tuple[int, int, int]) -> object:
    """States are given as partition, state epoch and start offset."""
    return initialization.InitializeShareGroupStateRequest(
        group_id=group,
        topics=[
            initialization.InitializeStateData(
                topic_id=topic_id,
                partitions=[
                    initialization.PartitionData(partition=partition, state_epoch=epoch, start_offset=start)
                    for partition, epoch, start in states
                ],
            )
        ],
    )


def read(group: str, topic_id: bytes, *partitions: tuple[int, int]) -> object:
    """Partitions are given with the leader epoch."""
    asked = [reading.PartitionData(partition=partition, leader_epoch=epoch) for partition, epoch in partitions]
    topics = [reading.ReadStateData(topic_id=topic_id, partitions=asked)]
    return reading.ReadShareGroupStateRequest(group_id=group, topics=topics)


def write(
    group: str, topic_id: bytes, partition: int, epochs: tuple[int, int], start: int, count: int, *batches: Batch
) -> object:
    """`epochs` are the state epoch and the leader epoch."""
    written = writing.PartitionData(
        partition=partition,
        state_epoch=epochs[0],
        leader_epoch=epochs[1],
        start_offset=start,
        delivery_complete_count=count,
        state_batches=[
            writing.StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=deliveries)
            for first, last, state, deliveries in batches
        ],
    )
    topics = [writing.WriteStateData(topic_id=topic_id, partitions=[written])]
    return writing.WriteShareGroupStateRequest(group_id=group, topics=topics)


def delete(group: str, topic_id: bytes, *partitions: int) -> object:
    asked = [deletion.PartitionData(partition=partition) for partition in partitions]
    topics = [deletion.DeleteStateData(topic_id=topic_id, partitions=asked)]
    return deletion.DeleteShareGroupStateRequest(group_id=group, topics=topics)


def summary(group: str, topic_id: bytes, *partitions: int) -> object:
    asked = [summarizing.PartitionData(partition=partition, leader_epoch=0) for partition in partitions]
    topics = [summarizing.ReadStateSummaryData(topic_id=topic_id, partitions=asked)]
    return summarizing.ReadShareGroupStateSummaryRequest(group_id=group, topics=topics)


def _ready(script: Script, group: str, topic_id: bytes) -> None:
    """Wait until states of the group are kept."""
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=[ShareKey(group, topic_id, 0).text])
    script.until(find, 6, lambda answer: not answer.coordinators[0].error_code)
    script.until(summary(group, topic_id, 0), 1, lambda answer: not answer.results[0].partitions[0].error_code)


def _epoch(script: Script, name: str, answer: Any) -> None:
    """Note the leader epochs of a summary, which are hidden in answers."""
    script.note(f"{name}: leader epochs", [each.leader_epoch for each in answer.results[0].partitions])


def share_states(script: Script) -> None:
    """The life of a state, and what is refused in the order of the checks."""
    topic_id = script.topic("ss-a", 3)
    _ready(script, "ss", topic_id)
    available, acknowledged, archived = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
    script.call("summary of nothing", summary("ss", topic_id, 0, 1), 0, 1)
    script.call("read of nothing", read("ss", topic_id, (0, 1)), 0)
    script.call("write to nothing", write("ss", topic_id, 0, (0, 0), 0, 0), 0, 1)
    script.call("delete nothing", delete("ss", topic_id, 0, 1), 0)
    script.call("initialize", initialize("ss", topic_id, (0, 2, -1), (1, 2, 10), (2, 0, 0)), 0)
    _epoch(script, "begun", script.call("summary", summary("ss", topic_id, 0, 1, 2), 0, 1))
    script.call("read", read("ss", topic_id, (0, 3), (1, 3), (2, 0)), 0)
    _epoch(script, "read", script.call("summary after reads", summary("ss", topic_id, 0, 1, 2), 1))
    batch = (10, 14, acknowledged, 1)
    script.call("write", write("ss", topic_id, 1, (2, 3), 10, 5, batch, (17, 19, available, 1)), 0, 1)
    script.call("read again", read("ss", topic_id, (1, 3)), 0)
    script.call("write what is further", write("ss", topic_id, 1, (2, 3), 10, 8, (15, 20, archived, 2)), 1)
    script.call("write what is not", write("ss", topic_id, 1, (2, 3), 10, 3, (10, 30, available, 1)), 1)
    script.call("read what has been combined", read("ss", topic_id, (1, 3)), 0)
    script.call("move the start", write("ss", topic_id, 1, (2, 3), 13, 6), 1)
    script.call("move it back", write("ss", topic_id, 1, (2, 3), 11, 20), 1)
    script.call("leave the start", write("ss", topic_id, 1, (2, 3), -1, 20, (40, 40, archived, 1)), 1)
    script.call("write with later epochs", write("ss", topic_id, 1, (9, 9), 13, 6), 1)
    script.call("read after moves", read("ss", topic_id, (1, 3)), 0)
    _epoch(script, "moved", script.call("summary after moves", summary("ss", topic_id, 1), 1))
    _refused(script, topic_id)
    script.call("read by a later leader", read("ss", topic_id, (1, 7)), 0)
    script.call("write of the earlier one", write("ss", topic_id, 1, (2, 6), 13, 6, batch), 1)
    script.call("begin anew", initialize("ss", topic_id, (1, 3, 5)), 0)
    _epoch(script, "begun anew", script.call("summary of the new epoch", summary("ss", topic_id, 1), 1))
    script.call("write of the earlier leader in the new epoch", write("ss", topic_id, 1, (3, 6), 5, 0), 1)
    script.call("write of the earlier epoch", write("ss", topic_id, 1, (2, 7), 5, 0), 1)
    script.call("read in the new epoch", read("ss", topic_id, (1, 7)), 0)
    script.call("delete", delete("ss", topic_id, 0, 1, 2), 0)
    script.call("delete again", delete("ss", topic_id, 0, 1, 2), 0)
    script.call("read what is deleted", read("ss", topic_id, (1, 9)), 0)
    script.call("begin after the deletion", initialize("ss", topic_id, (1, 0, 3)), 0)
    script.call("read after the deletion", read("ss", topic_id, (1, 0)), 0)


def _refused(script: Script, topic_id: bytes) -> None:
    for name, topic, partition in (
        ("an unknown topic", NO_TOPIC, 0),
        ("an unknown partition", topic_id, 3),
        ("a negative partition", topic_id, -1),
        ("no topic id", bytes(16), 0),
    ):
        script.call(f"initialize {name}", initialize("ss", topic, (partition, 1, 1)), 0)
        script.call(f"read {name}", read("ss", topic, (partition, 1)), 0)
        script.call(f"write {name}", write("ss", topic, partition, (1, 1), 1, 1), 0, 1)
        script.call(f"delete {name}", delete("ss", topic, partition), 0)
        script.call(f"summary of {name}", summary("ss", topic, partition), 0, 1)
    for name, epochs in (
        ("an earlier leader", (2, 2)),
        ("an earlier state epoch", (1, 3)),
        ("both", (1, 2)),
        ("a negative leader epoch", (2, -1)),
        ("a negative state epoch", (-1, 3)),
        ("two negative epochs", (-1, -1)),
    ):
        script.call(f"write of {name}", write("ss", topic_id, 1, epochs, 13, 6), 1)
        script.call(f"initialize: {name}", initialize("ss", topic_id, (1, epochs[0] - 1, 6)), 0)
        script.call(f"read: {name}", read("ss", topic_id, (1, epochs[1] - 1)), 0)
    for name, group in (("no group", ""), ("another group", "ss-other")):
        script.call(f"read, {name}", read(group, topic_id, (1, 3)), 0)
        script.call(f"summary, {name}", summary(group, topic_id, 1), 0, 1)
        script.call(f"write, {name}", write(group, topic_id, 1, (2, 3), 13, 6), 1)
        script.call(f"delete, {name}", delete(group, topic_id, 1), 0)
    script.call("initialize, no group", initialize("", topic_id, (1, 2, 3)), 0)
    script.call("no partitions to read", read("ss", topic_id), 0)
    script.call("no partitions to initialize", initialize("ss", topic_id), 0)
    script.call("no partitions to delete", delete("ss", topic_id), 0)
    script.call("no partitions to summarize", summary("ss", topic_id), 1)
    script.call("nothing to read", reading.ReadShareGroupStateRequest(group_id="ss"), 0)
    script.call("nothing to write", writing.WriteShareGroupStateRequest(group_id="ss"), 1)
    script.call("nothing to initialize", initialization.InitializeShareGroupStateRequest(group_id="ss"), 0)
    script.call("nothing to delete", deletion.DeleteShareGroupStateRequest(group_id="ss"), 0)
    script.call("nothing to summarize", summarizing.ReadShareGroupStateSummaryRequest(group_id="ss"), 1)
    script.call("a partition twice", read("ss", topic_id, (1, 3), (1, 1), (0, 3)), 0)


def _random_batches(source: random.Random) -> Sequence[Batch]:
    batches = []
    for _ in range(source.randrange(4)):
        first = source.randrange(60)
        batches.append((first, first + source.randrange(8), source.choice((0, 2, 4)), source.randrange(1, 4)))
    return batches


def random_share_states(script: Script) -> None:
    """A history of requests by leaders and coordinators with all kinds of epochs."""
    topic_id = script.topic("rss-a", 2)
    _ready(script, "rss", topic_id)
    source = random.Random(932)
    state_epoch, begun = 0, dict[int, int]()
    for at in range(ROUNDS):
        partition, name = source.randrange(2), f"{at:03}"
        match source.choice("iiwwwwwwwwrrrd"):
            case "i":
                state_epoch += 1
                # The same epoch is begun again in `same_state_epoch`.
                asked = state_epoch if source.random() < 0.8 else max(0, begun.get(partition, 1) - 1)
                request = initialize("rss", topic_id, (partition, asked, source.randrange(-1, 40)))
                script.call(f"{name} initialize", request, 0)
                begun[partition] = max(asked, begun.get(partition, 0))
            case "w":
                epochs = max(0, state_epoch - source.choice((0, 0, 0, 2))), source.randrange(2, 5)
                start, batches = source.randrange(-1, 60), _random_batches(source)
                request = write("rss", topic_id, partition, epochs, start, source.randrange(9), *batches)
                script.call(f"{name} write", request, source.randrange(2))
            case "r":
                script.call(f"{name} read", read("rss", topic_id, (partition, source.randrange(1, 5))), 0)
            case "d" if at % 5 == 0:
                script.call(f"{name} delete", delete("rss", topic_id, partition), 0)
        _epoch(script, name, script.call(f"{name} summary", summary("rss", topic_id, 0, 1), 1))
        script.call(f"{name} state", read("rss", topic_id, (0, 4), (1, 4)), 0)


def same_state_epoch(script: Script) -> None:
    """A state epoch that is begun twice, as when the copy of a request comes late."""
    topic_id = script.topic("sse-a")
    _ready(script, "sse", topic_id)
    script.call("initialize", initialize("sse", topic_id, (0, 1, 5)), 0)
    script.call("read", read("sse", topic_id, (0, 2)), 0)
    script.call("write", write("sse", topic_id, 0, (1, 2), 8, 1, (9, 9, 2, 1)), 1)
    script.call("initialize again", initialize("sse", topic_id, (0, 1, 5)), 0)
    _epoch(script, "again", script.call("summary", summary("sse", topic_id, 0), 1))
    script.call("read again", read("sse", topic_id, (0, 2)), 0)


SCRIPTS = (share_states, random_share_states, same_state_epoch)
