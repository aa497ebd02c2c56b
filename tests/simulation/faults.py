"""Faults: each kind is a task with its own stream of choices, so that one can be left out of a run."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from random import Random

from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.protocol.errors import KafkaError
from anabranch.s3stream.catalog.values import MoveReason
from anabranch.s3stream.errors import StorageError
from anabranch.wal.format import RING_POSITION, newest_header
from anabranch.wal.log import DeltaWal
from tests.simulation.catalog import CatalogFaults
from tests.simulation.history import Violation
from tests.simulation.node import CATALOG, STORE, SimNode
from tests.simulation.world import World

WRITES_UNDER_WAY = 3
WRITING_TRIES, WRITING_S = 10_000, 0.000_5
COMMAND_S = 20.0
"""Longest time that an operator waits for a command."""
STUCK_S_MAX = 20.0
"""Longest time that a log stands still: a device's write that takes 30 s has failed."""
FENCED_S_MAX = 25.0
"""Time within which a fenced process ends: a third of its lease, and its stop."""
STOP_S_MAX = 20.0
"""Time after which a service manager kills what it has asked to stop."""
STOP_POLL_S = 0.05
Fault = Callable[[World, Random], Awaitable[None]]


async def kill(world: World, random: Random) -> None:
    """Kill a node at any moment, at times one at which its log has several writes under way."""
    node = _node(world, random)
    if random.random() < 0.5:
        await _writing(node)
    node.kill()


async def power(world: World, random: Random) -> None:
    """Cut the power of a node, at times while its log has several writes under way."""
    node = _node(world, random)
    if random.random() < 0.5:
        await _writing(node)
    node.power_cut()


async def stop(world: World, random: Random) -> None:
    """Stop a node cleanly; its supervisor starts it again."""
    node = _node(world, random)
    world.note("asked to stop", node=node.host)
    node.stop()


async def pause(world: World, random: Random) -> None:
    """Pause a node, at times for longer than its lease."""
    node = _node(world, random)
    if node.pause():
        world.note("paused", node=node.host)
        process = node.process
        pause_s = random.choice((0.05, 0.5, 3.0, 25.0)) * random.random()
        world.store.delete_delay_s -= pause_s
        await asyncio.sleep(pause_s)
        world.note("resumed", node=node.host)
        if node.process is process:
            node.resume()


async def store_errors(world: World, random: Random) -> None:
    """Let calls to the object store fail for a while."""
    faults = world.store.faults
    faults.refused, faults.lost, faults.late = (random.choice((0.0, 0.05, 0.3)) for _ in range(3))
    world.note("store fails", refused=faults.refused, lost=faults.lost, late=faults.late)
    await asyncio.sleep(random.uniform(1, 20))
    world.store.faults.refused = world.store.faults.lost = world.store.faults.late = 0.0


async def store_away(world: World, random: Random) -> None:
    """Take the object store away."""
    world.store.faults.away = True
    world.note("store away")
    await asyncio.sleep(random.choice((2.0, 10.0, 90.0)) * random.random())
    world.store.faults.away = False
    world.note("store back")


async def store_slow(world: World, random: Random) -> None:
    """Make the object store slow."""
    world.store.faults.slow = random.choice((5.0, 50.0))
    world.note("store slow", factor=world.store.faults.slow)
    await asyncio.sleep(random.uniform(1, 20))
    world.store.faults.slow = 1.0


async def catalog_errors(world: World, random: Random) -> None:
    """Let transactions of the catalog fail for a while, or lose their answers."""
    faults = world.catalog_faults
    faults.refused, faults.lost, faults.repeated, faults.late = (random.choice((0.0, 0.05, 0.3)) for _ in range(4))
    world.note("catalog fails", refused=faults.refused, lost=faults.lost, repeated=faults.repeated, late=faults.late)
    await asyncio.sleep(random.uniform(1, 20))
    faults.refused = faults.lost = faults.repeated = faults.late = 0.0


async def table_answers(world: World, random: Random) -> None:
    """Let the outcomes of transactions about tables be unknown for a while."""
    world.catalog_faults.table_unknown = random.choice((0.1, 0.3))
    world.note("answers about tables are lost", probability=world.catalog_faults.table_unknown)
    await asyncio.sleep(random.uniform(1, 20))
    world.catalog_faults.table_unknown = 0.0


