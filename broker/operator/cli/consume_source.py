"""Records of partitions through librdkafka, for `consume`."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import methodcaller
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from anabranch.broker.operator.cli.client import LIBRDKAFKA_LOG, CommandClient
from anabranch.broker.operator.cli.consume_ranges import Ranges
from anabranch.broker.operator.cli.record_lines import TIMESTAMP_TYPES, Headers, ReadRecord
from anabranch.broker.operator.cli.streams import reader_has_ended
from anabranch.client.cluster import Place
from anabranch.client.errors import ClientError
from anabranch.protocol.records import decode_records

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message

BATCH_RECORDS: Final = 1_000
POLL_S: Final = 0.2
SILENCE_S: Final = 30.0
"""Time for which nodes may send nothing of what there is before the command fails; with `--follow` it waits."""
_HEADERS_OF: Final = methodcaller("headers")
"""Calls `Message.headers`, and checks for an exception left behind, which the interpreter omits in warm code."""


class Read(ABC):
    """Records of one call of `consume`. A context: leaving it closes what reads."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @abstractmethod
    def batches(self) -> Iterator[Sequence[ReadRecord]]:
        """Yield records until all are read, or the output's reader has ended. Raises ClientError."""

    def done(self, records: Sequence[ReadRecord]) -> None:  # noqa: B027 - a hook
        """Note that records were printed, or passed over."""

    def flushed(self) -> None:  # noqa: B027 - a hook
        """Note that all that was printed has been written."""


class ConsumerRead(Read):
    """Records through a consumer of librdkafka."""

    consumer: "Consumer"

    def __init__(self, client: CommandClient, *, follow: bool) -> None:
        self.follow = follow
        self._client = client
        self._fetched: dict[tuple[Place, int], Headers] = {}
        """Headers of the records of the last batch that had to be fetched again, by partition and offset."""
        self._outage: KafkaError | None = None
        self._open: set[Place] = set()
        """Partitions of which there is more to read."""
        self._quiet_s = 0.0
        """Time since which nodes could have sent something, and have not."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.finish()
        finally:
            self.consumer.close()

    @abstractmethod
    def start(self) -> None:
        """Create the consumer."""

    @abstractmethod
    def is_over(self) -> bool:
        """Return whether all requested records have been read."""

    @abstractmethod
    def at_end(self, place: Place) -> None:
        """Note that there are no more records in a partition now."""

    def wants(self, _record: ReadRecord) -> bool:
        """Return whether a record is one to read."""
        return True

    def finish(self) -> None:
        """Finish, before the consumer closes."""

    def make_consumer(self, **settings: object) -> "Consumer":
        """Return a consumer. Raises ClientError."""
        from confluent_kafka import Consumer

        with self._client.librdkafka() as properties:
            return Consumer(
                {
                    **properties,
                    "client.id": "anabranch-cli",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    "allow.auto.create.topics": False,
                    "check.crcs": True,
                    "error_cb": self._on_error,
                    **settings,
                },
                logger=LIBRDKAFKA_LOG,
            )

    def _on_error(self, error: "KafkaError") -> None:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - librdkafka's name
            self._outage = error

    def batches(self) -> Iterator[Sequence[ReadRecord]]:
        """Yield what the consumer has read."""
        from confluent_kafka import KafkaException

        self._quiet_s = time.perf_counter()
        while not self.is_over() and not reader_has_ended():
            try:
                messages = self.consumer.consume(BATCH_RECORDS, POLL_S)
            except KafkaException as error:
                raise client_error(error) from None
            if messages:
                self._quiet_s, self._outage = time.perf_counter(), None
            elif not self.follow and time.perf_counter() - self._quiet_s > SILENCE_S:
                self._check_silence()
            found = [record for message in messages if (record := self._take(message)) is not None]
            if found:
                yield found
                self._quiet_s = time.perf_counter()  # the output may have stood still, as a pager does

    def _check_silence(self) -> None:
        """Raise ClientError if what there is to read does not come."""
        if self._outage is not None:
            raise ClientError(f"no node has answered for {SILENCE_S:g} s: {self._outage.str()}")
        if self._open:  # a member without partitions waits for the others of its group
            topic, index = min(self._open)
            others = f" and {len(self._open) - 1:,} more" if len(self._open) > 1 else ""
            raise ClientError(
                f"nothing has come of {topic}-{index}{others} for {SILENCE_S:g} s: perhaps a leader, or its object "
                "store, is away; see `anabranch cluster status` and the nodes' logs"
            )

    def _take(self, message: "Message") -> ReadRecord | None:
        place = (message.topic() or "", message.partition() or 0)
        error = message.error()
        if error is not None:
            self._note(place, error)
            return None
        record = self._record(place, message)
        return record if self.wants(record) else None

    def _note(self, place: Place, error: "KafkaError") -> None:
        """Note what librdkafka reports of a partition. Raises ClientError, unless it may pass."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's name
            self.at_end(place)
        elif not error.retriable() and error.code() != KafkaError._TRANSPORT:  # noqa: SLF001
            raise ClientError(f"{place[0]}-{place[1]}: {error.name()}: {error.str()}")

    def _record(self, place: Place, message: "Message") -> ReadRecord:
        kind, timestamp_ms = message.timestamp()
        offset = message.offset()
        assert offset is not None, "it is a record"
        try:
            headers: Any = _HEADERS_OF(message) or []  # its types allow texts and dicts, which only producers give
        except SystemError:  # the binding has left an exception behind: a name is not UTF-8
            headers = self._fetch_headers(place, offset)
        return ReadRecord(
            *place,
            offset,
            timestamp_ms if kind else -1,
            TIMESTAMP_TYPES.get(kind),
            message.key(),
            message.value(),
            headers,
        )

    def _fetch_headers(self, place: Place, offset: int) -> Headers:
        """Return the headers of a record that has been read, without librdkafka. Raises ClientError."""
        if (place, offset) not in self._fetched:
            with self._client.cluster() as cluster:
                batch = cluster.fetch_batch(place, offset)
            self._fetched = {(place, record.offset): record.headers for record in decode_records(batch)}
        return self._fetched.get((place, offset), ())


