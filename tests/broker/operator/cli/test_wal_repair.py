"""`anabranch wal repair`: on a log of hand-made records, and on a real node's that does not start."""

import asyncio
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.storage import storage
from anabranch.broker.operator.cli.wal import wal
from anabranch.broker.operator.cli.wal_repair import LossFinder
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.s3stream.append.wal_record import RECORD_HEADER, RecordKind, encode_reset
from anabranch.wal.device import open_device
from anabranch.wal.format import RING_POSITION
from anabranch.wal.interface import RecoveredRecord
from anabranch.wal.log import DeltaWal
from anabranch.wal.repair import DamagedRange
from anabranch.wal.settings import WalSettings
from tests.support.node import NodeProcess
from tests.support.raw_client import batch_of, raw_client

MIB = 1 << 20
SETTINGS = WalSettings(capacity_bytes=4 * MIB, window_bytes=256 << 10, allow_volatile=True)
TOPICS = ("gapped", "whole", "ended")
NEEDLE = b"a value to be damaged"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(wal, ["repair", *arguments], env={"COLUMNS": "300"})


def record(stream_id: int, base: int, end: int, payload: bytes = b"p" * 2000) -> bytes:
    return RECORD_HEADER.pack(1, RecordKind.BATCH, 0, end - base, stream_id, 1, base, end, -1) + payload


async def write(path: Path, bodies: list[bytes]) -> list[int]:
    """Write a log of these records, each in a separate block, and stop as in a crash; return their offsets."""
    log = DeltaWal(open_device(path, SETTINGS), SETTINGS, node_id=1, node_epoch=1, now_ms=lambda: 0, cluster="demo")
    async for _ in log.recover():
        pass
    offsets = []
    for body in bodies:
        appended = log.append([body])
        await appended.durable
        offsets.append(appended.offset)
    await log.device.close()
    return offsets