async def registry_away(world: World, random: Random) -> None:
    """Take the schema registry away."""
    world.registry.is_away = True
    world.note("registry away")
    await asyncio.sleep(random.choice((2.0, 10.0, 60.0)) * random.random())
    world.registry.is_away = False
    world.note("registry back")


async def catalog_away(world: World, random: Random) -> None:
    """Take the catalog away."""
    world.catalog_faults.away = True
    world.note("catalog away")
    await asyncio.sleep(random.choice((2.0, 10.0, 60.0)) * random.random())
    world.catalog_faults.away = False
    world.note("catalog back")


async def resets(world: World, random: Random) -> None:
    """Reset some connections."""
    node = _node(world, random)
    world.note("reset", connections=world.network.reset(node.host, random.random()))


async def partition(world: World, random: Random) -> None:
    """Cut a node off its clients."""
    node = _node(world, random)
    world.network.cut(node.host)
    world.note("cut off", node=node.host)
    await asyncio.sleep(random.choice((1.0, 10.0, 40.0)) * random.random())
    world.note("connected again", node=node.host)
    world.network.join(node.host)


async def clock(world: World, random: Random) -> None:
    """Set the wall clock of a node wrong, by up to a day."""
    process = _node(world, random).process
    if process is not None:
        process.clock_ahead_ms = int(random.choice((0, 1, 60, 3_600, 86_400)) * 1000 * random.uniform(-1, 1))
        world.note("clock set", ahead_ms=process.clock_ahead_ms)


async def disk_errors(world: World, random: Random) -> None:
    """Let writes to the log fail for a while: the node must stop, and recover when it starts again."""
    node = _node(world, random)
    node.logs.faults.write_error = random.choice((0.001, 0.05))
    world.note("disk fails", node=node.host)
    await asyncio.sleep(random.uniform(0.5, 5))
    node.logs.faults.write_error = 0.0


async def log_stuck(world: World, random: Random) -> None:
    """Let a log stand still for a while: a disk that completes no request, or a store that refuses PUTs of logs."""
    node, stuck_s = _node(world, random), random.uniform(2, STUCK_S_MAX)
    world.note("logs are refused" if world.object_log else "disk hangs", node=node.host)
    if world.object_log:
        world.store.faults.logs_refused = True
    else:
        node.logs.hang(hangs=True)
    await asyncio.sleep(stuck_s)
    world.note("logs go on", node=node.host)
    world.store.faults.logs_refused = False
    node.logs.hang(hangs=False)


async def store_rot(world: World, random: Random) -> None:
    """Let GETs return a wrong bit for a while: a read must fail, or give the right bytes."""
    world.store.faults.rot = random.choice((0.02, 0.2, 0.6))
    world.note("store rots", share=world.store.faults.rot)
    await asyncio.sleep(random.uniform(1, 20))
    world.store.faults.rot = 0.0


async def log_rot(world: World, random: Random) -> None:
    """Kill a node and turn a bit of its log: it must not start with it. The log is restored then.

    The bit is in a block before the header's durable offset: the log promises to detect damage there.
    """
    node = _node(world, random)
    if world.object_log:
        return
    for _ in range(200):
        blocks = _safe_blocks(node)
        if blocks and not node.others:
            break
        await asyncio.sleep(0.05)
    else:
        return
    position = random.choice(random.choice(blocks))
    bit = 1 << random.randrange(8)
    disk = next(iter(node.logs.disks.values()))
    node.kill(restart=False)
    for image in (disk.data, disk.stable):
        image[position] ^= bit
    damaged = disk.data[position]
    world.note("log rots", node=node.host, position=position)
    refusals = len(node.refusals)
    node.start()
    try:
        for _ in range(60):
            await asyncio.sleep(0.5)
            if _has_decided(node, refusals):
                break
    finally:
        world.note("log restored", node=node.host)
        for image in (disk.data, disk.stable):
            if image[position] == damaged:
                image[position] ^= bit


