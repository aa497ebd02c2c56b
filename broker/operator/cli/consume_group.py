"""Records that a member of a consumer group reads, for `consume --group`."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from anabranch.broker.operator.cli.client import CommandClient
from anabranch.broker.operator.cli.consume_source import ConsumerRead, client_error
from anabranch.broker.operator.cli.points import Point
from anabranch.broker.operator.cli.record_lines import ReadRecord
from anabranch.client.cluster import Place

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

COMMIT_S: Final = 5.0


class GroupRead(ConsumerRead):
    """Reads what the group has not read, and commits what has been printed.

    `start` is where a group without offsets begins: the earliest or the latest.
    """

    def __init__(
        self,
        client: CommandClient,
        topics: Sequence[str],
        group: str,
        start: Point,
        *,
        follow: bool,
        read_committed: bool,
    ) -> None:
        super().__init__(client, follow=follow)
        self._topics = topics
        self._settings = {
            "group.id": group,
            "auto.offset.reset": start.kind,
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        }
        self._is_assigned = False
        self._printed: dict[Place, int] = {}
        """Offset after the last record that was printed since the last flush, by partition."""
        self._positions: dict[Place, int] = {}
        """Offset after the last record that was flushed, of partitions where that is not committed."""
        self._committed_s = 0.0

    def start(self) -> None:
        """Join the group."""
        if sys.stderr.isatty():  # for seconds nothing else is seen
            click.echo(f"joining group {self._settings['group.id']} ...", err=True)
        self.consumer = self.make_consumer(**self._settings)
        self.consumer.subscribe(list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke)

    def is_over(self) -> bool:
        """Return whether the assigned partitions have been read to their ends."""
        return self._is_assigned and not self._open and not self.follow

    def at_end(self, place: Place) -> None:
        """Note that a partition has been read to its end."""
        self._open.discard(place)

    def done(self, records: Sequence[ReadRecord]) -> None:
        """Note that records were printed, so that they can be committed after the next flush."""
        self._printed |= {record[:2]: record.offset + 1 for record in records}

    def flushed(self) -> None:
        """Commit what has been printed, from time to time."""
        self._positions |= self._printed
        self._printed.clear()
        if time.perf_counter() - self._committed_s > COMMIT_S:
            self._commit()

    def finish(self) -> None:
        """Commit what has been printed."""
        self._commit()

    def _commit(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        self._committed_s = time.perf_counter()
        if self._positions:
            offsets = [TopicPartition(name, index, offset) for (name, index), offset in self._positions.items()]
            self._positions.clear()
            try:
                self.consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                raise client_error(error, f"group {self._settings['group.id']}, commit") from None

    def _on_assign(self, _consumer: "Consumer", partitions: "list[TopicPartition]") -> None:
        self._is_assigned = True
        self._open = {(each.topic, each.partition) for each in partitions}
        self._quiet_s = time.perf_counter()  # the group may have waited for a member that has died

    def _on_revoke(self, _consumer: "Consumer", _partitions: "list[TopicPartition]") -> None:
        self._commit()
        self._is_assigned = False
        self._open.clear()
