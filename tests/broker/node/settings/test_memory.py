"""The split of memory: half of what is available at most, explicit settings as they are, and minimums for all parts."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.node.net.server import Server
from anabranch.broker.node.settings.area import GIB, KIB, MIB
from anabranch.broker.node.settings.memory import (
    FULL_SIZES_BYTES,
    PROCESS_BYTES,
    SHARES,
    MemorySizes,
    available_memory,
    frame_budget_bytes_min,
    memory_for,
    plan_memory,
    with_sizes,
)
from anabranch.broker.node.settings.sources import load
from anabranch.platform import physical_memory
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.node import NodeProcess, running_node
from tests.support.raw_client import batch_of, raw_client

REQUEST_BYTES_MAX = 100 * MIB
LEAST = {"node_bytes_max": frame_budget_bytes_min(REQUEST_BYTES_MAX)}
DEFAULTS = {name: part.default_bytes for name, part in SHARES.items()}


def plan(available_bytes: int, **given_sizes: int) -> MemorySizes:
    return plan_memory(available_bytes, given_sizes, request_bytes_max=REQUEST_BYTES_MAX)


@pytest.mark.parametrize(
    ("available", "given_sizes", "expected"),
    [
        (24 * GIB, {}, DEFAULTS),
        (FULL_SIZES_BYTES, {}, DEFAULTS),
        (
            2 * GIB,
            {},
            {"log_cache_bytes": 312, "block_cache_bytes": 104, "node_bytes_max": 208, "slab_pool_bytes": 104},
        ),
        (1 * GIB, {}, {"log_cache_bytes": 131, "block_cache_bytes": 43, "node_bytes_max": 114, "slab_pool_bytes": 43}),
        (512 * MIB, {}, {"log_cache_bytes": 16, "block_cache_bytes": 8, "node_bytes_max": 114}),
        (256 * MIB, {}, {"log_cache_bytes": 16, "block_cache_bytes": 8, "node_bytes_max": 114, "slab_pool_bytes": 4}),
        (2 * GIB, {"log_cache_bytes": 3 * GIB}, {"log_cache_bytes": 3072, "block_cache_bytes": 8}),
        (2 * GIB, {"node_bytes_max": 120 * MIB}, {"node_bytes_max": 120, "log_cache_bytes": 350}),
    ],
)
def test_the_plan(available: int, given_sizes: Mapping[str, int], expected: Mapping[str, int]) -> None:
    sizes = asdict(plan(available, **given_sizes))
    shown = {name: sizes[name] if expected is DEFAULTS else sizes[name] // MIB for name in expected}
    assert shown == expected


@given(
    available=st.integers(64 * MIB, 64 * GIB),
    given_sizes=st.dictionaries(st.sampled_from(sorted(SHARES)), st.integers(MIB, GIB)),
)
def test_the_plan_keeps_to_its_share_where_it_can(available: int, given_sizes: Mapping[str, int]) -> None:
    sizes = asdict(plan(available, **given_sizes))
    effective = {name: max(size, LEAST.get(name, 0)) for name, size in given_sizes.items()}
    assert {name: sizes[name] for name in given_sizes} == effective
    unset = {name: size for name, size in sizes.items() if name not in given_sizes}
    least = {name: SHARES[name].min_bytes for name in unset}
    if "node_bytes_max" in least:
        least |= LEAST
    assert all(least[name] <= size <= SHARES[name].default_bytes for name, size in unset.items())
    fits = PROCESS_BYTES + sum(effective.values()) + sum(least.values()) <= available // 2
    assert not fits or PROCESS_BYTES + sum(sizes.values()) <= available // 2


def test_requests_have_room_beside_the_largest_one_whatever_is_set() -> None:
    settings = load({"network.node_bytes_max": "100MiB", "network.request_bytes_max": "100MiB"}, {})
    sizes = memory_for(settings).sizes
    assert sizes.node_bytes_max == frame_budget_bytes_min(100 * MIB)
    assert with_sizes(settings, sizes).network.node_bytes_max == sizes.node_bytes_max, "what is shown is what holds"
    server = Server(settings.network, sizes, pipelined=frozenset())
    assert server.budget.bytes_max == sizes.node_bytes_max


def test_more_memory_never_makes_a_size_smaller() -> None:
    before = asdict(plan(64 * MIB))
    for available in range(64 * MIB, 6 * GIB, 37 * MIB):
        now = asdict(plan(available))
        assert all(now[name] >= before[name] for name in now)
        before = now


def system(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal:        8388608 kB\nMemFree: 1 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "30 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "31 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
NO_LIMIT = "9223372036854771712\n"
SYSTEMS = {
    "no groups": ({}, 8 * GIB, "proc/meminfo"),
    "version 2": (
        {
            "proc/self/cgroup": "0::/app.slice/node.service\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/app.slice/node.service/memory.max": "2147483648\n",
            "sys/fs/cgroup/app.slice/memory.max": "max\n",
        },
        2 * GIB,
        "sys/fs/cgroup/app.slice/node.service/memory.max",
    ),
    "a limit further up": (
        {
            "proc/self/cgroup": "0::/app.slice/node.service\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/app.slice/node.service/memory.max": "2147483648\n",
            "sys/fs/cgroup/app.slice/memory.max": "1073741824\n",
        },
        GIB,
        "sys/fs/cgroup/app.slice/memory.max",
    ),
    "a high mark": (
        {
            "proc/self/cgroup": "0::/node\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/node/memory.max": "max\n",
            "sys/fs/cgroup/node/memory.high": "3221225472\n",
        },
        3 * GIB,
        "sys/fs/cgroup/node/memory.high",
    ),
    "version 2 in a namespace": (
        {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNT, "sys/fs/cgroup/memory.max": "1073741824\n"},
        GIB,
        "sys/fs/cgroup/memory.max",
    ),
    "a group outside of the namespace": (
        {
            "proc/self/cgroup": "0::/../other\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/memory.max": "1073741824\n",
        },
        GIB,
        "sys/fs/cgroup/memory.max",
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n",
            "proc/self/mountinfo": V1_MOUNTS,
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "536870912\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
        },
        512 * MIB,
        "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
    ),
    "version 1 in a container": (
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            "proc/self/mountinfo": V1_MOUNTS.replace("0:28 /", "0:28 /docker/abc"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
        },
        512 * MIB,
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
    ),
    "no limit": (
        {
            "proc/self/cgroup": "4:memory:/\n0::/x\n",
            "proc/self/mountinfo": V1_MOUNTS + V2_MOUNT,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": NO_LIMIT,
            "sys/fs/cgroup/x/memory.max": "max\n",
        },
        8 * GIB,
        "proc/meminfo",
    ),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_available(tmp_path: Path, name: str) -> None:
    files, limit, source = SYSTEMS[name]
    assert available_memory(system(tmp_path, files)) == (limit, str(tmp_path / source))


def test_a_system_without_proc_tells_its_memory_by_itself(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == (physical_memory(), "sysconf")


def test_a_setting_goes_before_the_system(tmp_path: Path) -> None:
    root = system(tmp_path, SYSTEMS["version 1"][0])
    assert memory_for(load({}, {}), root).available_bytes == 512 * MIB
    told = memory_for(load({"node.memory_bytes": "1GiB", "network.slab_pool_bytes": "64MiB"}, {}), root)
    assert (told.available_bytes, told.sizes.slab_pool_bytes) == (GIB, 64 * MIB)
    assert not told.is_overcommitted
    assert memory_for(load({"node.memory_bytes": "1GiB", "storage.log_cache_bytes": "1GiB"}, {}), root).is_overcommitted


async def test_a_node_uses_and_shows_the_sizes(tmp_path: Path) -> None:
    async with running_node(tmp_path, memory_bytes="256MiB", storage_block_cache_bytes="9MiB") as node:
        sizes = node.memory.sizes
        assert sizes.block_cache_bytes == 9 * MIB
        assert node.ports.clients.budget.bytes_max == sizes.node_bytes_max
        assert node.serving.storage.settings.log_cache_bytes == sizes.log_cache_bytes == 16 * MIB
        assert node.serving.settings.network.node_bytes_max == sizes.node_bytes_max
        assert node.upkeep.compaction_context.settings.memory_bytes == sizes.compaction_bytes
        async with raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            answer = (await client.produce("t", [batch_of(bytes(1000 * KIB))])).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NONE


def test_the_sizes_are_said_at_the_start(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, memory_bytes="1GiB") as node:
        (said,) = node.events("memory")
        assert said["available_bytes"] == GIB
        assert said["source"] == "setting node.memory_bytes"
        assert said["log_cache_bytes"] == plan(GIB).log_cache_bytes


def peak_resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * KIB


@pytest.mark.slow
async def test_a_node_stays_within_what_it_may_use(tmp_path: Path) -> None:
    """Much more data passes through the node than it may hold; its log alone would let the caches grow too large."""
    batch = batch_of(bytes(500_000))
    count, connections = 150, 4
    with NodeProcess(tmp_path, memory_bytes="256MiB", wal_capacity_bytes="1GiB") as node:
        async with raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)

        async def produce() -> None:
            async with raw_client(node.bootstrap) as client:
                for _ in range(count):
                    answer = (await client.produce("t", [batch])).responses[0].partition_responses[0]
                    assert answer.error_code == ErrorCode.NONE

        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(produce())
        peak_bytes = peak_resident_bytes(node.pid)
        assert peak_bytes < 256 * MIB < count * connections * len(batch)
