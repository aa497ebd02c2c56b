"""The memory of a node: how much is available (to the container, or on the machine), and how it is divided.

Sizes that are not set follow from the available memory. Together with the sizes that are set and with the memory of an
idle process, they take at most half of it. The other half is for memory that cannot be planned: buffers on their way to
the log and to the store, evicted blocks that readers still hold, the page cache, other processes.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from anabranch.broker.node.settings.area import MIB
from anabranch.broker.node.settings.control_groups import group_folders, read_text
from anabranch.broker.node.settings.model import Settings
from anabranch.compaction.settings import CompactionSettings
from anabranch.platform import physical_memory
from anabranch.s3stream.settings import StorageSettings

_STORAGE, _COMPACTION = StorageSettings(), CompactionSettings()
PLANNED_SHARE: Final = 2
"""The planned sizes take at most 1/PLANNED_SHARE of the available memory."""
PROCESS_BYTES: Final = 96 * MIB
"""Memory of an idle node: the interpreter, the code, the state of some thousand partitions."""
FRAME_SIZE_BYTES: Final = 4
"""Length of a frame's size prefix, which the size does not include."""
SMALL_FRAME_SHARE: Final = 8
"""1/SMALL_FRAME_SHARE of the memory for requests is reserved for small frames (`broker.node.net.budget`)."""
_LIMIT_FILES: Final = ("memory.limit_in_bytes", "memory.max", "memory.high")
"""Files of control groups of version 1, and of version 2."""


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """Bounds, in bytes, of everything that takes much memory."""

    log_cache_bytes: int
    block_cache_bytes: int
    index_cache_bytes: int
    node_bytes_max: int
    """Bytes of requests under way."""
    slab_pool_bytes: int
    decompressed_bytes_max: int
    """Decompressed bytes of the one batch whose records are examined."""
    compaction_bytes: int
    """Bytes of objects' data that a compaction run holds."""
    compaction_index_bytes: int
    compaction_keys_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of all sizes."""
        return sum(getattr(self, field.name) for field in fields(self))


class _MemoryShare(NamedTuple):
    default_bytes: int
    """Size when memory suffices for all. More would be of little use, and a host may run several nodes."""
    min_bytes: int
    """Smallest size with which a node works."""
    shown: str
    """Name in the documentation."""


SHARES: Final[Mapping[str, _MemoryShare]] = {
    "log_cache_bytes": _MemoryShare(_STORAGE.log_cache_bytes, 16 * MIB, "`storage.log_cache_bytes`"),
    "block_cache_bytes": _MemoryShare(_STORAGE.block_cache_bytes, 8 * MIB, "`storage.block_cache_bytes`"),
    "index_cache_bytes": _MemoryShare(_STORAGE.index_cache_bytes, 4 * MIB, "indexes of objects"),
    "node_bytes_max": _MemoryShare(512 * MIB, 8 * MIB, "`network.node_bytes_max`"),
    "slab_pool_bytes": _MemoryShare(256 * MIB, 4 * MIB, "`network.slab_pool_bytes`"),
    "decompressed_bytes_max": _MemoryShare(64 * MIB, 8 * MIB, "`topic.decompressed_bytes_max`"),
    "compaction_bytes": _MemoryShare(_COMPACTION.memory_bytes, 32 * MIB, "compaction: data of objects"),
    "compaction_index_bytes": _MemoryShare(_COMPACTION.index_bytes_max, 16 * MIB, "compaction: indexes"),
    "compaction_keys_bytes": _MemoryShare(_COMPACTION.clean_keys_bytes_max, 8 * MIB, "compaction by key: keys"),
}
FULL_SIZES_BYTES: Final = PLANNED_SHARE * (PROCESS_BYTES + sum(part.default_bytes for part in SHARES.values()))
"""Available memory from which on all sizes have their defaults."""


def plan_memory(available_bytes: int, given: Mapping[str, int | None], *, request_bytes_max: int) -> MemorySizes:
    """Return the sizes of a node that may use `available_bytes`. Sizes in `given` are kept (None: unset).

    The others get their defaults, reduced by one common factor if memory is short, but not below their minimum.
    `node_bytes_max` always holds one request of `request_bytes_max` in addition to small ones, even if less was given.
    """
    sizes = {name: size for name in SHARES if (size := given.get(name)) is not None}
    least = {name: part.min_bytes for name, part in SHARES.items() if name not in sizes}
    for bounds in (sizes, least):
        if "node_bytes_max" in bounds:
            bounds["node_bytes_max"] = max(bounds["node_bytes_max"], frame_budget_bytes_min(request_bytes_max))
    left = available_bytes // PLANNED_SHARE - PROCESS_BYTES - sum(sizes.values())
    while least:
        wanted = sum(SHARES[name].default_bytes for name in least)
        shares = {name: SHARES[name].default_bytes * min(left, wanted) // wanted for name in least}
        short = {name: size for name, size in least.items() if shares[name] < size}
        if not short:
            sizes |= shares
            break
        sizes |= short
        left -= sum(short.values())
        least = {name: size for name, size in least.items() if name not in short}
    return MemorySizes(**sizes)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Available memory of a node, and the sizes it is divided into."""

    available_bytes: int
    source: str
    """Origin of `available_bytes`: a file of the system, or a setting."""
    sizes: MemorySizes

    def describe(self) -> Mapping[str, int | str]:
        """Return all figures, for the log and for the status."""
        return {"available_bytes": self.available_bytes, "source": self.source, **asdict(self.sizes)}

    @property
    def is_overcommitted(self) -> bool:
        """True if the sizes exceed the available memory: those that are set are too large, or it is too small."""
        return PROCESS_BYTES + self.sizes.total_bytes > self.available_bytes


