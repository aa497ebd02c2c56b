"""Planted bugs of tables: rows, files and snapshots that are not those of the topic."""

from collections.abc import Sequence

from tests.simulation.planted.patch import Edit, Planted
from tests.simulation.planted.symptoms import (
    TABLE_BEHIND,
    TABLE_DELETED,
    TABLE_EXPIRED,
    TABLE_FILES,
    TABLE_MANIFESTS,
    TABLE_ROWS,
    UNDECIDED,
    having,
)

COMMITTER = "anabranch.tables.upkeep.committer"
DATA_FILES = "anabranch.tables.upkeep.data_files"
COMMIT = "anabranch.tables.upkeep.commit"
PLAN = "anabranch.tables.upkeep.plan"
TABLE_PLANS = "anabranch.s3stream.catalog.table_plans"
TABLE_ROWS_OF_CATALOG = "anabranch.s3stream.catalog.table_rows"
UNCHECKED = (
    Edit(TABLE_PLANS, "        if twice_there:\n", "        if False:\n"),
    Edit(TABLE_PLANS, "    if commit.version != table.version:\n", "    if False:\n"),
)
"""A catalog that believes committers which offsets are new, and what they replace."""

TABLES: Sequence[Planted] = (
    Planted(
        "table-aborted-rows",
        "the rows of aborted transactions are in a table",
        [
            Edit(
                DATA_FILES,
                "wanted.transactions.aborted_between(*bounds)",
                "()",
            )
        ],
        found_by=UNDECIDED,
        seeds=10,
        adapt=having(transactional=2, tables=1),
    ),
    Planted(
        "table-past-stable",
        "rows past the last stable offset are in a table",
        [
            Edit(
                "anabranch.tables.transactions",
                "    stable = max(min([stream.end_offset, *begun]), stream.start_offset)\n",
                "    stable = stream.end_offset if begun is not None else 0\n",
            )
        ],
        found_by=UNDECIDED,
        seeds=10,
        adapt=having(transactional=2, tables=1),
    ),
    Planted(
        "table-file-twice",
        "a table has an offset in two files",
        [
            *UNCHECKED,
            Edit(
                PLAN,
                "        start = max(self.table.end_offset, self.stream.start_offset)\n",
                "        start = max(self.table.end_offset - 1, self.stream.start_offset)\n",
            ),
        ],
        found_by=TABLE_ROWS,
        seeds=10,
        adapt=having(idempotent=2, tables=1),
    ),
    Planted(
        "table-file-left-out",
        "a snapshot has no manifest entry of one of its files",
        [Edit(COMMIT, " for file, made in draft.sent],\n", " for file, made in draft.sent[1:]],\n")],
        found_by=TABLE_FILES,
        seeds=10,
        adapt=having(idempotent=2, tables=1),
    ),
    Planted(
        "table-file-in-use-deleted",
        "a file is deleted once the current snapshot does not need it",
        [
            Edit(
                TABLE_ROWS_OF_CATALOG,
                "        table_files.c.removed <= plan.oldest,\n",
                "        table_files.c.removed <= plan.version,\n",
            ),
            Edit(
                TABLE_ROWS_OF_CATALOG,
                "table_files.c.deadline_ms <= now_ms, ~named)",
                "table_files.c.deadline_ms <= now_ms)",
            ),
        ],
        found_by=f"{TABLE_DELETED}|{TABLE_FILES}",
        seeds=20,
        adapt=having(idempotent=2, tables=1, snapshot_retention_ms=60_000, delete_delay_ms=20_000, seconds=60.0),
    ),
    Planted(
        "table-expiry-early",
        "a snapshot expires when another one replaces it",
        [Edit(TABLE_PLANS, "kept[1].committed_ms <= now_ms - retention_ms", "kept[1].committed_ms <= now_ms")],
        found_by=TABLE_EXPIRED,
        seeds=10,
        adapt=having(idempotent=2, tables=1, snapshot_retention_ms=60_000),
    ),
    Planted(
        "table-wrong-blocks",
        "the columns of a file are those of another partition's blocks",
        [
            Edit(
                "anabranch.tables.upkeep.source",
                "page = await self._catalog.find_ranges(stream_id, at, end, limit=RANGES_PAGE)",
                "page = await self._catalog.find_ranges(stream_id ^ 1, at, end, limit=RANGES_PAGE)",
            )
        ],
        found_by="sent to",
        seeds=20,
        adapt=having(idempotent=2, tables=1, partitions=2),
    ),
    Planted(
        "table-manifest-kept",
        "the manifest list of the snapshot before stays in the catalog for good",
        [Edit(COMMIT, "            gone.append(view.manifests[-1].file_id)", "            gone = gone")],
        found_by=TABLE_MANIFESTS,
        seeds=10,
        adapt=having(idempotent=2, tables=1),
    ),
    Planted(
        "table-join-loses-row",
        "the last row of a file is lost when it is joined",
        [
            Edit(
                "anabranch.tables.joins",
                "rows.slice(int(inside[0]), int(inside.size))",
                "rows.slice(int(inside[0]), int(inside.size) - 1)",
            )
        ],
        found_by=TABLE_ROWS,
        seeds=10,
        adapt=having(idempotent=2, tables=1),
    ),
    Planted(
        "table-commit-made-anew",
        "a commit without an answer is sent again as one of the next version",
        [
            *UNCHECKED,
            Edit(
                COMMIT,
                '                log.warning("the commit of a table waits for the catalog", reason=str(error))\n',
                "                commit = type(commit)(**{name: getattr(commit, name) for name in commit.__slots__}"
                " | {'version': commit.version + 1, 'snapshot_id': commit.snapshot_id + (commit.snapshot_id > 0)})\n",
            ),
            Edit(
                TABLE_PLANS,
                "        if info is not None and info.kind is TableFileKind.METADATA and info.committed_ms:\n",
                "        if False:\n",
            ),
            Edit(TABLE_PLANS, "    if info.state is not ObjectState.PREPARED:\n", "    if False:\n"),
        ],
        found_by=f"{TABLE_ROWS}|{TABLE_FILES}|{TABLE_MANIFESTS}|{TABLE_BEHIND}",
        seeds=20,
        adapt=having("table_answers", idempotent=2, tables=1, seconds=30.0),
    ),
    Planted(
        "table-deleted-rows-stay",
        "rows that DeleteRecords has removed from the topic stay in the table",
        [
            Edit(
                PLAN,
                "lambda file: file.end_offset <= start, each.files",
                "lambda file: file.end_offset <= 0 * start, each.files",
            ),
            Edit(PLAN, "file is not None and (file.start_offset < each.deleted_offset or", "False and ("),
        ],
        found_by=TABLE_BEHIND,
        seeds=20,
        adapt=having(idempotent=2, tables=1, deleters=2, seconds=60.0),
    ),
    Planted(
        "table-cleaned-rows-stay",
        "rows that log compaction has removed from the topic stay in the table",
        [Edit(COMMITTER, "        if self.topic.is_compacted:\n", "        if False:\n")],
        found_by=TABLE_ROWS,
        seeds=20,
        adapt=having(keyed=2, tables=1, seconds=60.0),
    ),
)
