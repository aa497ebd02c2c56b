"""The write-ahead log compared with its device: fio with the same pattern on the same file or device, in the same run.

    python -m benchmarks.wal [--quick] [--json FILE] [--only PART ...] [--engine ENGINE ...] [--path FILE_OR_DEVICE]

The target of --path is overwritten; without it a temporary file is used. The throttled part needs root (a loop device
in a cgroup with limits). Rounds of fio and of the log with each engine alternate, and medians are compared: only ratios
within one run count.
"""

import asyncio
import gc
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import structlog
import uvloop

from anabranch.wal.device import open_device
from anabranch.wal.interface import AppendedRecord, OverCapacity, WalError, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import Durability, EngineName, WalSettings
from benchmarks.support import CONSOLE, Report, middle, p99, parser

KIB, MIB = 1 << 10, 1 << 20
FULL_BLOCK = 256 * KIB - 24 - 32
"""Body of a record that fills a block to the last byte: the device gets writes of exactly 256 KiB."""
SEED_BANDWIDTH, SEED_IOPS = 125 * MIB, 3000
MODES: tuple[Durability, ...] = ("direct", "flush")
ENGINES: tuple[EngineName, ...] = ("io_uring", "threads")


@dataclass(frozen=True)
class Sizes:
    """Duration of the parts."""

    ring_bytes: int
    recovery_bytes: int
    rounds: int
    seconds: float
    paced_seconds: float


QUICK = Sizes(512 * MIB, 512 * MIB, 3, 1.0, 2.0)
FULL = Sizes(2048 * MIB, 2048 * MIB, 7, 2.0, 8.0)


@dataclass
class Run:
    """Results of one run against the log."""

    records: int = 0
    body_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    latencies_ms: Sequence[float] = ()
    writes: int = 0

    @property
    def mb_per_s(self) -> float:
        return self.body_bytes / self.seconds / 1e6


# --- driving the log -------------------------------------------------------------------------------------------------


def settings_of(
    capacity_bytes: int, durability: Durability, engine: EngineName, *, iops: int = 0, bandwidth: int = 0
) -> WalSettings:
    return WalSettings(
        capacity_bytes=capacity_bytes,
        durability=durability,
        engine=engine,
        fencing="local",
        iops_max=iops,
        bandwidth_bytes_max=bandwidth,
    )


def blank(path: Path, capacity_bytes: int) -> None:
    """Prepare a fully written file, without a header on it or on the device: each run starts a new log."""
    if not path.exists():
        # Strict fencing: written here and not by the log, beside the measurement.
        asyncio.run(open_device(path, WalSettings(capacity_bytes=capacity_bytes, fencing="strict")).close())
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes(128 * KIB), 0)
    os.fsync(fd)
    os.close(fd)


async def opened(path: Path, settings: WalSettings) -> tuple[DeltaWal, int]:
    """Open the log. Returns it and the number of its records."""
    device = open_device(path, settings)
    wal = DeltaWal(device, settings, node_id=1, node_epoch=1, now_ms=lambda: time.time_ns() // 10**6)
    records = 0
    async for _ in wal.recover():
        records += 1
    return wal, records


class Trimmer:
    """Keeps space free in the ring, as uploads do: when it is half full it frees all but the newest part."""

    def __init__(self, wal: DeltaWal) -> None:
        self.wal = wal
        self.samples: deque[int] = deque()

    def note(self, appended: AppendedRecord) -> None:
        if not self.samples or appended.offset - self.samples[-1] > self.wal.capacity_bytes // 64:
            self.samples.append(appended.offset)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.005)
            if self.wal.used_bytes > self.wal.capacity_bytes // 2 and len(self.samples) > 16:
                offset = 0
                while len(self.samples) > 16:
                    offset = self.samples.popleft()
                await self.wal.trim(offset)