def _safe_blocks(node: SimNode) -> list[range]:
    """Return the positions of the blocks with records that the header on the disk calls durable."""
    if node.node is None:
        return []
    disk = next(iter(node.logs.disks.values()))
    header = newest_header(memoryview(disk.data)[:RING_POSITION])
    assert header is not None
    assert isinstance(node.node.wal, DeltaWal)
    live = [(block.start, block.end) for block in node.node.wal._live]
    return [
        range(header.position_of(start), header.position_of(start) + end - start)
        for start, end in live
        if header.head_offset <= start
        and end <= header.durable_offset
        and header.position_of(end) > header.position_of(start)
    ]


def _has_decided(node: SimNode, refusals: int) -> bool:
    """Return whether the node serves, or has refused its log since it had so many refusals."""
    return node.node is not None or any("damaged at offset" in each for each in node.refusals[refusals:])


async def twin(world: World, random: Random) -> None:
    """Pause a node, start it on another machine with the same disk, and let the first process go on.

    Either the first one keeps the node's lease, and the second one does not start, or it is fenced and ends.
    """
    node = _node(world, random)
    if not node.pause():
        return
    old = node.start_elsewhere()
    assert old is not None
    world.note("paused, and started elsewhere", process=old)
    pause_s = random.choice((random.uniform(0, 12), random.uniform(12, 20), random.uniform(12, 60)))
    world.store.delete_delay_s -= pause_s
    await asyncio.sleep(pause_s)
    world.note("resumed", process=old)
    world.loop.resume(old)
    both_s = 0.0
    for _ in range(60):
        await asyncio.sleep(1)
        if old.dead:
            break
        reachable = world.catalog_faults == CatalogFaults() and not world.network.is_cut(node.host, CATALOG)
        both_s = both_s + 1 if node.node is not None and reachable else 0.0
        if both_s > FENCED_S_MAX:
            raise Violation(f"{old} goes on for {both_s} s after {node.process} has taken its id")
    node.end_others()


async def cut(world: World, random: Random) -> None:
    """Cut a node off one or all of the catalog, the store and the other nodes, not off its clients."""
    node = _node(world, random)
    ends = [CATALOG, STORE, *(other.host for other in world.nodes if other is not node)]
    if random.random() < 0.7:
        ends = [random.choice(ends)]
    for end in ends:
        world.network.cut(node.host, end)
    world.note("cut off", node=node.host, ends=",".join(ends))
    try:
        await asyncio.sleep(random.choice((1.0, 10.0, 40.0)) * random.random())
    finally:
        world.note("connected again", node=node.host)
        for end in ends:
            world.network.join(node.host, end)


async def move(world: World, random: Random) -> None:
    """Order some partitions to another node, as an operator does; at times withdraw that at any moment."""
    asked, target = _node(world, random), _node(world, random)
    if asked.node is None:
        return
    places = [
        Place(topic.name, index) for topic in asked.node.serving.topics for index in range(len(topic.info.partitions))
    ]
    chosen = random.sample(places, min(len(places), random.choice((1, 1, 2, 10))))
    wanted = dict.fromkeys(chosen, target.node_id)
    is_withdrawn, pause_s = random.random() < 0.2, random.uniform(0, 0.3)
    world.note("moves ordered", to_node=target.node_id, partitions=", ".join(map(str, chosen)))
    with suppress(OSError, KafkaError, StorageError):
        await asked.ask(lambda node: node.serving.move_requests.request(wanted, MoveReason.OPERATOR), COMMAND_S)
        if is_withdrawn:
            await asyncio.sleep(pause_s)
            await asked.ask(lambda node: node.serving.move_requests.cancel(chosen), COMMAND_S)
            world.note("moves withdrawn")


async def drain(world: World, random: Random) -> None:
    """Drain a node for a while."""
    asked, node_id = _node(world, random), _node(world, random).node_id
    world.note("drain begins", node=node_id)
    with suppress(OSError, KafkaError, StorageError):
        await asked.ask(lambda node: node.serving.move_requests.set_draining(node_id, draining=True), COMMAND_S)
        await asyncio.sleep(random.uniform(0.1, 10))
        await asked.ask(lambda node: node.serving.move_requests.set_draining(node_id, draining=False), COMMAND_S)
        world.note("drain ends", node=node_id)


