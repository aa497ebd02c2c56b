"""Bugs planted into the object log, what the histories say that finds them, and within how many seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.planted.patch import Edit, Planted

LOST = "is lost|which did not find it"
CORRUPT = "corrupt: "


@dataclass(frozen=True)
class PlantedInLog(Planted):
    """A bug in the log or in the use of it."""

    check_deletions: bool = False
    """True if the check of deletions finds it; otherwise the loss of records must."""
    list_first: bool = False
    sweep_all_ages: bool = False


PLANTED: Sequence[PlantedInLog] = (
    PlantedInLog(
        "fence-collected",
        "the next owner deletes the fences of earlier epochs",
        [
            Edit(
                "anabranch.wal.object.recovery",
                "if size_bytes != END_BYTES and each not in kept",
                "if each not in kept",
            )
        ],
        LOST,
        30,
    ),
    PlantedInLog(
        "end-deleted",
        "the same, found by the check of deletions",
        [
            Edit(
                "anabranch.wal.object.recovery",
                "if size_bytes != END_BYTES and each not in kept",
                "if each not in kept",
            )
        ],
        "the end .* was deleted",
        3,
        check_deletions=True,
    ),
    PlantedInLog(
        "list-before-epoch",
        "a recoverer lists and fences before the epoch is raised, while the owner commits and trims",
        [],
        f"{LOST}|{CORRUPT}",
        150,
        list_first=True,
    ),
    PlantedInLog(
        "delete-before-named",
        "objects are deleted before an object is durable that names a later one",
        [
            Edit(
                "anabranch.wal.object.log",
                "            self._advance_head()\n        while self._durable_trim_offset < offset:\n",
                "            self._advance_head()\n            await self._delete_trimmed()\n"
                "        while self._durable_trim_offset < offset:\n",
            ),
            Edit(
                "anabranch.wal.object.log",
                "while self._trimmed and self._trimmed[0] < self._durable_first_live:",
                "while self._trimmed:",
            ),
        ],
        f"{LOST}|{CORRUPT}",
        30,
    ),
    PlantedInLog(
        "ack-out-of-order",
        "a batch is acked when it is stored, whatever became of those before it",
        [
            Edit(
                "anabranch.wal.object.writer",
                "        in_flight = self._in_flight\n        while",
                "        in_flight = deque([batch])\n        self._in_flight.remove(batch)\n        while",
            )
        ],
        f"{LOST}|was acked after",
        10,
    ),
    PlantedInLog(
        "fence-unchecked",
        "a recoverer takes any object in the fence's place for a fence",
        [
            Edit(
                "anabranch.wal.object.recovery",
                "            if header is not None and header.flags:\n                return\n",
                "            return\n",
            )
        ],
        f"{LOST}|{CORRUPT}",
        30,
    ),
    PlantedInLog(
        "foreign-object-is-success",
        "a writer takes another writer's object under its key for its own",
        [
            Edit(
                "anabranch.wal.object.writer",
                "                    raise await self.why_fenced(batch.header.position)\n",
                "                    await self.why_fenced(batch.header.position)\n",
            )
        ],
        LOST,
        10,
    ),
    PlantedInLog(
        "only-newest-epoch-fenced",
        "a recoverer fences only epochs that have objects: an owner that has put nothing yet is forgotten",
        [
            Edit(
                "anabranch.wal.object.recovery",
                "            epoch for epoch in range(first.epoch, self._epoch) if ",
                "            epoch for epoch in sorted({each.epoch for each in listing}) if epoch >= first.epoch and ",
            ),
            Edit(
                "anabranch.wal.object.recovery",
                "        starts = [_start(epoch, first) for epoch in range(first.epoch, self._epoch)]\n",
                "        starts = [_start(epoch, first) for epoch in sorted({each.epoch for each in listing})\n"
                "            if epoch >= first.epoch]\n",
            ),
        ],
        f"{LOST}|{CORRUPT}",
        60,
    ),
    PlantedInLog(
        "outage-skips-batch",
        "a batch whose PUT had no answer is taken for stored",
        [
            Edit(
                "anabranch.wal.object.writer",
                "                self._stats.repeated_writes += 1\n                self._warn(error)\n",
                "                self._stats.repeated_writes += 1\n                self._warn(error)\n"
                "                break\n",
            )
        ],
        LOST,
        10,
    ),
    PlantedInLog(
        "sweep-young-ends",
        "a person sweeps ends while processes are paused that were the owners then",
        [],
        LOST,
        100,
        sweep_all_ages=True,
    ),
    PlantedInLog(
        "sweep-live-epochs",
        "a sweep takes ends of the first live epoch and later ones",
        [Edit("anabranch.wal.object.sweep", "if position.epoch < first_live.epoch}", "}")],
        f"the end .* was deleted|the newest object .* was deleted|{LOST}|{CORRUPT}",
        10,
        check_deletions=True,
    ),
    PlantedInLog(
        "sweep-trusts-a-fence",
        "a sweep takes the position of a fence for the first live one",
        [Edit("anabranch.wal.object.sweep", "        if not header.flags & Flags.FENCE:\n", "        if header:\n")],
        f"the end .* was deleted|{LOST}|{CORRUPT}",
        60,
        check_deletions=True,
    ),
)
