"""How much memory a node takes: what it may use (the container's limit, or the machine's), and how that is shared out.

Sizes that nobody has set follow from what is available: together with those that were set, and with what a process
takes before it does anything, they stay within half of it. The other half is for what cannot be planned: buffers on
their way to the log and to the store, what readers still hold of evicted blocks, the page cache, other processes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, NamedTuple

from broker.settings.area import MIB
from broker.settings.model import Settings
from compaction.settings import CompactionSettings
from s3stream.settings import StorageSettings

_STORAGE, _COMPACTION = StorageSettings(), CompactionSettings()
PLANNED_SHARE: Final = 2
"""One part in so many of what is available is planned with."""
PROCESS_BYTES: Final = 96 * MIB
"""An idle node: the interpreter, the code, the state of some thousand partitions."""
FRAME_SIZE_BYTES: Final = 4
"""Length prefix of a frame, which does not count itself."""
SMALL_FRAME_SHARE: Final = 8
"""Small frames have one part in so many of the memory for requests to themselves (`broker.net.budget`)."""
_V1_FILES: Final[Sequence[str]] = ("memory.limit_in_bytes",)
_V2_FILES: Final[Sequence[str]] = ("memory.max", "memory.high")


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """Bounds in bytes of all that takes much memory."""

    log_cache_bytes: int
    block_cache_bytes: int
    index_cache_bytes: int
    node_bytes_max: int
    """Of requests under way."""
    slab_pool_bytes: int
    decompressed_bytes_max: int
    """Of the one batch that is looked into."""
    compaction_bytes: int
    """Of objects' data that a run of compaction holds."""
    compaction_index_bytes: int
    compaction_keys_bytes: int

    @property
    def total_bytes(self) -> int:
        """All together."""
        return sum(getattr(self, field.name) for field in fields(self))


class _Part(NamedTuple):
    default_bytes: int
    """What it is where there is enough for all; more would be of little use, and a host may carry several nodes."""
    min_bytes: int
    """What a node needs to work at all."""
    shown: str
    """What the documentation calls it."""


PARTS: Final[Mapping[str, _Part]] = {
    "log_cache_bytes": _Part(_STORAGE.log_cache_bytes, 16 * MIB, "`storage.log_cache_bytes`"),
    "block_cache_bytes": _Part(_STORAGE.block_cache_bytes, 8 * MIB, "`storage.block_cache_bytes`"),
    "index_cache_bytes": _Part(_STORAGE.index_cache_bytes, 4 * MIB, "indexes of objects"),
    "node_bytes_max": _Part(512 * MIB, 8 * MIB, "`network.node_bytes_max`"),
    "slab_pool_bytes": _Part(256 * MIB, 4 * MIB, "`network.slab_pool_bytes`"),
    "decompressed_bytes_max": _Part(64 * MIB, 8 * MIB, "`topic.decompressed_bytes_max`"),
    "compaction_bytes": _Part(_COMPACTION.memory_bytes, 32 * MIB, "compaction: data of objects"),
    "compaction_index_bytes": _Part(_COMPACTION.index_bytes_max, 16 * MIB, "compaction: indexes"),
    "compaction_keys_bytes": _Part(_COMPACTION.clean_keys_bytes_max, 8 * MIB, "compaction by key: keys"),
}
ENOUGH_BYTES: Final = PLANNED_SHARE * (PROCESS_BYTES + sum(part.default_bytes for part in PARTS.values()))
"""With this much available, all sizes are their defaults."""