def damage(path: Path, position: int, content: bytes = b"damage") -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log in which stream 5 lost a record in its middle, and stream 7 its last one, whose body is still readable."""
    path = tmp_path / "wal"
    bodies = [record(5, 0, 3), record(7, 0, 2), record(5, 3, 10), record(7, 2, 4), record(5, 10, 11), record(5, 11, 12)]
    offsets = asyncio.run(write(path, bodies))
    damage(path, RING_POSITION + offsets[2])
    damage(path, RING_POSITION + offsets[3] + 1000)
    return path


def test_a_plan_names_what_is_lost_and_changes_nothing(damaged: Path) -> None:
    before = damaged.read_bytes()
    result = run(str(damaged))
    assert result.exit_code == 0, result.output
    assert "damage 1: 2072 bytes of the log, from offset 8192 to 10264 (position 16384): no record: " in result.output
    assert "  stream 5: offsets 3 to 9 are lost\n" in result.output
    assert "damage 2: " in result.output
    assert "  stream 7: offsets 2 to 3 are lost, according to a damaged record\n" in result.output
    assert "cannot be identified" in result.output
    assert "kept: 4 records of 2 streams" in result.output
    assert "nothing was changed; --yes repairs the log" in result.output
    assert damaged.read_bytes() == before
    assert list(damaged.parent.iterdir()) == [damaged]


def test_a_repair_saves_the_damaged_pages_first(damaged: Path, tmp_path: Path) -> None:
    before = damaged.read_bytes()
    result = run(str(damaged), "--yes")
    assert result.exit_code == 0, result.output
    (saved,) = tmp_path.glob("wal.damaged-*")
    assert f"the damaged pages are in {saved}" in result.output
    content = saved.read_bytes()
    assert content[:RING_POSITION] == before[:RING_POSITION]
    assert content[16384 : 16384 + 8192] == before[16384 : 16384 + 8192]
    assert "sound: there is nothing to repair" in run(str(damaged)).output
    assert "4 of them not trimmed" in CliRunner().invoke(wal, ["verify", str(damaged)]).output.replace("\n", " ")
    gaps = "8,192 to 10,264, 12,288 to 14,360"
    assert gaps in CliRunner().invoke(wal, ["inspect", str(damaged)], env={"COLUMNS": "200"}).output


@pytest.mark.parametrize("name", ["taken", "none/file"])
def test_without_a_copy_nothing_is_repaired(damaged: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").write_bytes(b"mine")
    before = damaged.read_bytes()
    result = run(str(damaged), "--yes", "--save", str(tmp_path / name))
    assert result.exit_code == 1
    assert "cannot save the damaged pages" in result.output
    assert "nothing was changed" in result.output
    assert damaged.read_bytes() == before
    assert (tmp_path / "taken").read_bytes() == b"mine"


def test_a_sound_log_and_a_damaged_copy_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    asyncio.run(write(path, [record(5, 0, 3)]))
    assert run("--data-dir", str(tmp_path)).output == "sound: there is nothing to repair\n"
    damage(path, 30)
    result = run(str(path), "--yes")
    assert "header copy 0: header CRC" in result.output
    assert "will be rewritten" in result.output
    assert run(str(path)).output == "sound: there is nothing to repair\n"


def found(*bodies: bytes) -> list[RecoveredRecord]:
    return [RecoveredRecord(1000 * number, memoryview(body)) for number, body in enumerate(bodies)]


def test_losses_follow_from_neighbours_with_damage_between() -> None:
    finder = LossFinder([DamagedRange(1500, 1900, "")])
    finder.add(found(record(1, 0, 5), record(2, 0, 5), record(1, 8, 9), record(2, 5, 6), b"not a record"))
    finder.add([RecoveredRecord(6000, memoryview(record(2, 9, 10)))])  # a jump, but no damage there
    assert [(loss.stream_id, loss.start, loss.end) for loss in finder.losses] == [(1, 5, 8)]
    assert (finder.records, finder.streams) == (6, 2)


def test_a_reset_begins_a_stream_anew() -> None:
    finder = LossFinder([DamagedRange(500, 900, "")])
    finder.add(found(record(1, 0, 5), encode_reset(1, 2, 40), record(1, 40, 50)))
    assert finder.losses == []


def test_remains_are_told_once_and_not_if_they_were_trimmed() -> None:
    remains = (
        RecoveredRecord(1500, memoryview(record(1, 5, 8))),
        RecoveredRecord(1600, memoryview(record(2, 5, 8))),
        RecoveredRecord(1700, memoryview(b"?")),
    )
    finder = LossFinder([DamagedRange(1500, 1900, "", remains)])
    finder.add(found(record(1, 0, 5), b"", record(1, 8, 9)))
    told = [(loss.stream_id, loss.start, loss.end, loss.certain) for loss in finder.with_remains(-1)]
    assert told == [(1, 5, 8, True), (2, 5, 8, False)]
    assert finder.with_remains(1600) == finder.losses


async def offsets_of(node: NodeProcess, topic: str) -> int | str:
    """Return the high watermark of a partition, or the error that fetching it gives."""
    partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[partition])])
    async with raw_client(node.bootstrap) as client:
        data = (await client.call(request, 12)).responses[0].partitions[0]
    return str(data.error_code) if data.error_code else int(data.high_watermark)


async def test_a_node_starts_again_and_only_the_damaged_stream_is_stopped(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, compaction_enabled="false") as node:
        async with raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in TOPICS]), 9)
            for number in range(6):
                for topic in TOPICS:
                    value = NEEDLE if (topic, number) in {("gapped", 2), ("ended", 5)} else b"value"
                    await client.produce(topic, [batch_of(value)])
            await client.produce("whole", [batch_of(b"last")])
        node.kill9()
        path = tmp_path / "data" / "wal"
        content = path.read_bytes()
        at = [content.index(NEEDLE)]
        at.append(content.index(NEEDLE, at[0] + 1))
        for position in at:
            damage(path, position)
        node.spawn()
        assert node.wait() == 1
        assert re.search(r"damaged at offset \d+: .*`anabranch wal repair` shows which records", node.lines[-1])
        shown = await asyncio.to_thread(run, "--data-dir", str(tmp_path / "data"))
        assert "offset 2 is lost\n" in shown.output
        assert "offset 5 is lost, according to a damaged record\n" in shown.output
        assert (await asyncio.to_thread(run, "--data-dir", str(tmp_path / "data"), "--yes")).exit_code == 0
        node.start()
        assert await offsets_of(node, "whole") == 7
        assert await offsets_of(node, "ended") == 5
        stopped = await asyncio.to_thread(CliRunner().invoke, storage, ["stopped", "--admin", node_admin(node)])
        assert "gapped-0" in stopped.output
        assert "whole-0" not in stopped.output
        (stream,) = [word for word in stopped.output.split() if word.isdecimal()][:1]
        given_up = await asyncio.to_thread(
            CliRunner().invoke, storage, ["discard", stream, "--yes", "--admin", node_admin(node)]
        )
        assert given_up.output.endswith("accepts records again\n")
        async with raw_client(node.bootstrap) as client:
            for topic in TOPICS:
                answer = await client.produce(topic, [batch_of(b"more")])
                assert answer.responses[0].partition_responses[0].error_code == 0
        assert node.terminate() == 0


def node_admin(node: NodeProcess) -> str:
    """Return the address of the node's admin port."""
    return str(node.events("serving")[-1]["admin"])
