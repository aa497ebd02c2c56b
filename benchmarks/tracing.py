"""Cost of traces: CPU of requests to nodes that trace all of them, one in a hundred, or none.

The nodes run in this process, without sockets and disk (as in `benchmarks.guard`), and take turns in each round; a
collector in another process receives the spans. CPU is that of all threads of this process, with the delivery of the
spans. A ratio is that of two samples of one round. Whether a node that does not trace costs more than one without this
feature is for `benchmarks.guard` to tell, which counts instructions.

    python -m benchmarks.tracing [--quick] [--json FILE]
"""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final

import structlog
import uvloop

from anabranch.broker.operator.cli.node_process import CYCLE_THRESHOLDS
from benchmarks.lab.hot_paths import HotPath, hot_paths
from benchmarks.lab.in_process import InProcessNode, in_process_node
from benchmarks.support import CONSOLE, Report, middle, parser

RATIOS: Final = ("off", "0.01", "1")
PATHS: Final = ("produce, 1 KiB", "produce, 16 KiB", "fetch at the tail", "from the log cache", "from the block cache")
ROUNDS, QUICK_ROUNDS = 20, 4
REPEATS: Final = 4096
"""Repeats of a path in a sample: a delivery costs as much as many spans, however few it has."""
COLLECTOR: Final = """
import sys
from tests.support.collector import TraceCollector
with TraceCollector() as collector:
    collector.bodies = collector.spans = collector.headers = type("Nothing", (list,), {"append": id, "extend": id})()
    print(collector.url, flush=True)
    sys.stdin.read()
"""
DELIVERY_MS: Final = 200
"""Longest time that a span waits for its delivery: short, so that a sample has the cost of its own spans."""


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector that keeps nothing; gives its URL."""
    command = [sys.executable, "-c", COLLECTOR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


async def delivered(lab: InProcessNode) -> None:
    """Wait until no span is queued."""
    stats = lab.node.tracing
    while stats is not None and stats.spans > stats.delivered + stats.undelivered + stats.overflowed:  # noqa: ASYNC110
        await asyncio.sleep(DELIVERY_MS / 10_000)  # another thread delivers


async def sample(path: HotPath, lab: InProcessNode) -> float:
    """Return the CPU of one request, in us."""
    await lab.relax()
    await delivered(lab)
    began = time.process_time_ns()
    await path.run(REPEATS)
    await delivered(lab)
    spent = time.process_time_ns() - began
    path.check()
    return spent / 1000 / REPEATS


async def measure(rounds: int) -> Report:
    """Measure the paths in nodes that take turns."""
    report = Report("CPU of a request, by the share of requests that is traced")
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        os.environ["OTEL_BSP_SCHEDULE_DELAY"] = str(DELIVERY_MS)
        url = stack.enter_context(collector())
        nodes = {}
        for ratio in RATIOS:
            tracing = {"tracing__endpoint": url, "tracing__sample_ratio": ratio, "tracing__enabled": "true"}
            lab = await stack.enter_async_context(in_process_node(**({} if ratio == "off" else tracing)))
            paths = [path for path in await hot_paths(lab) if any(text in path.name for text in PATHS)]
            await lab.node.upkeep.manifests.ensure_current()
            nodes[ratio] = lab, [path for path in paths if "to each of" not in path.name]
        gc.freeze()
        gc.set_threshold(*CYCLE_THRESHOLDS)
        for at in range(rounds + 1):
            order = RATIOS if at % 2 else RATIOS[::-1]
            for number in range(len(nodes["off"][1])):
                for ratio in order:
                    lab, paths = nodes[ratio]
                    found = await sample(paths[number], lab)
                    if at:  # the first round warms up
                        samples[paths[number].name, ratio].append(found)
        traced = nodes["1"][0].node.tracing
        assert traced is not None
        assert traced.delivered > traced.overflowed, "most spans were delivered"
        for path in nodes["off"][1]:
            off = samples[path.name, "off"]
            report.add(f"{path.name}: off", middle(off), "us")
            for ratio in RATIOS[1:]:
                pairs = zip(samples[path.name, ratio], off, strict=True)
                report.add(f"{path.name}: {ratio} over off", middle([own / other for own, other in pairs]), "")
        report.add("spans dropped because the queue was full, share", traced.overflowed / traced.spans, "")
    return report


def main() -> None:
    """Run the benchmark."""
    options = parser("Cost of traces.").parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    uvloop.install()
    asyncio.run(measure(QUICK_ROUNDS if options.quick else ROUNDS)).finish(options)
    CONSOLE.print(f"load averages: {', '.join(f'{each:.1f}' for each in os.getloadavg())}", highlight=False)


if __name__ == "__main__":
    main()
