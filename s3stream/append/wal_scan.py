"""Reads the WAL at the start of the engine and plans its recovery: the IO around `RecoveryPlanner`.

A log may hold millions of small records, and the engine may be one of a node that serves others, or that only lives as
long as it beats: other tasks get their turns all the while.
"""

import asyncio

from anabranch.s3stream.append.recovery import RecoveryPlan, RecoveryPlanner, check_streams_known
from anabranch.s3stream.append.wal_record import WalRecord, decode_record
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.model import NodeIdentity, StreamInfo, StreamOwner
from anabranch.s3stream.tasks import STEPS_PER_TURN, Turns
from anabranch.wal.interface import WriteAheadLog

STREAMS_PER_LOOKUP = 1000
"""Streams per catalog look-up."""


async def scan_wal(wal: WriteAheadLog, catalog: Catalog, node: NodeIdentity) -> tuple[StreamOwner, RecoveryPlan]:
    """Recover the WAL and sort its records by the catalog's streams; returns also what may own streams with it.

    Raises UnknownStreams when the WAL and the catalog do not belong together, WalRecordError, WalError, CatalogError.
    """
    records: list[WalRecord] = []
    found: set[int] = set()
    async for each in wal.recover():
        record = decode_record(each.offset, each.body)
        records.append(record)
        found.add(record.batch.stream_id)
        if len(records) % STEPS_PER_TURN == 0:
            await asyncio.sleep(0)
    ids = sorted(found)
    infos: dict[int, StreamInfo] = {}
    for at in range(0, len(ids), STREAMS_PER_LOOKUP):
        infos.update(await catalog.get_streams(ids[at : at + STREAMS_PER_LOOKUP]))
    # After the look-ups, so that a stream created meanwhile counts as known.
    next_stream_id = await catalog.next_stream_id()
    if ids and ids[-1] >= next_stream_id:
        check_streams_known(records, next_stream_id)
    owner = StreamOwner(*node, wal.wal_id)
    planner = RecoveryPlanner(infos, owner)
    async for some in Turns().pieces(records):
        planner.add(some)
    return owner, planner.plan()
