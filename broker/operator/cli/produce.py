"""`anabranch produce`: records from lines, acknowledged by the node before the command ends."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial as bound
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from anabranch.broker.operator.cli.client import LIBRDKAFKA_LOG, CommandClient, client_options
from anabranch.broker.operator.cli.progress import progress_bar
from anabranch.broker.operator.cli.record_lines import BadLine, NewRecord, Reader, make_reader
from anabranch.client.cluster import topic_error
from anabranch.client.errors import ClientError
from anabranch.output import count_text
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

LINE_BYTES_MAX: Final = 100 << 20
BATCH_BYTES: Final = 1_000_000
"""Size of librdkafka's batches, unless the topic's limit is smaller."""
FAILURES_SHOWN: Final = 20
POLL_S: Final = 0.2
PROGRESS_LINES: Final = 1_000
TOPIC_RESOURCE: Final = 2


class Deliveries:
    """Outcome of the records."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failures = 0

    def failed(self, line: int, reason: str) -> None:
        """Say that the record of a line failed; after some, they are only counted."""
        self.failures += 1
        if self.failures <= FAILURES_SHOWN:
            click.echo(f"line {line:,}: {reason}", err=True)
        elif self.failures == FAILURES_SHOWN + 1:
            click.echo("more lines failed; they are counted only", err=True)

    def on_delivery(self, line: int, error: "KafkaError | None", _message: "Message") -> None:
        """Take the outcome that librdkafka reports of a line."""
        if error is None:
            self.acknowledged += 1
        else:
            self.failed(line, f"{error.name()}: {error.str()}")


@dataclass(frozen=True, slots=True)
class _Shape:
    """Fields of each record that options give. `partition` -1: by the key."""

    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int
    is_tombstone: bool
    keeps_partitions: bool = field(default=False)

    def apply(self, found: NewRecord) -> NewRecord:
        """Return the record to send for one that was read."""
        key, value = found.key, found.value
        if self.is_tombstone:
            key, value = (key if key is not None else value), None
        partition = found.partition if self.keeps_partitions and found.partition is not None else self.partition
        return NewRecord(
            self.key if self.key is not None else key,
            value,
            [*found.headers, *self.headers],
            found.timestamp_ms,
            partition,
        )


def _headers(texts: Sequence[str]) -> Sequence[tuple[str, bytes | None]]:
    found = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"expected NAME=VALUE, found {text!r}", param_hint="--header")
        found.append((name, value.encode()))
    return found


def _separator(text: str | None) -> bytes | None:
    if text == "":
        raise click.BadParameter("it is empty", param_hint="--key-separator")
    return None if text is None else text.replace("\\t", "\t").encode()


@click.command(short_help="Write lines as records into a topic.")
@click.argument("topic")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Read this file, not standard input.")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["text", "json", "hex"]),
    default="text",
    show_default=True,
    help="Form of a line. json: what `consume --format json` prints; a value may be any object. hex: key and value in "
    "hexadecimal digits.",
)
@click.option(
    "-K", "--key-separator", metavar="TEXT", help="A line is KEY, this text, and VALUE. \\t is a tab. Not with json."
)
@click.option("-k", "--key", help="Key of all records.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of all records; repeatable."
)
@click.option(
    "-p", "--partition", type=click.IntRange(0), help="Partition  [default: by the key, as Java's clients do]"
)
@click.option("--keep-partitions", is_flag=True, help="With json: write each record into the partition it names.")
@click.option("--tombstone", is_flag=True, help="Write null values: each line is a key; with --key, just one record.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compression of batches.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds a record may take.",
)
@client_options
def produce(  # noqa: PLR0913 - its options
    topic: str,
    *,
    file: Path | None,
    form: str,
    key_separator: str | None,
    key: str | None,
    headers: Sequence[str],
    partition: int | None,
    compression: str,
    timeout_s: float,
    client: CommandClient,
    keep_partitions: bool,
    tombstone: bool,
) -> None:
    """Write each line of standard input as a record into TOPIC, and wait until all are acknowledged.

    Records are written with acks=all by an idempotent producer. A line that fails is named, the others are
    written, and the exit code is 1.
    """
    separator = _separator(key_separator)
    if separator is not None and (form == "json" or key is not None):
        raise click.UsageError("--key-separator: the key comes from --key, or from JSON")
    if keep_partitions and (form != "json" or partition is not None):
        raise click.UsageError("--keep-partitions needs --format json, and no --partition")
    encoded_key = None if key is None else bytes.fromhex(key) if form == "hex" and _is_hex(key) else key.encode()
    shape = _Shape(encoded_key, _headers(headers), -1 if partition is None else partition, tombstone, keep_partitions)
    limits = {
        "message.timeout.ms": int(timeout_s * 1000),
        "compression.type": compression,
        "batch.size": _batch_bytes(client, topic, partition),
    }
    deliveries = Deliveries()
    with _producer(client, limits) as producer:
        work = _Work(producer, topic, shape, deliveries)
        if tombstone and key is not None and file is None:
            work.send(1, NewRecord(None, None))
        else:
            _send_lines(work, make_reader(form, separator), file)
        _flush(producer)
    done, failed = deliveries.acknowledged, deliveries.failures
    if done or not failed:
        click.echo(f"produced {count_text(done, 'record')} to {topic}", err=True)
    if failed:
        were = "was" if failed == 1 else "were"
        raise click.ClickException(f"{failed:,} of {count_text(done + failed, 'line')} {were} not written to {topic}")


