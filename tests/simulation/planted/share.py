"""Planted bugs of share groups."""

from collections.abc import Sequence

from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.symptoms import SHARED_TWICE, UNDECIDED, having

SHARE: Sequence[Planted] = (
    Planted(
        "share-ack-not-stored",
        "the next leader of a share partition does not get the acknowledgements of updates",
        [
            Edit(
                "anabranch.broker.kafka.share.state.stored",
                "        batches=combine(before.batches, update.batches, start_offset),\n        leader_fence=",
                "        batches=combine(before.batches, (), start_offset),\n        leader_fence=",
            )
        ],
        found_by=SHARED_TWICE,
        seeds=5,
        adapt=having("kill", share_members=3, idempotent=1),
    ),
    Planted(
        "share-ack-early",
        "an acknowledgement is answered before it is durable",
        [
            Edit(
                "anabranch.broker.kafka.share.leader",
                "        if change.batches:\n            self._submit(change, done)\n        else:",
                "        if change.batches:\n            self._submit(change, lambda _: None)\n            done(None)\n"
                "        else:",
            )
        ],
        found_by=SHARED_TWICE,
        seeds=20,
        adapt=having("kill", "power", share_members=3, idempotent=1),
    ),
    Planted(
        "share-lock-forever",
        "the lock of a record never ends",
        [
            Edit(
                "anabranch.broker.kafka.share.leader",
                "if deadline_ms >= self._timer_ms or",
                "if deadline_ms >= 0 or",
            )
        ],
        found_by="was never delivered",
        seeds=10,
        adapt=having(share_members=3, idempotent=1),
    ),
    Planted(
        "share-count-restarts",
        "delivery counts begin again with the next leader of a share partition",
        [
            Edit(
                "anabranch.broker.kafka.share.partition.machine",
                "DeliveryState(batch.delivery_state), batch.delivery_count)",
                "DeliveryState(batch.delivery_state), 0)",
            )
        ],
        found_by="delivery count",
        seeds=20,
        adapt=having("kill", share_members=3, idempotent=1),
    ),
    Planted(
        "share-gap-acknowledged",
        "the next leader of a share partition takes records without a durable state for acknowledged",
        [
            Edit(
                "anabranch.broker.kafka.share.partition.machine",
                "                self._batches.append(_gap(self.end_offset, first_offset - 1))\n",
                "                gap = Run(self.end_offset, first_offset - 1, DeliveryState.ACKNOWLEDGED, 1)\n"
                "                self._batches.append(Batch(gap))\n",
            )
        ],
        found_by="was never delivered",
        seeds=20,
        adapt=having("kill", share_members=3, idempotent=1),
    ),
    Planted(
        "share-aborted",
        "records of aborted transactions are delivered to a share group that reads committed ones",
        [
            Edit(
                "anabranch.broker.kafka.share.partition.machine",
                "            for each in aborted:\n",
                "            for each in ():\n",
            )
        ],
        found_by=UNDECIDED,
        seeds=10,
        adapt=having(share_members=3, transactional=2),
    ),
    Planted(
        "share-dead-letters-forgotten",
        "the next leader of a share partition does not write the dead letters that are left",
        [
            Edit(
                "anabranch.broker.kafka.share.partition.machine",
                "                self._may_have_letters = True\n            self._batches",
                "                run.is_taken = True\n            self._batches",
            ),
            # They take a while, so that leaders change meanwhile.
            Edit(
                "anabranch.broker.kafka.share.leader",
                "                letters, self._letters = self._letters, ()\n",
                "                letters, self._letters = self._letters, ()\n                await asyncio.sleep(1)\n",
            ),
        ],
        found_by="no dead letter",
        seeds=20,
        adapt=having("kill", share_members=3, idempotent=1),
    ),
    Planted(
        "share-dead-letters-once",
        "a dead letter that is refused is not written again",
        [
            Edit(
                "anabranch.broker.kafka.share.dead_letters.writer",
                "if _is_final(error):",
                "if reason:",
            )
        ],
        found_by="no dead letter",
        seeds=20,
        adapt=having("kill", nodes=3, share_members=3, idempotent=1),
    ),
    Planted(
        "share-dead-letters-impatient",
        "dead letters are given up after five attempts, although their leader or its log will be back",
        [
            Edit(
                "anabranch.broker.kafka.share.dead_letters.writer",
                "if _is_final(error):",
                "if _is_final(error) or attempt == 5:",
            )
        ],
        found_by="no dead letter",
        seeds=20,
        adapt=having("cut", "log_stuck", nodes=3, share_members=3, idempotent=1),
    ),
)
