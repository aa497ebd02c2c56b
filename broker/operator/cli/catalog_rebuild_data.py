"""Plan and result of a catalog's rebuild, for JSON and YAML."""

from collections import Counter
from typing import Any

from anabranch.broker.cluster.membership.rebuild import BACKUP, CatalogRebuild
from anabranch.s3stream.catalog.values import WalState
from anabranch.s3stream.maintain.rebuild_read import RebuildReader
from anabranch.s3stream.maintain.rebuild_tables import rows_left


def partition_names(work: CatalogRebuild) -> dict[int, str]:
    """Return the partition of each stream, by stream id."""
    state = work.manifest.state
    names = {key: f"recovered-stream-{key}-0" for key in work.plan.new_streams}
    streams = [(topic.name, topic.stream_ids) for topic in state.topics]
    streams += [(f"(detached) {topic.name}", topic.stream_ids) for topic in state.detached]
    for name, stream_ids in streams:
        names |= {stream_id: f"{name}-{index}" for index, stream_id in enumerate(stream_ids)}
    return {key: names.get(key, f"stream {key}") for key in work.plan.chains}


def nodes_with_logs(work: CatalogRebuild) -> list[int]:
    """Return the other nodes whose logs may hold records, which their own next starts replay."""
    return sorted({wal.node_id for wal in work.live_logs} - {work.settings.node.node_id})


def plan_data(work: CatalogRebuild) -> dict[str, Any]:
    """Return what a rebuild would do, and what it would lose."""
    plan, state, backup, log = work.plan, work.manifest.state, work.backup, work.log
    used = {piece.object_id for chain in plan.chains.values() for piece in chain.pieces}
    names = partition_names(work)
    return {
        "manifest": None if work.source == BACKUP else work.source,
        "manifest_errors": list(work.manifest_errors),
        "backup": None if backup is None else str(backup.path),
        "state_written_ms": work.manifest.written_ms,
        "topics": len(state.topics),
        "partitions": sum(len(topic.stream_ids) for topic in state.topics),
        "detached_topics": len(state.detached),
        "streams_without_topic": list(plan.new_streams),
        "objects": len(used),
        "object_bytes": sum(work.stored.objects[key].size_bytes for key in used),
        "left_out": {why.name.lower(): count for why, count in Counter(plan.skipped.values()).items()},
        "unreadable": len(work.stored.unreadable),
        "log": None
        if log is None
        else {
            "id": log.wal.wal_id,
            "location": log.wal.location,
            "may_hold_records": log.wal.state is WalState.OPEN,
        },
        "has_loss": plan.has_loss,
        "missing": list(plan.missing),
        "damaged": [{"object": each.object_id, "reason": each.reason} for each in plan.damaged],
        "gaps": [
            {"partition": names[gap.stream_id], "first": gap.start_offset, "end": gap.end_offset} for gap in plan.gaps
        ],
        "not_reached": [
            {
                "partition": names.get(gap.stream_id, f"stream {gap.stream_id}"),
                "first": gap.start_offset,
                "end": gap.end_offset,
            }
            for gap in plan.replaced
        ],
        "rows_in_tables": [
            {
                "table": each.table,
                "partition": names[each.stream_id],
                "first": each.start_offset,
                "end": each.end_offset,
                "keeps": each.keeps,
            }
            for each in rows_left(state, plan.gaps)
        ],
        "rebuilt": None,
    }


def rebuilt_data(work: CatalogRebuild, reader: RebuildReader) -> dict[str, Any]:
    """Return what a rebuild has done."""
    names = partition_names(work)
    return {
        "records": sum(span.record_count for spans in reader.spans.values() for _, span in spans),
        "read_bytes": reader.report.bytes_done,
        "damaged": list(reader.report.damaged),
        "nodes_with_logs": nodes_with_logs(work),
        "partitions": [
            {"partition": names[stream_id], "first": chain.start_offset, "end": chain.end_offset}
            for stream_id, chain in sorted(work.plan.chains.items(), key=lambda item: names[item[0]])
        ],
    }