async def flood(path: Path, settings: WalSettings, body_bytes: int, seconds: float) -> Run:
    """Append as fast as the device accepts. 4 MiB are queued: writers never idle, and buffers stay in the cache."""
    wal, _ = await opened(path, settings)
    body = memoryview(os.urandom(body_bytes))
    run = Run()
    queued, room = 0, asyncio.Event()
    queued_max = max(4 * MIB, 5 * body_bytes)
    refill_below = queued_max - 512 * KIB
    trimmer = Trimmer(wal)

    def done(_: WalError | None) -> None:
        nonlocal queued
        queued -= body_bytes
        if queued <= refill_below:
            room.set()

    async with asyncio.TaskGroup() as group:
        trim = group.create_task(trimmer.run())
        before = wal.stats.writes
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            while queued < queued_max:
                try:
                    appended = wal.append((body,))
                except OverCapacity:
                    await asyncio.sleep(0.001)  # the trimmer is behind: a small ring is full in a fifth of a second
                    continue
                appended.durable.add_done_callback(done)
                trimmer.note(appended)
                queued += body_bytes
                run.records += 1
            room.clear()
            await room.wait()
        while queued:
            room.clear()
            if queued > refill_below:
                await room.wait()
            else:
                await asyncio.sleep(0.0005)
        run.seconds, run.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        trim.cancel()
    run.body_bytes = run.records * body_bytes
    run.writes = wal.stats.writes - before
    await wal.close()
    return run


async def paced(path: Path, settings: WalSettings, body_bytes: int, bytes_per_s: float, seconds: float) -> Run:
    """Append at a steady rate, and measure each append until it is durable.

    If the driver itself was delayed (a loaded machine), it continues at the rate without catching up: a burst that it
    caused itself would be measured as the log's latency.
    """
    wal, _ = await opened(path, settings)
    body = memoryview(os.urandom(body_bytes))
    run = Run()
    latencies: list[float] = []
    trimmer = Trimmer(wal)
    interval = body_bytes / bytes_per_s
    last: AppendedRecord | None = None

    def done(at: float, _: WalError | None) -> None:
        latencies.append((time.perf_counter() - at) * 1e3)

    async with asyncio.TaskGroup() as group:
        trim = group.create_task(trimmer.run())
        before = wal.stats.writes
        began = due = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            due = max(due, now - 0.002)
            while due <= now:
                due += interval
                with suppress(OverCapacity):
                    last = wal.append((body,))
                    last.durable.add_done_callback(partial(done, now))
                    trimmer.note(last)
                    run.records += 1
            await asyncio.sleep(max(due - time.perf_counter(), 0))
        if last is not None:
            await last.durable
        run.seconds = time.perf_counter() - began
        trim.cancel()
    run.body_bytes = run.records * body_bytes
    run.writes = wal.stats.writes - before
    run.latencies_ms = latencies
    await wal.close()
    return run


async def many_tasks(path: Path, settings: WalSettings, body_bytes: int, tasks: int, seconds: float) -> Run:
    """Run `tasks` tasks that each await their append before the next one."""
    wal, _ = await opened(path, settings)
    body = memoryview(os.urandom(body_bytes))
    run = Run()
    latencies: list[float] = []
    trimmer = Trimmer(wal)

    async def one() -> None:
        while time.perf_counter() - began < seconds:
            at = time.perf_counter()
            appended = wal.append((body,))
            trimmer.note(appended)
            await appended.durable
            latencies.append((time.perf_counter() - at) * 1e3)

    async with asyncio.TaskGroup() as group:
        trim = group.create_task(trimmer.run())
        before = wal.stats.writes
        began, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as workers:
            for _ in range(tasks):
                workers.create_task(one())
        run.seconds, run.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        trim.cancel()
    run.records, run.latencies_ms = len(latencies), latencies
    run.writes = wal.stats.writes - before
    run.body_bytes = run.records * body_bytes
    await wal.close()
    return run


async def append_cost(path: Path, settings: WalSettings, body_bytes: int) -> float:
    """Return CPU us of the loop's thread for one append call, without the device's share."""
    wal, _ = await opened(path, settings)
    body = memoryview(os.urandom(body_bytes))
    best = float("inf")
    for _ in range(20):
        count = 4 * MIB // (body_bytes + 24)
        began = time.thread_time()
        appended = [wal.append((body,)) for _ in range(count)]
        best = min(best, (time.thread_time() - began) / count * 1e6)
        await appended[-1].durable
    await wal.close()
    return best


