"""Any history of uploads, trims and compactions: readers see the same data, and compaction reaches an end."""

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.compaction.service import CompactionService
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import ObjectKind
from tests.compaction.sets.test_run import every_object_is_accounted_for
from tests.support.catalog_node import HOUR_MS, UploadingNode, uploading_node

EXAMPLES = int(os.environ.get("ANABRANCH_PROPERTY_EXAMPLES", "100"))
FAST_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
KIB = 1024
STREAMS = 4

Upload = tuple[str, list[tuple[int, int, int]]]

sizes = st.sampled_from([1, 50, 900, 3_000, 20_000])
batches = st.lists(
    st.tuples(st.integers(0, STREAMS - 1), sizes, st.sampled_from([1, 10, 1 << 33])), min_size=1, max_size=6
)
actions = st.one_of(
    st.tuples(st.just("sso"), batches),
    st.tuples(st.just("so"), batches),
    st.tuples(st.just("trim"), st.tuples(st.integers(0, STREAMS - 1), st.floats(0, 1))),
    st.tuples(st.just("compact"), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 3 * HOUR_MS)),
)


async def upload(made: UploadingNode, ids: list[int], kind: str, wanted: list[tuple[int, int, int]]) -> None:
    written = [made.batch(ids[stream], size, count=count) for stream, size, count in wanted]
    if kind == "sso":
        await made.upload((ObjectKind.SSO, written), block_bytes=4 * KIB)
        return
    streams = sorted({batch.stream_id for batch in written})
    runs = [[batch for batch in written if batch.stream_id == stream] for stream in streams]
    await made.upload(*((ObjectKind.SO, run) for run in runs), block_bytes=4 * KIB)


async def trim(made: UploadingNode, stream: int, share: float) -> None:
    info = (await made.catalog.get_streams([stream]))[stream]
    await made.trim(stream, info.start_offset + int((info.end_offset - info.start_offset) * share))


async def compact(made: UploadingNode, service: CompactionService, *, full: bool) -> None:
    before = await made.contents()
    ssos = (await made.catalog.count_objects()).get("SSO committed", (0, 0))[0]
    summary = await (service.run_once() if full else service.run_timed())
    assert await made.contents() == before
    assert summary.sso_after <= max(ssos, 1)
    assert not summary.errors
    if full:
        assert summary.sso_after <= 1
        again = await service.run_once()
        # Joined objects may be joined once more; after that, nothing is left to do.
        while again.commits:
            assert again.so_after < again.so_before or again.sso_before == again.sso_after == 0
            again = await service.run_once()
        assert await made.contents() == before
    await every_object_is_accounted_for(made)


async def history(chosen: list[tuple[str, object]], config: CompactionSettings) -> None:
    with tempfile.TemporaryDirectory(dir=FAST_FOLDER) as folder:
        async with uploading_node(f"sqlite:///{folder}/catalog.db") as made:
            ids = list(await made.start(STREAMS))
            node = replace(made.compaction_context(config), sleep=lambda _: asyncio.sleep(0))
            service = CompactionService(node)
            for action, argument in [*chosen, ("compact", True)]:
                match action, argument:
                    case (("sso" | "so"), list(wanted)):
                        await upload(made, ids, action, wanted)
                    case "trim", (int(stream), float(share)):
                        await trim(made, ids[stream], share)
                    case "compact", bool(full):
                        await compact(made, service, full=full)
                    case "wait", int(wait_ms):
                        made.clock.ms += wait_ms
            # A block is at most one batch of 20 kB, or several joined.
            assert service.stats.iteration_bytes_peak <= max(config.memory_bytes, config.block_bytes, 20_100)


@pytest.mark.slow
@pytest.mark.timeout(6 * EXAMPLES)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(actions, min_size=3, max_size=14),
    st.sampled_from([1_000, 30_000, 1_000_000]),
    st.sampled_from([500, 5_000, 50_000]),
    st.sampled_from([2_000, 30_000]),
)
def test_any_history(chosen: list[tuple[str, object]], memory_bytes: int, split_bytes: int, block_bytes: int) -> None:
    config = CompactionSettings(
        memory_bytes=memory_bytes, split_bytes=split_bytes, block_bytes=block_bytes, read_bytes_max=7_000
    )
    asyncio.run(history(chosen, config))