async def parent_ends(world: World, random: Random) -> None:
    """End all processes, and start them together: their parent stops, all are killed, or the power is cut."""
    how = random.choice(("stop", "kill", "power"))
    world.note("all processes end", how=how)
    try:
        for node in random.sample(world.nodes, len(world.nodes)):
            if how == "stop":
                node.stop_with_all()
            elif how == "kill":
                node.kill(restart=False)
            else:
                node.power_cut(restart=False)
        for _ in range(int(STOP_S_MAX / STOP_POLL_S)):
            if all(node.process is None or node.process.dead for node in world.nodes):
                break
            await asyncio.sleep(STOP_POLL_S)
    finally:
        world.note("all processes are started")
        for node in world.nodes:
            node.kill()  # what has not stopped until then, as a service manager does
            node.start()


async def end_drains(world: World) -> None:
    """Let all nodes take partitions again, when all faults are over."""
    for asked in world.nodes:
        await asked.until_commands_end()
    for drained in world.nodes:
        ended = len(world.nodes) == 1
        while not ended:
            with suppress(OSError, KafkaError, StorageError):
                await drained.ask(
                    lambda node: node.serving.move_requests.set_draining(node.serving.node_id, draining=False),
                    COMMAND_S,
                )
                ended = True
            await asyncio.sleep(0.1)


FAULTS: Mapping[str, tuple[Fault, float]] = {
    "kill": (kill, 25.0),
    "power": (power, 40.0),
    "stop": (stop, 40.0),
    "pause": (pause, 20.0),
    "store_errors": (store_errors, 25.0),
    "store_away": (store_away, 60.0),
    "store_slow": (store_slow, 40.0),
    "catalog_errors": (catalog_errors, 25.0),
    "catalog_away": (catalog_away, 60.0),
    "resets": (resets, 15.0),
    "partition": (partition, 40.0),
    "clock": (clock, 30.0),
    "disk_errors": (disk_errors, 60.0),
    "store_rot": (store_rot, 40.0),
    "log_rot": (log_rot, 30.0),
    "twin": (twin, 40.0),
}
"""All kinds, with the mean time between two of a kind in seconds, in a run of `FAULTS_PER_S` or longer."""
NEWER_FAULTS: Mapping[str, tuple[Fault, float]] = {"log_stuck": (log_stuck, 40.0)}
"""Kinds that a seed chooses after everything else, so that seeds stay what they were."""
TABLE_FAULTS: Mapping[str, tuple[Fault, float]] = {
    "table_answers": (table_answers, 25.0),
    "registry_away": (registry_away, 40.0),
}
"""Kinds that choices of their own decide about, for the same reason."""
CLUSTER_FAULTS: Mapping[str, tuple[Fault, float]] = {"cut": (cut, 20.0), "move": (move, 3.0), "drain": (drain, 30.0)}
"""Kinds that need several nodes."""
PROCESS_FAULTS: Mapping[str, tuple[Fault, float]] = {"parent_ends": (parent_ends, 30.0)}
"""Kinds of nodes that are processes of one machine."""
FAULTS_PER_S = 60.0


def _node(world: World, random: Random) -> SimNode:
    return random.choice(world.nodes)


async def _writing(node: SimNode) -> None:
    """Wait, for a few seconds, until the node's log has several writes under way."""
    for _ in range(WRITING_TRIES):
        serving = node.node
        if serving is not None and serving.wal.snapshot().in_flight >= WRITES_UNDER_WAY:
            return
        await asyncio.sleep(WRITING_S)


async def keep(world: World, kind: str, seconds: float) -> None:
    """Let faults of a kind happen until the task is cancelled, in a short run as many as in one of a minute."""
    random = world.random(f"fault/{kind}")
    fault, mean_s = {**FAULTS, **NEWER_FAULTS, **TABLE_FAULTS, **CLUSTER_FAULTS, **PROCESS_FAULTS}[kind]
    mean_s *= min(1.0, seconds / FAULTS_PER_S)
    while True:
        await asyncio.sleep(random.expovariate(1 / mean_s))
        world.count(kind)
        await fault(world, random)
