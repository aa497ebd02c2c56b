"""The planted bugs, and within how many seeds each is found."""

from collections.abc import Sequence

from tests.simulation.planted.balancing import BALANCING
from tests.simulation.planted.cluster import CLUSTER
from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.share import SHARE
from tests.simulation.planted.streams import STREAMS
from tests.simulation.planted.symptoms import (
    CLEANED,
    CORRUPT,
    DELETED,
    EXPIRED,
    FENCED,
    GROWN,
    LEADER,
    LOST,
    MULTIPLIED,
    ORDER,
    REPLACED,
    SEQUENCE,
    STOPPED,
    TWO_CLUSTERS,
    UNDECIDED,
    UNREADABLE,
    having,
    without,
)
from tests.simulation.planted.table_topics import TABLE_TOPICS
from tests.simulation.planted.tables import TABLES
from tests.simulation.planted.tails import FOLLOWED

PLANTED: Sequence[Planted] = (
    Planted(
        "ack-before-flush",
        "the log acks a block when it hands it to the device",
        [
            Edit(
                "anabranch.wal.block_writer",
                "        self._writing.extend(blocks)\n",
                "        self._writing.extend(blocks)\n"
                "        get_running_loop().call_soon(lambda: [block.durable.complete() for block in blocks])\n",
            ),
            Edit(
                "anabranch.wal.block_writer",
                "            self._source.block_durable(block)\n            block.durable.complete()\n",
                "            self._source.block_durable(block)\n",
            ),
        ],
        found_by=LOST,
        seeds=50,
        adapt=having("kill", "power"),
    ),
    Planted(
        "trim-early",
        "the log is trimmed one block early",
        [
            Edit(
                "anabranch.wal.log",
                "            live.popleft()\n\n    async def reset",
                "            live.popleft()\n"
                "            if live and live[0].last_offset > self._trim_offset:\n"
                "                live.popleft()\n"
                "                break\n\n    async def reset",
            )
        ],
        found_by=LOST,
        seeds=20,
        adapt=having("kill"),
    ),
    Planted(
        "sequence-window",
        "the oldest of the last five batches of a producer is not recognised",
        [
            Edit(
                "anabranch.broker.kafka.partitions.producers",
                "for batch in reversed(entry.batches):",
                "for batch in reversed(entry.batches[1:]):",
            )
        ],
        found_by=SEQUENCE,
        seeds=100,
        adapt=having("resets", "kill", idempotent=2, partitions=1),
    ),
    Planted(
        "producers-not-replayed",
        "replay forgets the batches of producers",
        [
            Edit(
                "anabranch.broker.kafka.partitions.replay",
                "        self.producers.update(",
                "        if not now_ms: self.producers.update(",
            )
        ],
        found_by=SEQUENCE,
        seeds=20,
        adapt=having("kill", idempotent=2),
    ),
    Planted(
        "stable-offset",
        "the last stable offset is the high watermark",
        [
            Edit(
                "anabranch.broker.kafka.partitions.transactions",
                "            end_offset = min(end_offset, next(iter(self._open.values())).first_offset)\n",
                "            pass\n",
            )
        ],
        found_by=UNDECIDED,
        seeds=10,
        adapt=having(transactional=2, readers=2),
    ),
    Planted(
        "aborted-not-recovered",
        "a snapshot loses the aborted transactions",
        [
            Edit(
                "anabranch.broker.kafka.partitions.transactions",
                "            state._aborted.append(AbortedEntry(*_ABORTED.unpack_from(data, position)))\n",
                "",
            )
        ],
        found_by=UNDECIDED,
        seeds=20,
        adapt=having("kill", transactional=2),
    ),
    Planted(
        "response-order",
        "responses leave in the order in which they are complete",
        [
            Edit(
                "anabranch.broker.node.net.request_order",
                "        elif self._is_ordered:\n            return ()\n",
                "",
            )
        ],
        found_by=ORDER,
        seeds=20,
        adapt=having("resets", idempotent=2),
    ),
    Planted(
        "evict-before-commit",
        "the log cache evicts what is not committed",
        [
            Edit(
                "anabranch.s3stream.append.log_cache",
                "        self.sealed_bytes += block.size_bytes\n        return block\n",
                "        self.sealed_bytes += block.size_bytes\n        self._committed.append(block)\n"
                "        return block\n",
            ),
            Edit(
                "anabranch.s3stream.append.log_cache",
                "        self._committed.append(block)\n        for",
                "        for",
            ),
        ],
        found_by=LOST,
        seeds=20,
        adapt=having("store_away"),
    ),
    Planted(
        "delete-at-once",
        "a compacted object is deleted at once",
        [
            Edit(
                "anabranch.s3stream.catalog.objects",
                "destroy_if_dead(connection, commit.inputs, commit.delete_after_ms)",
                "destroy_if_dead(connection, commit.inputs, 0)",
            )
        ],
        found_by=DELETED,
        seeds=20,
        adapt=without("clock"),
    ),
    Planted(
        "committed-reads",
        "a READ_COMMITTED fetch goes up to the high watermark",
        [
            Edit(
                "anabranch.broker.kafka.partitions.partition",
                "        stable = self.transactions.last_stable_offset(self.stream.confirmed_offset)\n",
                "        stable = self.stream.confirmed_offset\n",
            )
        ],
        found_by=UNDECIDED,
        seeds=10,
        adapt=having(transactional=2, readers=2),
    ),
    Planted(
        "window-not-durable",
        "a window of the log is used before its bound is in the header",
        [
            Edit(
                "anabranch.wal.block_writer",
                "            self.window_bytes_wanted = bound\n            self._stats.window_growths += 1\n"
                "            self._header.request().add_done_callback(self._on_widened)\n",
                "            self.window.grow(bound)\n            get_running_loop().call_soon(self.pump)\n",
            )
        ],
        found_by=UNREADABLE,
        seeds=50,
        adapt=having("kill", "power", window_bytes=4 << 10, idempotent=4, seconds=60.0),
    ),
    Planted(
        "commit-before-object",
        "an upload is committed before its object is in the store",
        [
            Edit(
                "anabranch.s3stream.object.writer",
                "            await self._store.put(self._key, parts, writer_id=self._writer_id, pace=self._pace)\n",
                "            put = self._store.put(self._key, parts, writer_id=self._writer_id, pace=self._pace)\n"
                "            put = asyncio.get_running_loop().create_task(put)\n"
                "            put.add_done_callback(lambda task: task.cancelled() or task.exception())\n",
            )
        ],
        found_by=UNREADABLE,
        seeds=20,
        adapt=having("kill", "store_errors"),
    ),
    Planted(
        "block-dropped",
        "a joined block of a compaction loses a part",
        [
            Edit(
                "anabranch.s3stream.object.format",
                "    for _, data in blocks:\n        view",
                "    for _, data in blocks[:1] + blocks[2:]:\n        view",
            ),
            Edit("anabranch.compaction.proof", " or size != found.size_bytes:", ":"),
        ],
        found_by=UNREADABLE,
        seeds=20,
        adapt=having(),
    ),
    Planted(
        "block-repeated",
        "a joined block of a compaction repeats a part",
        [
            Edit(
                "anabranch.s3stream.object.format",
                "    for _, data in blocks:\n        view",
                "    for _, data in blocks[:1] + blocks:\n        view",
            ),
            Edit("anabranch.compaction.proof", " or size != found.size_bytes:", ":"),
        ],
        found_by=UNREADABLE,
        seeds=20,
        adapt=having(),
    ),
    Planted(
        "offset-of-32-bits",
        "an offset in a record of the log has 32 bits",
        [
            Edit(
                "anabranch.s3stream.append.stream",
                "stream_id, self.epoch, base, end, timestamp)",
                "stream_id, self.epoch, base % 2**32, end % 2**32, timestamp)",
            )
        ],
        found_by=UNREADABLE,
        seeds=20,
        adapt=having("kill", first_offset=2**32 - 30),
    ),
    Planted(
        "index-before-data",
        "the index of an object is made before its last block",
        [
            Edit(
                "anabranch.s3stream.object.writer",
                "        self._seal_block()\n        if not self._entries:\n",
                "        if not self._entries:\n            self._seal_block()\n        if not self._entries:\n",
            ),
            Edit(
                "anabranch.s3stream.object.writer",
                "        size = self._position + sum(len(part) for part in trailer)\n",
                "        self._seal_block()\n        size = self._position + sum(len(part) for part in trailer)\n",
            ),
        ],
        found_by=UNREADABLE,
        seeds=20,
        adapt=having(),
    ),
    Planted(
        "block-crc",
        "a wrong checksum of a block is ignored",
        [Edit("anabranch.s3stream.object.format", "    if found != entry.crc:\n", "    if False:\n")],
        found_by=CORRUPT,
        seeds=50,
        adapt=having("store_rot", readers=1),
    ),
    Planted(
        "log-crc",
        "a wrong checksum of a record in the log is ignored",
        [
            Edit(
                "anabranch.wal.recovery",
                "            if crc32c(content) != body_crc:\n                break\n            last",
                "            last",
            )
        ],
        found_by=CORRUPT,
        seeds=50,
        adapt=having("log_rot", readers=1, seconds=60.0),
    ),
    Planted(
        "log-fence",
        "the log does not notice that another process has claimed it",
        [
            Edit(
                "anabranch.wal.owner",
                "copy.node_id != own.node_id or copy.node_epoch > own.node_epoch:",
                "copy.node_id != own.node_id:",
            ),
            Edit("anabranch.wal.owner", "        elif copy.node_epoch < own.node_epoch:\n", "        elif False:\n"),
        ],
        found_by=LOST,
        seeds=50,
        adapt=having("twin", idempotent=2, seconds=60.0),
    ),
    Planted(
        "catalog-fences",
        "the catalog checks the epoch of no node and no stream",
        [
            Edit("anabranch.s3stream.catalog.rows", "    if found.epoch != node.epoch:\n", "    if False:\n"),
            Edit("anabranch.s3stream.catalog.plans", "    if shown[stream_id] != epoch:\n", "    if False:\n"),
        ],
        found_by=FENCED,
        seeds=50,
        adapt=having("twin", idempotent=2, seconds=60.0),
    ),
    Planted(
        "fence-collected",
        "the epoch that fences a producer is forgotten",
        [
            Edit(
                "anabranch.broker.kafka.transactions.state_machine",
                "producer.epoch != state.epoch or",
                "producer.epoch > state.epoch or",
            )
        ],
        found_by=FENCED,
        seeds=10,
        adapt=having(transactional=2),
    ),
    Planted(
        "end-judged-too-early",
        "the producer is judged while the markers of its last transaction are written",
        [
            Edit(
                "anabranch.broker.kafka.transactions.coordinator",
                "            if await self._wait_idle(entry):\n                continue\n            now_ms",
                "            now_ms",
            ),
            Edit(
                "anabranch.broker.kafka.transactions.state_machine",
                "raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)\n    return action",
                "raise KafkaError(ErrorCode.PRODUCER_FENCED)\n    return action",
            ),
        ],
        found_by=REPLACED,
        seeds=10,
        adapt=having(restless=1),
    ),
    Planted(
        "time-out-fences",
        "the abort of a transaction that has timed out takes an epoch that its producer cannot get",
        [
            Edit(
                "anabranch.broker.kafka.transactions.state_machine",
                "    return _prepare(state, commit=False, version=VERSION_2,",
                "    state = replace(state, epoch=state.epoch + 1)\n"
                "    return _prepare(state, commit=False, version=VERSION_2,",
            )
        ],
        found_by=REPLACED,
        seeds=20,
        adapt=having(restless=1),
    ),
    Planted(
        "markers-cleaned",
        "a marker is cleaned while data of its transaction is left",
        [
            Edit(
                "anabranch.compaction.cleaning.transactions",
                "        return not was_seen and listed is None\n",
                "        return True\n",
            ),
            Edit(
                "anabranch.compaction.cleaning.cleaner",
                "        if info.marker is None:\n            return self._emptied",
                "        if info.marker is not None:\n            return self._emptied",
            ),
        ],
        found_by=CLEANED,
        seeds=50,
        adapt=having(keyed=1, readers=1),
    ),
    Planted(
        "retention",
        "retention goes past the high watermark",
        [
            Edit(
                "anabranch.broker.kafka.partitions.retention",
                "    if new_start <= start:\n",
                "    new_start = stream.next_offset if new_start > start else start\n    if new_start <= start:\n",
            ),
            Edit(
                "anabranch.s3stream.append.stream",
                "        if new_start > self.confirmed_offset:\n",
                "        if False:\n",
            ),
        ],
        found_by=EXPIRED,
        seeds=20,
        adapt=having(expiring=1, readers=1),
    ),
    Planted(
        "commit-twice",
        "a repeated commit of an upload is not recognised",
        [
            Edit(
                "anabranch.s3stream.catalog.plans",
                "    return bool(ids) and all(key in found and found[key].committed_ms > 0 for key in ids)\n",
                "    return not ids\n",
            ),
            Edit(
                "anabranch.s3stream.upload.uploader",
                "        return any(info.end_offset >= ends[info.stream_id] for info in own)\n",
                "        return not own\n",
            ),
        ],
        found_by=STOPPED,
        seeds=50,
        adapt=having("catalog_errors"),
    ),
    Planted(
        "growth-twice",
        "a repeated growth of a topic adds partitions twice",
        [Edit("anabranch.s3stream.catalog.topics", "count, total - count, factor", "count, 1, factor")],
        found_by=GROWN,
        seeds=100,
        adapt=having("catalog_errors", churns=3, seconds=60.0),
    ),
    Planted(
        "leader-named",
        "a leader is named before it serves",
        [
            Edit(
                "anabranch.broker.api.handlers.metadata", "leader_id=NO_LEADER if", "leader_id=asked.serving.node_id if"
            ),
            Edit(
                "anabranch.broker.kafka.topics.manager",
                "            await self._open([(grown, each) for each in added if self._opens(each)])\n"
                "            topic.info, topic.partitions = "
                "replace(info, configs=topic.info.configs), grown.partitions\n",
                "            topic.info, topic.partitions = "
                "replace(info, configs=topic.info.configs), grown.partitions\n"
                "            await self._open([(grown, each) for each in added if self._opens(each)])\n",
            ),
        ],
        found_by=LEADER,
        seeds=100,
        adapt=having("catalog_errors", churns=3, seconds=60.0),
    ),
    Planted(
        "stall-ignored",
        "a log that acknowledges nothing takes what clients send again and again",
        [Edit("anabranch.s3stream.append.stream", "        if self._admission.is_stalled:\n", "        if False:\n")],
        found_by=MULTIPLIED,
        seeds=20,
        adapt=having("log_stuck", idempotent=2),
    ),
    Planted(
        "claim-ignored",
        "a node uses a store that another catalog has claimed",
        [
            Edit(
                "anabranch.broker.cluster.membership.join",
                "        await claim_store(store, cluster, catalog.identity())\n",
                "        pass\n",
            )
        ],
        found_by=TWO_CLUSTERS,
        seeds=20,
        adapt=having(rival=True),
    ),
    *CLUSTER,
    *FOLLOWED,
    *BALANCING,
    *SHARE,
    *STREAMS,
    *TABLES,
    *TABLE_TOPICS,
)
