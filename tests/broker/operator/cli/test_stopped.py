"""Partitions stopped at recovery: listed, and given up at the operator's command."""

import asyncio
import json
from pathlib import Path

from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.storage import storage
from anabranch.s3stream.append.recovery import StoppedStream
from anabranch.s3stream.errors import Discontinuity
from tests.support.metrics import metrics_of
from tests.support.node import running_node


async def test_a_stopped_partition_is_shown_and_given_up(tmp_path: Path) -> None:
    async with running_node(tmp_path, admin_port=0) as node:
        address = node.ports.admin_address

        async def run(*arguments: str, answer: str = "") -> Result:
            return await asyncio.to_thread(
                CliRunner().invoke,
                storage,
                [*arguments, "--admin", address],
                input=answer,
                env={"COLUMNS": "300"},
            )

        assert (await run("stopped")).output == "no partition is stopped\n"
        assert (await run("stopped", "--output", "json")).output == "[]\n"
        settings = tmp_path / "node.toml"
        settings.write_text(f"[admin]\nport = {address.rpartition(':')[2]}\n")
        found = await asyncio.to_thread(CliRunner().invoke, storage, ["stopped", "--config", str(settings)])
        assert found.output == "no partition is stopped\n", "the settings name the port, too"
        producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap)
        await producer.start()
        try:
            await producer.send_and_wait("t", b"1", partition=0)
            topic = node.serving.topics.get("t")
            assert topic is not None
            partition = topic.partitions[0]
            assert partition is not None
            stream = partition.stream
            error = Discontinuity("a record is missing")
            stream.refuse(error)
            node.serving.storage.wal_trimmer.stop(stream.stream_id, StoppedStream(error, 0, -1, 4, 12, 5, 2000))
            assert (await metrics_of(node)).value("anabranch_stopped_streams") == 1
            shown = (await run("stopped")).output
            assert "t-0" in shown
            assert "4 to 11" in shown
            assert "a record is missing" in shown
            stream_id = str(stream.stream_id)
            refused = await run("discard", stream_id, answer="n\n")
            assert refused.exit_code == 1
            assert "5 acknowledged records at offsets 4 to 11 (2 KiB) will be lost for good." in refused.output
            assert stream.error is not None
            assert "is not stopped" in (await run("discard", "99999", "--yes")).output
            discarded = await run("discard", stream_id, "--yes", "--output", "json")
            # The node logs into the same standard output, in this test only.
            assert json.loads(discarded.stdout[discarded.stdout.index("{") :])["records"] == 5
            assert (await metrics_of(node)).value("anabranch_stopped_streams") == 0
            assert (await producer.send_and_wait("t", b"2", partition=0)).offset == 1
        finally:
            await producer.stop()


def test_where_the_node_is_must_be_known(tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(storage, ["stopped", *arguments])

    settings = tmp_path / "node.toml"
    settings.write_text("[admin]\nenabled = false\n")
    nowhere = run("--config", str(settings))
    assert nowhere.exit_code == 2
    assert "the settings name no admin port (admin.enabled, admin.port): give it with --admin" in nowhere.output
    settings.write_text("[admin]\nport = 'x'\n")
    assert run("--config", str(settings)).exit_code == 2
    away = run("--admin", "127.0.0.1:1")
    assert away.exit_code == 1
    assert "cannot reach the admin port 127.0.0.1:1: Connection refused; start the node" in away.output
