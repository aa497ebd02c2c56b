"""Records that a member of a share group acquires, for `consume --share`."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import click

from anabranch.broker.operator.cli.client import CommandClient
from anabranch.broker.operator.cli.consume_ranges import find_bounds
from anabranch.broker.operator.cli.consume_source import BATCH_RECORDS, SILENCE_S, Read
from anabranch.broker.operator.cli.points import Point
from anabranch.broker.operator.cli.record_lines import TIMESTAMP_TYPES, ReadRecord
from anabranch.broker.operator.cli.streams import reader_has_ended
from anabranch.client.cluster import Cluster, Place
from anabranch.client.errors import NodeLost
from anabranch.client.groups import set_share_offsets, share_offsets
from anabranch.client.share import ACCEPT, REJECT, RELEASE, Delivery, ShareMember
from anabranch.output import count_text

ACKNOWLEDGEMENTS: Final[Mapping[str, int]] = {"accept": ACCEPT, "release": RELEASE, "reject": REJECT}
WAIT_S: Final = 0.5
QUIET_S: Final = 3.0
"""Time without a record after which there are none to take: other members may have those that are left."""
RETRY_S: Final = 0.5


class ShareRead(Read):
    """Takes records of a share group, and acknowledges what has been printed.

    `start`: where partitions begin that the group has not read; None: where its configs say. Released records are kept
    until the end, because they would be delivered again at once; and the end comes before that of their locks, because
    a group gives up records that were delivered too often.
    """

    def __init__(
        self,
        client: CommandClient,
        topics: Sequence[str],
        group: str,
        start: Point | None,
        *,
        acknowledgement: str,
        limit: int | None,
        follow: bool,
    ) -> None:
        self._client = client
        self._topics = topics
        self._group = group
        self._start = start
        self._kind = ACKNOWLEDGEMENTS[acknowledgement]
        self._left = limit
        self._follow = follow
        self._is_new = False
        self._printed: dict[Place, list[int]] = {}
        """Offsets of records that were printed and are not acknowledged."""
        self._cluster: Cluster
        self._member: ShareMember

    def __enter__(self) -> Self:
        """Join the group. Raises ClientError."""
        with self._client.cluster() as cluster:
            bounds = find_bounds(cluster, dict.fromkeys(self._topics, ()))
            known = share_offsets(cluster, self._group)
            begun = {place for place, (offset, _) in known.items() if offset is not None}
            self._is_new = not begun.intersection(bounds.places)
            if self._start is not None:
                starts = bounds.resolve(cluster, self._start)
                fresh = {place: offset for place, offset in starts.items() if place not in begun}
                if fresh:
                    set_share_offsets(cluster, self._group, fresh)
        self._cluster = self._client.cluster()
        self._member = ShareMember(self._cluster, self._group, self._topics)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give back what was not acknowledged, and leave the group."""
        self._member.leave()
        self._cluster.close()

    def batches(self) -> Iterator[Sequence[ReadRecord]]:
        """Yield what the member acquires."""
        quiet_since_s, has_read = time.perf_counter(), False
        while self._left != 0 and not reader_has_ended():
            if self._kind == RELEASE and time.perf_counter() + WAIT_S >= self._member.locked_until_s:
                click.echo("records are left: those shown are given back, as their locks end", err=True)
                return
            wanted = min(self._left or BATCH_RECORDS, BATCH_RECORDS)
            try:
                found = self._member.fetch(wanted, WAIT_S)
                if found:
                    quiet_since_s, has_read = time.perf_counter(), True
                    yield [_read_record(each) for each in found]
                if self._follow or len(found) == wanted:
                    continue
                left = self._count_left()
            except NodeLost:
                if not self._follow and time.perf_counter() - quiet_since_s > SILENCE_S:
                    raise
                self._reconnect()
                continue
            if left == 0 or time.perf_counter() - quiet_since_s > QUIET_S:
                self._explain(left, has_read=has_read)
                return

    def done(self, records: Sequence[ReadRecord]) -> None:
        """Note that records were printed, so that they can be acknowledged after the next flush."""
        if self._left is not None:
            self._left -= len(records)
        for each in records:
            self._printed.setdefault((each.topic, each.partition), []).append(each.offset)

    def flushed(self) -> None:
        """Acknowledge what has been printed. What is released stays with the member until it leaves."""
        if not self._printed or self._kind == RELEASE:
            return
        try:
            failures = self._member.acknowledge(self._printed, self._kind)
        except NodeLost as error:
            failures = [str(error)]
            self._reconnect()
        self._printed.clear()
        for each in failures:
            click.echo(f"not acknowledged, and to be delivered again: {each}", err=True)

    def _count_left(self) -> int | None:
        """Return how many records the group has not processed and this member does not have; None: not known."""
        found = [
            lag for (topic, _), (_, lag) in share_offsets(self._cluster, self._group).items() if topic in self._topics
        ]
        known = [lag for lag in found if lag is not None]
        held = sum(map(len, self._printed.values()))
        return sum(known) - held if known and len(known) == len(found) else None

    def _explain(self, left: int | None, *, has_read: bool) -> None:
        """Say what is not shown, and why."""
        if not has_read and self._is_new and self._start is None:
            click.echo(
                f"no record: group {self._group} is new, and begins with what is produced from now on; "
                "--from earliest begins with the first record",
                err=True,
            )
        elif left and left > 0:
            click.echo(f"{count_text(left, 'record')} left, which other members have taken", err=True)

    def _reconnect(self) -> None:
        """Continue after a node was lost. What was not acknowledged has been given back."""
        self._cluster.close()
        self._printed.clear()
        time.sleep(RETRY_S)
        with suppress(NodeLost):  # the next turn fails, too, and comes by here
            self._cluster = self._client.cluster()
            self._member.reconnect(self._cluster)


def _read_record(delivery: Delivery) -> ReadRecord:
    record = delivery.record
    return ReadRecord(
        *delivery.place,
        record.offset,
        record.timestamp_ms,
        None if record.timestamp_ms < 0 else TIMESTAMP_TYPES[2 if delivery.is_append_time else 1],
        record.key,
        record.value,
        record.headers,
        delivery.delivery_count,
    )