def plan_memory(available_bytes: int, given: Mapping[str, int | None], *, request_bytes_max: int) -> MemorySizes:
    """Sizes for a node that may use `available_bytes`. Those in `given` hold (None: unset).

    The others are their defaults, all made smaller by one factor where that is too much, but never less than a node
    needs. Requests under way have room for one of `request_bytes_max` beside small ones, whatever is given.
    """
    sizes = {name: size for name in PARTS if (size := given.get(name)) is not None}
    least = {name: part.min_bytes for name, part in PARTS.items() if name not in sizes}
    for bounds in (sizes, least):
        if "node_bytes_max" in bounds:
            bounds["node_bytes_max"] = max(bounds["node_bytes_max"], frame_budget_bytes_min(request_bytes_max))
    left = available_bytes // PLANNED_SHARE - PROCESS_BYTES - sum(sizes.values())
    while least:
        wanted = sum(PARTS[name].default_bytes for name in least)
        shares = {name: PARTS[name].default_bytes * min(left, wanted) // wanted for name in least}
        short = {name: size for name, size in least.items() if shares[name] < size}
        if not short:
            sizes |= shares
            break
        sizes |= short
        left -= sum(short.values())
        least = {name: size for name, size in least.items() if name not in short}
    return MemorySizes(**sizes)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a node may use and how it is shared out."""

    available_bytes: int
    source: str
    """Who says so: a file of the system, or a setting."""
    sizes: MemorySizes

    def describe(self) -> Mapping[str, object]:
        """All figures, for the log and for status."""
        return {"available_bytes": self.available_bytes, "source": self.source, **asdict(self.sizes)}

    @property
    def is_short(self) -> bool:
        """Whether the sizes do not fit: what was set is too much, or what is available too little."""
        return PROCESS_BYTES + self.sizes.total_bytes > self.available_bytes


def frame_budget_bytes_min(request_bytes_max: int) -> int:
    """Return the least memory for requests of up to `request_bytes_max`: the largest leaves small ones their share."""
    largest = request_bytes_max + FRAME_SIZE_BYTES
    return largest * SMALL_FRAME_SHARE // (SMALL_FRAME_SHARE - 1) + SMALL_FRAME_SHARE


def memory_for(settings: Settings, root: Path = Path("/")) -> Memory:
    """Plan for a node with these settings, on the machine whose file system begins at `root`."""
    available, source = settings.node.memory_bytes, "setting node.memory_bytes"
    if available is None:
        available, source = available_memory(root)
    network, storage = settings.network, settings.storage
    given = {
        "log_cache_bytes": storage.log_cache_bytes,
        "block_cache_bytes": storage.block_cache_bytes,
        "node_bytes_max": network.node_bytes_max,
        "slab_pool_bytes": network.slab_pool_bytes,
        "decompressed_bytes_max": settings.topic.decompressed_bytes_max,
    }
    return Memory(available, source, plan_memory(available, given, request_bytes_max=network.request_bytes_max))


def with_sizes(settings: Settings, sizes: MemorySizes) -> Settings:
    """The settings with the sizes that were planned, for whoever shows them."""
    planned = {
        "network": ("node_bytes_max", "slab_pool_bytes"),
        "storage": ("log_cache_bytes", "block_cache_bytes"),
        "topic": ("decompressed_bytes_max",),
    }
    areas = {
        area: getattr(settings, area).model_copy(update={name: getattr(sizes, name) for name in names})
        for area, names in planned.items()
    }
    return settings.model_copy(update=areas)


def available_memory(root: Path = Path("/")) -> tuple[int, str]:
    """Bytes that this process may use, and the file that says so.

    The least of the machine's memory and of the limits of all control groups that the process is in (version 1 and 2).
    """
    machine = root / "proc/meminfo"
    found = re.search(r"MemTotal:\s+(\d+) kB", machine.read_text(encoding="ascii"))
    assert found is not None, "every Linux tells"
    limits = [(int(found[1]) * 1024, str(machine))]
    limits += [(limit, str(path)) for path in _limit_files(root) if (limit := _read_limit(path)) is not None]
    return min(limits)


def _limit_files(root: Path) -> Iterator[Path]:
    """The files with a limit in the control groups of this process, from its own up to where they are mounted."""
    groups = _groups(_read(root / "proc/self/cgroup"))
    for mount in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = mount.partition(" - ")
        inside, point = before.split(" ")[3:5]
        kind, *rest = after.split(" ")
        names = _V2_FILES
        if kind == "cgroup2":
            group = groups.get("")
        elif kind == "cgroup" and "memory" in rest[-1].split(","):
            group, names = groups.get("memory"), _V1_FILES
        else:
            continue
        top = root / point.lstrip("/")
        for directory in _upwards(top, inside, group):
            yield from (directory / name for name in names)


def _groups(text: str) -> Mapping[str, str]:
    """Path of the process's group by controller; version 2 has one, without a name."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _upwards(top: Path, inside: str, group: str | None) -> Iterator[Path]:
    """Directories of a group and those above it. In a container the group may lie outside of what is mounted."""
    if group is not None:
        below = group.removeprefix(inside) if inside != "/" else group
        parts = [part for part in below.split("/") if part]
        if ".." not in parts:
            for count in range(len(parts), 0, -1):
                yield top.joinpath(*parts[:count])
    yield top


def _read_limit(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None  # `max`: none; or no such file


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