def frame_budget_bytes_min(request_bytes_max: int) -> int:
    """Return the least memory for requests of up to `request_bytes_max`: the largest leaves small ones their share."""
    largest = request_bytes_max + FRAME_SIZE_BYTES
    return largest * SMALL_FRAME_SHARE // (SMALL_FRAME_SHARE - 1) + SMALL_FRAME_SHARE


def memory_for(settings: Settings, root: Path = Path("/")) -> MemoryPlan:
    """Plan the memory of a node with these settings, on the machine whose root directory is `root`."""
    available, source = settings.node.memory_bytes, "setting node.memory_bytes"
    if available is None:
        available, source = available_memory(root)
        if (processes := settings.node.processes) > 1:
            available, source = available // processes, f"{source}, divided among {processes} processes"
    network, storage = settings.network, settings.storage
    given = {
        "log_cache_bytes": storage.log_cache_bytes,
        "block_cache_bytes": storage.block_cache_bytes,
        "node_bytes_max": network.node_bytes_max,
        "slab_pool_bytes": network.slab_pool_bytes,
        "decompressed_bytes_max": settings.topic.decompressed_bytes_max,
    }
    return MemoryPlan(available, source, plan_memory(available, given, request_bytes_max=network.request_bytes_max))


def with_sizes(settings: Settings, sizes: MemorySizes) -> Settings:
    """Return the settings with the planned sizes filled in."""
    planned = {
        "network": ("node_bytes_max", "slab_pool_bytes"),
        "storage": ("log_cache_bytes", "block_cache_bytes"),
        "topic": ("decompressed_bytes_max",),
    }
    areas: dict[str, Any] = {
        area: replace(getattr(settings, area), **{name: getattr(sizes, name) for name in names})
        for area, names in planned.items()
    }
    return replace(settings, **areas)


def available_memory(root: Path = Path("/")) -> tuple[int, str]:
    """Return the bytes that this process may use, and the file they were read from.

    This is the minimum of the machine's memory and the limits of all control groups of the process (version 1 and 2).
    """
    machine = root / "proc/meminfo"
    found = re.search(r"MemTotal:\s+(\d+) kB", read_text(machine))
    limits = [(int(found[1]) * 1024, str(machine)) if found else (physical_memory(), "sysconf")]
    paths = (folder / name for folder in group_folders(root, "memory") for name in _LIMIT_FILES)
    limits += [(int(text), str(path)) for path in paths if (text := read_text(path)).isdecimal()]  # `max`: no limit
    return min(limits)
