"""Reads the WAL at the start of the engine and plans its recovery: the IO around `plan_recovery`."""

from s3stream.append.recovery import RecoveryPlan, plan_recovery
from s3stream.append.wal_record import decode_record
from s3stream.catalog.catalog import Catalog
from s3stream.model import StreamInfo, StreamOwner
from wal.interface import WriteAheadLog

STREAMS_PER_LOOKUP = 1000
"""Streams per catalog look-up."""


async def scan_wal(
    wal: WriteAheadLog, catalog: Catalog, node_id: int, node_epoch: int
) -> tuple[StreamOwner, RecoveryPlan]:
    """Recover the WAL and sort its records by the catalog's streams; returns also what may own streams with it.

    Raises UnknownStreams when the WAL and the catalog do not belong together, WalRecordError, WalError, CatalogError.
    """
    records = [decode_record(record.offset, record.body) async for record in wal.recover()]
    ids = sorted({record.batch.stream_id for record in records})
    infos: dict[int, StreamInfo] = {}
    for at in range(0, len(ids), STREAMS_PER_LOOKUP):
        infos.update(await catalog.get_streams(ids[at : at + STREAMS_PER_LOOKUP]))
    # After the look-ups, so that a stream created meanwhile counts as known.
    next_stream_id = await catalog.next_stream_id()
    owner = StreamOwner(node_id, node_epoch, wal.wal_id)
    return owner, plan_recovery(records, infos, owner, next_stream_id=next_stream_id)
