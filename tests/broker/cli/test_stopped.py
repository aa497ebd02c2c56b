"""Partitions stopped at recovery: shown, and given up when a person says so."""

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result

from broker.cli.storage import storage
from broker.metrics import prometheus_text
from s3stream.errors import Discontinuity
from s3stream.recovery import StoppedStream
from tests.support.node import running_node


async def test_a_stopped_partition_is_shown_and_given_up(tmp_path: Path) -> None:
    async with running_node(tmp_path, admin_port=0) as node:
        assert node.admin is not None
        address = node.admin.address

        async def run(*arguments: str, answer: str = "") -> Result:
            return await asyncio.to_thread(
                CliRunner().invoke,
                storage,
                [*arguments, "--admin", address],
                input=answer,
                env={"COLUMNS": "300"},
            )

        assert (await run("stopped")).output == "no partition is stopped\n"
        producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap)
        await producer.start()
        try:
            await producer.send_and_wait("t", b"1", partition=0)
            topic = node.node.topics.get("t")
            assert topic is not None
            partition = topic.partitions[0]
            assert partition is not None
            stream = partition.stream
            stream.error = Discontinuity("a record is missing")
            node.node.storage._pipeline.stopped[stream.stream_id] = StoppedStream(stream.error, 0, -1, 4, 12, 5, 2000)
            assert "\nanabranch_stopped_streams 1\n" in prometheus_text(node)
            shown = (await run("stopped")).output
            assert "t-0" in shown
            assert "4 to 11" in shown
            assert "a record is missing" in shown
            stream_id = str(stream.stream_id)
            refused = await run("discard", stream_id, answer="n\n")
            assert refused.exit_code == 1
            assert "5 acknowledged records at offsets 4 to 11 (2.0 kB) will be lost for good." in refused.output
            assert stream.error is not None
            assert "is not stopped" in (await run("discard", "99999", "--yes")).output
            assert (await run("discard", stream_id, "--yes")).output.endswith("takes records again\n")
            assert "\nanabranch_stopped_streams 0\n" in prometheus_text(node)
            assert (await producer.send_and_wait("t", b"2", partition=0)).offset == 1
        finally:
            await producer.stop()