def client_error(error: "KafkaException", where: str = "") -> ClientError:
    """Return an error of librdkafka as one line."""
    found: KafkaError = error.args[0]
    return ClientError(f"{where}: " * bool(where) + f"{found.name()}: {found.str()}")


class RangeRead(ConsumerRead):
    """Reads ranges of offsets, without a group."""

    def __init__(self, client: CommandClient, ranges: Ranges, *, follow: bool, read_committed: bool) -> None:
        super().__init__(client, follow=follow)
        self._ranges = ranges
        self._open |= ranges.keys()
        self._isolation = "read_committed" if read_committed else "read_uncommitted"

    def start(self) -> None:
        """Create the consumer, and give it the ranges."""
        from confluent_kafka import TopicPartition

        # librdkafka wants a group, which is never used: nothing is committed.
        self.consumer = self.make_consumer(**{"group.id": "anabranch-cli", "isolation.level": self._isolation})
        self.consumer.assign([TopicPartition(name, index, each.start) for (name, index), each in self._ranges.items()])

    def is_over(self) -> bool:
        """Return whether each range has been read."""
        return not self._open

    def at_end(self, place: Place) -> None:
        """End a range, unless it waits for new records."""
        if not self.follow:
            self._open.discard(place)

    def wants(self, record: ReadRecord) -> bool:
        """Return whether a record is in the range of its partition; end the range with its last one."""
        place = record[:2]
        end = self._ranges[place].end
        if end is None:
            return True
        if record.offset + 1 >= end:
            self._open.discard(place)
        return record.offset < end
