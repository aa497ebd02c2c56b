"""Records what Apache Kafka makes of the frames of `tests.support.frames`, in `tests/support/frame_verdicts.json`.

    python -m tests.interop.record_frame_verdicts

Run it with a new version of Apache Kafka, or after a change of the frames. Its consumer and its broker agreed on all.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from benchmarks.lab.processes import ApacheKafka
from tests.differential.peer import Peer
from tests.differential.script import Script
from tests.support import tools
from tests.support.frames import FAMILIES, READ, REFUSED, VERDICTS_FILE, Family
from tests.support.java_process import java_process

READ_OTHERWISE = "?"


class _JavaConsumer:
    """The part of Apache Kafka's consumer that reads fetched batches."""

    def __init__(self, jvm: Any) -> None:
        self._buffers = jvm.java.nio.ByteBuffer
        self._records = jvm.org.apache.kafka.common.record.internal.MemoryRecords
        self._supplier = jvm.org.apache.kafka.common.utils.BufferSupplier.create()

    def read(self, batch: bytearray) -> list[tuple[int, int, int, int]] | None:
        """Return offset, time and sizes of key and value of each record; None if the batch cannot be read."""
        records = []
        try:
            whole = self._records.readableRecords(self._buffers.wrap(bytes(batch))).batches().iterator().next()
            whole.ensureValid()
            iterator = whole.streamingIterator(self._supplier)
            while iterator.hasNext():
                record = iterator.next()
                records.append((record.offset(), record.timestamp(), record.keySize(), record.valueSize()))
        except (Py4JJavaError, StopIteration):  # py4j turns an error of an iterator into its end
            return None
        return records

    def verdicts(self, family: Family) -> str:
        """Return a character for each frame."""
        expected = self.read(family.like)
        found = (self.read(batch) for batch in family.batches())
        return "".join(REFUSED if read is None else READ if read == expected else READ_OTHERWISE for read in found)


def consumer_verdicts() -> Mapping[str, str]:
    """Return the verdicts of Apache Kafka's consumer by family."""
    with java_process([str(tools.kafka_class_path())]) as gateway:
        consumer = _JavaConsumer(gateway.jvm)
        return {name: consumer.verdicts(family) for name, family in FAMILIES.items()}


def broker_verdicts(peer: Peer) -> Mapping[str, str]:
    """Return the verdicts of a broker by family: a frame is `READ` or `REFUSED`."""
    script = Script(peer)
    script.topic("frames")
    try:
        return {
            name: "".join(_produced(script, batch) for batch in family.batches()) for name, family in FAMILIES.items()
        }
    finally:
        script.close()


def _produced(script: Script, batch: bytearray) -> str:
    data = PartitionProduceData(index=0, records=bytes(batch))
    request = ProduceRequest(
        acks=1, timeout_ms=5000, topic_data=[TopicProduceData(name="frames", partition_data=[data])]
    )
    return REFUSED if script.ask(request, 9).responses[0].partition_responses[0].error_code else READ


def main() -> None:
    """Record the verdicts."""
    with tempfile.TemporaryDirectory() as folder, ApacheKafka(Path(folder) / "home") as kafka:
        broker = broker_verdicts(Peer("Apache Kafka", "127.0.0.1", kafka.port))
    assert broker == consumer_verdicts(), "a batch that one of them reads and the other refuses"
    VERDICTS_FILE.write_text(json.dumps(broker, indent=1) + "\n")


if __name__ == "__main__":
    main()
