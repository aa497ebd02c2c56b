"""Planted bugs of replicas that follow the tail, and of the leaders that tell it."""

from collections.abc import Sequence

from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.symptoms import LOST, REPLICA, UNDECIDED, having

REPLICAS, TAIL, TAILS = (f"anabranch.broker.kafka.topics.{name}" for name in ("replicas", "tail_partition", "tails"))
FOLLOW_TAIL = "anabranch.broker.api.handlers.follow_tail"

FOLLOWED: Sequence[Planted] = (
    Planted(
        "tail-unstable",
        "a replica that follows serves READ_COMMITTED readers past the leader's last stable offset",
        [Edit(TAIL, "told.high_watermark, told.last_stable_offset\n", "told.high_watermark, told.high_watermark\n")],
        found_by=UNDECIDED,
        seeds=30,
        adapt=having(nodes=2, transactional=3, readers=2),
    ),
    Planted(
        "tail-of-before",
        "a replica goes on with what a leader has told that is no leader any more",
        [
            Edit(
                TAIL,
                "        try:\n            added = self._check(told)",
                "        if told.error_code:\n            self.heard_s = asked_s\n            return 0\n"
                "        try:\n            added = self._check(told)",
            ),
            Edit(REPLICAS, "if info.leader != tail.led.leader or info.leader_epoch > tail.leader_epoch:", "if False:"),
            Edit(REPLICAS, "if tail is not None and tail.leader_epoch < reading.leader_epoch:", "if False:"),
        ],
        found_by=REPLICA,
        seeds=30,
        adapt=having("move", nodes=2, readers=2, plain=2),
    ),
    Planted(
        "tail-with-gaps",
        "a replica that follows asks from the high watermark on, not from the end of what it has",
        [
            Edit(TAILS, "offset=tail.next_offset", "offset=max(tail.next_offset, tail.high_watermark)"),
            Edit(TAIL, "if header.base_offset != next_offset and", "if header.base_offset < next_offset and"),
        ],
        found_by=LOST,
        seeds=20,
        adapt=having(nodes=2, readers=2, plain=3),
    ),
    Planted(
        "tail-left-behind",
        "a reader is served what follows the batches that have left a window before it has read them",
        [Edit(TAIL, "        self.window_offset = batch.end_offset\n", "")],
        found_by=LOST,
        seeds=20,
        adapt=having(nodes=2, readers=2, plain=3),
    ),
    Planted(
        "tail-stands-still",
        "a leader says nothing instead of an error if a batch is larger than an answer",
        [Edit(FOLLOW_TAIL, "            if is_first:\n", "            if not batches:\n")],
        found_by="stands still",
        seeds=20,
        adapt=having(nodes=2, readers=2, plain=3, seconds=60.0),
    ),
    Planted(
        "tail-not-trimmed",
        "a replica that follows goes on with the log start that it was told first",
        [
            Edit(
                TAIL,
                "        self.told_start = told.log_start_offset\n",
                "        if not self.heard.is_set():\n            self.told_start = told.log_start_offset\n",
            )
        ],
        found_by=REPLICA,
        seeds=30,
        adapt=having(nodes=2, deleters=3, readers=2, seconds=60.0),
    ),
    Planted(
        "tail-aborts-of-before",
        "a leader leaves out aborted transactions that began before what a replica asks for",
        [
            Edit(
                FOLLOW_TAIL,
                "        aborted = list(islice(among, ABORTED_MAX + 1))\n",
                "        aborted = list(islice(among, ABORTED_MAX + 1))\n"
                "        aborted = [entry for entry in aborted if entry.first_offset >= wanted.offset]\n",
            )
        ],
        found_by=UNDECIDED,
        seeds=20,
        adapt=having(nodes=2, transactional=3, readers=2),
    ),
    Planted(
        "tail-aborts-untold",
        "a leader whose answer has no room for records leaves out what was aborted of those that a replica has",
        [Edit(FOLLOW_TAIL, " if batches else wanted.offset\n", " if batches else 0\n")],
        found_by=UNDECIDED,
        seeds=100,
        adapt=having(nodes=2, transactional=3, restless=3, readers=3),
    ),
    Planted(
        "tail-aborts-trimmed",
        "a replica that follows forgets aborted transactions whose batches are still in its window",
        [Edit(TAIL, "self.transactions.trim(self.window_offset)", "self.transactions.trim(self.next_offset)")],
        found_by=UNDECIDED,
        seeds=30,
        adapt=having(nodes=2, transactional=3, readers=2),
    ),
    Planted(
        "to-and-fro",
        "a leader forgets that a replica has given a reader nothing",
        [Edit(REPLICAS, "return not before.returned\n", "return True\n")],
        found_by="sent to and fro",
        seeds=30,
        adapt=having("cut", nodes=2, readers=3, seconds=60.0),
    ),
)
