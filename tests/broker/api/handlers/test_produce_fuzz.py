"""Random frames through the native lane of Produce and through Python: whatever they are, both must do the same.

Most frames are valid; the others are changed in their header, batches, fields of batches, lengths or checksums. After
each handful, answers, closed connections and bytes of the log are compared, and now and then all other state.
"""

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from tests.broker.api.handlers.produce_frames import VERSIONS, Batch, ProduceFrames, assemble
from tests.support.native import require_native
from tests.support.produce_pair import Client, Pair, Side, frame_of, produce_of, produce_pair
from tests.support.raw_client import batch_of
from tests.support.soak import SOAK

SEEDS: Final = 40 if SOAK else 2
FRAMES: Final = 250_000 if SOAK else 4_000
"""Frames of a seed: ten million in a soak."""
COMPARED_FRAMES: Final = 2_000
"""Frames after which all state is compared, and what they have written is uploaded."""
TOGETHER_MAX: Final = 40
QUIET: Final = {"storage_upload_age_ms": 86_400_000, "storage_upload_bytes": 40 << 20}
"""Uploads happen only where the test waits for them."""


@pytest.fixture(autouse=True)
def _native() -> None:
    require_native()


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Drop log lines: rendering those of refused connections would take most of the time."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_frames(tmp_path: Path, seed: int) -> None:
    async with produce_pair(tmp_path, **QUIET) as pair:
        await compare_frames(pair, seed, FRAMES)
        assert pair.native.taken > FRAMES // 4


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_are_assembled_as_the_codec_encodes_them(version: int) -> None:
    ids = {"plain": bytes(range(16)), "other": bytes(16)}
    wanted: dict[str, list[tuple[int, Batch]]] = {
        "plain": [(0, batch_of(b"a")), (1, batch_of(bytes(300)))],
        "other": [(2, None)],
    }
    topics = [(name.encode(), ids[name], batches) for name, batches in wanted.items()]
    encoded = frame_of(produce_of(wanted, ids=ids), version)
    assert assemble(topics, version) == encoded[4:]


async def compare_frames(pair: Pair, seed: int, frames: int) -> None:
    """Send so many random frames to both nodes; fail where they differ."""
    rng = random.Random(seed)
    made = ProduceFrames(rng, pair.ids)
    for each in pair.sides:
        partition = each.node.serving.topics.partition("plain", 1)
        partition.add_listener(each.notify)
    sent = compared = 0
    while sent < frames:
        is_stalled = rng.random() < 0.02
        data = [made.frame(pair.native.clock.ms) for _ in range(rng.choice([1, 2, 5, 15, TOGETHER_MAX]))]
        parts = [len(frame).to_bytes(4, "big") + frame for frame in data]
        at = rng.randrange(3)
        results = []
        for each in pair.sides:
            admission = each.node.serving.storage.journal.admission
            if is_stalled:
                admission.begin_stall("it hangs")
            results.append(await exchange(each, at, parts))
            if is_stalled:
                admission.end_stall()
        python, native = results
        assert native == python, (seed, sent, [frame.hex() for frame in data])
        sent += len(data)
        moved_ms = rng.choice([0, 0, 1, 500])
        for each in pair.sides:
            each.clock.ms += moved_ms
        if sent - compared >= COMPARED_FRAMES:
            compared = sent
            pair.compare()
            for each in pair.sides:
                await each.node.serving.storage.flush()
                each.notified.clear()
    pair.compare()


async def exchange(side: Side, at: int, parts: list[bytes]) -> list[Any]:
    """Send frames, on a new connection whenever the last one is closed; return all that a client and a disk see."""
    used: list[Client] = []
    for part in parts:
        client = side.clients[at]
        if client.transport.is_closed or client.connection.closed:
            client = side.clients[at] = Client(side.node)
        if not used or used[-1] is not client:
            used.append(client)
        client.send(part)
    for client in used:
        await client.settle()
    seen: list[Any] = [(each.transport.received, each.transport.is_closed, each.connection.closed) for each in used]
    for client in used:
        client.transport.received = b""
    seen.append(list(side.device.records))
    side.device.records.clear()
    return seen