async def recovery(path: Path, settings: WalSettings, body_bytes: int) -> tuple[int, float, float]:
    """Fill the ring, leave it without a clean stop, and open it again. Returns records, seconds, CPU seconds."""
    wal, _ = await opened(path, settings)
    body = memoryview(os.urandom(body_bytes))
    appended: list[AppendedRecord] = []
    while wal.used_bytes + 4 * MIB < wal.capacity_bytes:
        appended = [wal.append((body,)) for _ in range(max(1, 2 * MIB // body_bytes))]
        await appended[-1].durable
    await wal.device.close()  # what a crash would leave
    del wal, appended
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    again, records = await opened(path, settings)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    await again.close()
    return records, seconds, cpu_seconds


# --- fio -------------------------------------------------------------------------------------------------------------


def fio(path: Path, size_bytes: int, pattern: str, block: str, seconds: float, *, dsync: bool = False) -> float:
    """Return the MB/s of fio with 4 requests in flight and O_DIRECT."""
    command = [
        *("fio", "--name=wal", f"--filename={path}", f"--size={size_bytes}", f"--rw={pattern}", f"--bs={block}"),
        *("--direct=1", "--ioengine=libaio", "--iodepth=4", "--time_based", f"--runtime={seconds}"),
        *("--allow_file_create=0", "--output-format=json", *(["--sync=dsync"] if dsync else [])),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return float(job["write" if pattern == "write" else "read"]["bw_bytes"]) / 1e6


def against_fio(report: Report, path: Path, sizes: Sizes, engines: Sequence[EngineName]) -> None:
    """Alternate rounds of fio's sequential writes and large appends."""
    goals = {"256 KiB blocks": (FULL_BLOCK, 0.9), "appends of 64 KiB": (64 * KIB, 0.8), "appends of 1 MiB": (MIB, 0.8)}
    for mode in MODES:
        limit: list[float] = []
        runs: dict[tuple[EngineName, str], list[Run]] = {(engine, name): [] for engine in engines for name in goals}
        for _ in range(sizes.rounds):
            for name, (body_bytes, _) in goals.items():
                limit.append(fio(path, sizes.ring_bytes, "write", "256k", sizes.seconds, dsync=mode == "flush"))
                for engine in engines:
                    blank(path, sizes.ring_bytes)
                    settings = settings_of(sizes.ring_bytes, mode, engine)
                    runs[engine, name].append(uvloop.run(flood(path, settings, body_bytes, sizes.seconds)))
        top = report.add(f"{mode}: fio 256 KiB, 4 in flight", middle(limit), "MB/s")
        for (engine, name), rounds in runs.items():
            rate = report.add(f"{mode}, {engine}: {name}", middle([run.mb_per_s for run in rounds]), "MB/s")
            goal = f">= {goals[name][1]}" if engine == engines[0] else None
            report.add(f"{mode}, {engine}: {name} / fio", rate / top, "ratio", goal)
            cost = middle([run.cpu_seconds / run.body_bytes * 1e9 for run in rounds])
            report.add(f"{mode}, {engine}: CPU of {name}", cost, "s/GB")


def small_appends(report: Report, path: Path, sizes: Sizes, engines: Sequence[EngineName]) -> None:
    """Measure many concurrent tasks, one task alone, and the cost of a call."""
    bodies = ((100, "100 B"), (KIB, "1 KiB"), (16 * KIB, "16 KiB"))

    def rounds(mode: Durability, body_bytes: int, tasks: int) -> dict[EngineName, list[Run]]:
        runs: dict[EngineName, list[Run]] = {engine: [] for engine in engines}
        for _ in range(sizes.rounds):
            for engine in engines:
                blank(path, sizes.ring_bytes)
                settings = settings_of(sizes.ring_bytes, mode, engine)
                runs[engine].append(uvloop.run(many_tasks(path, settings, body_bytes, tasks, sizes.seconds)))
        return runs

    for body_bytes, name in bodies:
        for engine, runs in rounds("direct", body_bytes, 1024).items():
            label = f"{engine}: 1,024 tasks, {name}"
            report.add(label, middle([run.records / run.seconds for run in runs]), "records/s")
            report.add(f"{label}: CPU", middle([run.cpu_seconds / run.records * 1e6 for run in runs]), "us/record")
            report.add(f"{label}: p50", middle([middle(run.latencies_ms) for run in runs]), "ms")
    for body_bytes, name in bodies:
        blank(path, sizes.ring_bytes)
        settings = settings_of(sizes.ring_bytes, "direct", engines[0])
        report.add(f"append() call, {name}", uvloop.run(append_cost(path, settings, body_bytes)), "us CPU")
    for mode in MODES:
        for tasks, name in ((1, "lone 1 KiB append"), (4, "1 KiB appends of 4 tasks")):
            for engine, runs in rounds(mode, KIB, tasks).items():
                label = f"{mode}, {engine}: {name}"
                report.add(f"{label}, mean", middle([mean(run.latencies_ms) for run in runs]), "ms")
                report.add(f"{label}, p99", middle([p99(run.latencies_ms) for run in runs]), "ms")
                report.add(f"{label}: CPU", middle([run.cpu_seconds / run.records * 1e6 for run in runs]), "us/record")


def recoveries(report: Report, path: Path, sizes: Sizes, engines: Sequence[EngineName], *, with_fio: bool) -> None:
    """Measure the recovery of a full ring."""
    limit = []
    for body_bytes, name in ((64 * KIB, "64 KiB"), (KIB, "1 KiB")):
        if with_fio:
            limit.append(fio(path, sizes.recovery_bytes, "read", "1M", sizes.seconds))
        for engine in engines:
            blank(path, sizes.recovery_bytes)
            settings = settings_of(sizes.recovery_bytes, "direct", engine)
            records, seconds, cpu_seconds = uvloop.run(recovery(path, settings, body_bytes))
            label = f"{engine}: recovery, {name} records"
            rate = report.add(label, sizes.recovery_bytes / seconds / 1e6, "MB/s")
            report.add(f"{label}: CPU", cpu_seconds / records * 1e6, "us/record")
            if with_fio:
                goal = ">= 0.5" if name == "64 KiB" else None
                report.add(f"{label} / fio read ({limit[-1]:,.0f} MB/s)", rate / limit[-1], "ratio", goal)


# --- the seed's disk -------------------------------------------------------------------------------------------------


@contextmanager
def throttled_device(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a loop device limited to the seed's 125 MiB/s and 3000 IOPS. Raises RuntimeError."""
    if os.geteuid() != 0:
        raise RuntimeError("it needs root")
    image = folder / "image"
    blank(image, size_bytes)
    made = subprocess.run(
        ["losetup", "--direct-io=on", "-f", "--show", image], check=False, capture_output=True, text=True
    )
    if made.returncode:
        raise RuntimeError(f"no loop device: {made.stderr.strip()}")
    device = Path(made.stdout.strip())
    try:
        status = device.stat()
        with limits(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"):
            yield device
    finally:
        subprocess.run(["losetup", "-d", device], check=True)


@contextmanager
def limits(number: str) -> Iterator[None]:
    """Move this process into a separate cgroup that limits writes to the device."""
    old, new = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")
    root = old if old.is_dir() else new
    group = root / f"anabranch-benchmark-{os.getpid()}"
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    home = next(
        (line.split(":", 2)[2] for line in lines if line.split(":", 2)[1] == ("blkio" if root == old else "")), "/"
    )
    try:
        group.mkdir()
    except OSError as error:
        raise RuntimeError(f"no cgroup: {error}") from error
    try:
        try:
            if root == old:
                (group / "blkio.throttle.write_bps_device").write_text(f"{number} {SEED_BANDWIDTH}")
                (group / "blkio.throttle.write_iops_device").write_text(f"{number} {SEED_IOPS}")
            else:
                (group / "io.max").write_text(f"{number} wbps={SEED_BANDWIDTH} wiops={SEED_IOPS}")
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            raise RuntimeError(f"no limits on a cgroup: {error}") from error
        yield
    finally:
        with suppress(OSError):
            (root / home.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def seed_figures(report: Report, device: Path, sizes: Sizes, engine: EngineName) -> None:
    """Measure the seed's main claim: a cloud disk's free allowance fully used, at low latency."""
    capacity = sizes.ring_bytes
    budgets = settings_of(capacity, "direct", engine, iops=SEED_IOPS, bandwidth=SEED_BANDWIDTH)
    top = SEED_BANDWIDTH / 1e6
    report.add("throttled to 125 MiB/s, 3000 IOPS: fio 256 KiB", fio(device, capacity, "write", "256k", 2.0), "MB/s")
    for body_bytes, name in ((16 * KIB, "16 KiB"), (64 * KIB, "64 KiB"), (MIB, "1 MiB")):
        blank(device, capacity)
        run = uvloop.run(flood(device, budgets, body_bytes, sizes.paced_seconds))
        report.add(f"throttled: {name} records / 125 MiB/s (seed: close to 1)", run.mb_per_s / top, "ratio", ">= 0.95")
    blank(device, capacity)
    run = uvloop.run(many_tasks(device, budgets, KIB, 64, sizes.paced_seconds))
    report.add("throttled: IOPS, 1 KiB from 64 tasks (seed: close to 3000)", run.writes / run.seconds, "1/s", "<= 3000")
    blank(device, capacity)
    run = uvloop.run(paced(device, budgets, KIB, MIB, sizes.paced_seconds))
    report.add("throttled: 1 KiB at 1 MiB/s, mean (seed: under 1)", mean(run.latencies_ms), "ms", "<= 1")
    report.add("throttled: 1 KiB at 1 MiB/s, p99", p99(run.latencies_ms), "ms")
    for body_bytes, name in ((64 * KIB, "64 KiB"), (256 * KIB, "256 KiB")):
        blank(device, capacity)
        run = uvloop.run(paced(device, budgets, body_bytes, 120 * MIB, sizes.paced_seconds))
        report.add(f"throttled: {name} at 120 MiB/s, mean (seed: under 2)", mean(run.latencies_ms), "ms", "<= 2")
        report.add(f"throttled: {name} at 120 MiB/s: reached", run.body_bytes / run.seconds / MIB, "MiB/s")
        report.add(f"throttled: {name} at 120 MiB/s: IOPS", run.writes / run.seconds, "1/s", "<= 3000")


PARTS = ("fio", "appends", "recovery", "throttled")


def measure(part: str, report: Report, path: Path, folder: Path, sizes: Sizes, engines: Sequence[EngineName]) -> None:
    """Run one part on the file or device."""
    with_fio = shutil.which("fio") is not None
    if part == "fio" and with_fio:
        against_fio(report, path, sizes, engines)
    elif part == "fio":
        CONSOLE.print("[yellow]fio is not installed: no comparison with the device's own speed")
    elif part == "appends":
        small_appends(report, path, sizes, engines)
    elif part == "recovery":
        recoveries(report, path, sizes, engines, with_fio=with_fio)
    else:
        try:
            with throttled_device(folder, sizes.ring_bytes) as device:
                seed_figures(report, device, sizes, engines[0])
        except RuntimeError as error:
            CONSOLE.print(f"[yellow]the throttled part was left out: {error}")


def available(path: Path, wanted: Sequence[EngineName]) -> list[EngineName]:
    """Return the engines that this machine allows, and print the device with each."""
    engines = []
    for engine in wanted:
        try:
            device = open_device(path, WalSettings(engine=engine))
        except WalRefused as refused:
            CONSOLE.print(f"[yellow]{refused}")
            continue
        CONSOLE.print(f"{device.name}: {device.description}", soft_wrap=True)
        asyncio.run(device.close())
        engines.append(engine)
    return engines


def main() -> None:
    options_parser = parser("The write-ahead log against its device, beside fio.")
    options_parser.add_argument("--path", type=Path, help="file or device to use; it is overwritten")
    options_parser.add_argument("--folder", type=Path, help="folder for temporary files (default: the system's)")
    options_parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    options_parser.add_argument(
        "--engine", nargs="+", choices=ENGINES, default=ENGINES, metavar="ENGINE", help=", ".join(ENGINES)
    )
    options = options_parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    sizes = QUICK if options.quick else FULL
    report = Report("Write-ahead log")
    with tempfile.TemporaryDirectory(prefix="anabranch-wal-", dir=options.folder) as folder:
        path = options.path or Path(folder) / "wal"
        blank(path, max(sizes.ring_bytes, sizes.recovery_bytes))
        engines = available(path, options.engine)
        for part in options.only:
            measure(part, report, path, Path(folder), sizes, engines)
    report.finish(options)


if __name__ == "__main__":
    main()