def _is_hex(key: str) -> bool:
    try:
        bytes.fromhex(key)
    except ValueError:
        raise click.BadParameter("expected hexadecimal digits", param_hint="--key") from None
    return True


def _batch_bytes(client: CommandClient, topic: str, partition: int | None) -> int:
    """Check that the topic can be written to; return the size of batches that it accepts. Raises ClientError."""
    with client.cluster() as cluster:
        (found,) = cluster.describe_topics([topic]).topics
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return BATCH_BYTES  # the first record may create it
        if found.error_code:
            raise topic_error(topic, found.error_code)
        if partition is not None and partition >= len(found.partitions):
            raise ClientError(f"topic {topic} has no partition {partition}: it has {len(found.partitions)}")
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=["max.message.bytes"]
        )
        answer: DescribeConfigsResponse = cluster.first.call(DescribeConfigsRequest(resources=[resource]))
        limits = [int(each.value) for result in answer.results for each in result.configs if each.value]
        return min([BATCH_BYTES, *limits])


@contextmanager
def _producer(client: CommandClient, limits: dict[str, object]) -> "Iterator[Producer]":
    from confluent_kafka import Producer

    with client.librdkafka() as properties:
        producer = Producer(
            {
                **properties,
                "client.id": "anabranch-cli",
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                # The topic's limit decides, not this client's.
                "message.max.bytes": LINE_BYTES_MAX + (1 << 20),
                **limits,
            },
            logger=LIBRDKAFKA_LOG,
        )
    try:
        yield producer
    except BaseException:
        producer.purge()
        raise


class _Work:
    """Sends records, and waits while librdkafka has too many."""

    def __init__(self, producer: "Producer", topic: str, shape: _Shape, deliveries: Deliveries) -> None:
        self._producer = producer
        self._topic = topic
        self._shape = shape
        self._deliveries = deliveries

    def send_line(self, number: int, line: bytes, reader: Reader) -> None:
        """Send the record of a line."""
        try:
            self.send(number, reader(line))
        except BadLine as error:
            self._deliveries.failed(number, str(error))

    def send(self, number: int, read: NewRecord) -> None:
        """Send a record."""
        from confluent_kafka import KafkaException

        wanted = self._shape.apply(read)
        arguments: dict[str, Any] = {} if wanted.timestamp_ms is None else {"timestamp": wanted.timestamp_ms}
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    wanted.value,
                    wanted.key,
                    partition=-1 if wanted.partition is None else wanted.partition,
                    on_delivery=bound(self._deliveries.on_delivery, number),
                    headers=list(wanted.headers),
                    **arguments,
                )
                break
            except BufferError:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                self._deliveries.on_delivery(number, error.args[0], None)  # type: ignore[arg-type]
                break
        self._producer.poll(0)


def _send_lines(work: _Work, reader: Reader, file: Path | None) -> None:
    with _opened(file) as (source, shown):
        for number, line in _lines(source):
            work.send_line(number, line, reader)
            if number % PROGRESS_LINES == 0:
                shown()


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise click.ClickException(
                f"line {number:,} is longer than {LINE_BYTES_MAX >> 20} MiB: nothing after it was sent"
            )
        yield number, line.removesuffix(b"\n")


@contextmanager
def _opened(file: Path | None) -> "Iterator[tuple[BinaryIO, Callable[[], None]]]":
    """Give the input, and what shows the progress in it: a bar for a file, if standard error is a terminal."""
    if file is None:
        yield sys.stdin.buffer, lambda: None
        return
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn  # late, as `progress` loads them

    try:
        source = file.open("rb")
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="--file") from None
    with source, progress_bar(BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()) as bar:
        task = bar.add_task("producing", total=file.stat().st_size)
        yield source, lambda: bar.update(task, completed=source.tell())


def _flush(producer: "Producer") -> None:
    """Wait until each record is acknowledged or has failed."""
    while producer.flush(POLL_S):
        pass
