"""Tables of the catalog, and the steps that bring a database from one version of them to the next.

The same statements run on SQLite and PostgreSQL. Invariants:

- `ranges` holds live ranges only: trimming or deleting a stream deletes its rows, so an object without rows is dead.
- `ranges` is keyed by (stream, end offset). A stream's ranges are disjoint, so their ends are in the order of their
  starts, and the range that holds an offset is the first one that ends past it: one descent of the tree.
- `peak_timestamp_ms` of a range is at least the largest timestamp of the stream up to the range's end, and never falls
  from one range to the next. Timestamps of producers come in any order; this makes "the first range that reaches T" one
  descent as well.
- Several streams may have ranges in one object under the same `source_stream_id`: a clone refers to what its original
  wrote. The object is destroyed with the last range that refers to it, of either stream.
- The streams of a detached topic stay in `streams` and `ranges`, so that their objects are kept.
- The log that a node acknowledges into has a row in `wals`, OPEN, before the first acknowledgement.
- `wal_id` of a stream names the one log that may hold records past the stream's end. It changes only with the stream's
  owner, and a stream without owner has none: its next opener may assign the offsets from its end on.
- A node whose log is FENCED is dead: its epoch belongs to the recoverer, who acts for it. Its streams have other
  leaders, but no other owner until the log holds nothing past their ends.
- Rows that other nodes must see carry the number of their last change, from the counter `change`: a node that has seen
  all changes up to a number reads the rows with larger ones. Of deleted rows only the number of the last deletion is
  kept (`last_deletion`), as for configs (`last_config`).
- A row in `moves` is an order: the stream's leader hands the stream to the node. With a `failure` it is no longer
  carried out, and only kept for display. A change of an order is a change of its stream.
- `preferred` of a stream is its preferred leader, set at creation and by operators' orders, not when a node dies or
  drains.
- `replicas` of a stream are the nodes that serve reads of it and lead it rather than others, `preferred` first; empty:
  whichever node leads it, alone. They hold no data of their own.
- Ids come from `counters` and are never reused, even after the row that they named was deleted.
- `TABLES.md` describes the tables of topics, whose names begin with `table`.
- `schema_version` has the cluster's *level*: nodes of a version that does not know it refuse to start. Steps above the
  level, in `schema_additions`, are there, but not used. `docs/adr/0046-levels-of-a-cluster.md` says why.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

METADATA: Final = MetaData()

cluster = Table(
    "cluster",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("catalog_id", Text),  # 32 hex digits, unique to this catalog; empty: none yet
    Column("secret", Text),  # 64 hex digits, known to the nodes of this catalog only; empty: none yet
)

counters = Table("counters", METADATA, Column("name", Text, primary_key=True), Column("next", BigInteger))

nodes = Table(
    "nodes",
    METADATA,
    Column("node_id", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger),
    Column("host", Text),
    Column("port", Integer),
    Column("lease_until_ms", BigInteger),  # 0: ended by a clean stop, negative: the registration was removed
    Column("lease_ms", BigInteger),  # its duration; 0: unknown
    Column("host_name", Text),  # of the machine of the process that registered last
    Column("pid", BigInteger),
    Column("lock_id", Text),  # names the lock that this process holds until it ends; empty: unknown
    Column("beat", BigInteger),  # grows while the process lives
    Column("rack", Text),
    Column("internal_host", Text),  # address for other nodes; empty: none
    Column("internal_port", Integer),
    Column("draining", Integer),  # 1: it gets no partitions; until its next start
    Column("beat_ms", BigInteger),  # within which the next beat is due; 0: unknown
    Column("listeners", Text),  # a JSON array of [name, host, port]: addresses for clients; empty: it never registered
    Column("level", Integer),  # highest level that its program knows, if it has registered with `level_epoch`
    Column("level_epoch", BigInteger),
)

schema_version = Table("schema_version", MetaData(), Column("version", Integer, primary_key=True, autoincrement=False))
"""Levels up to that of the cluster. Not in `METADATA`: backups have the version in their header."""

schema_additions = Table(
    "schema_additions", MetaData(), Column("version", Integer, primary_key=True, autoincrement=False)
)
"""Steps that were applied above the level at that time."""

wals = Table(
    "wals",
    METADATA,
    Column("wal_id", Text, primary_key=True),  # 16 hex digits: the log id in its header
    Column("node_id", BigInteger),
    Column("node_epoch", BigInteger),  # of its last claim
    Column("kind", Text),  # 'device'
    Column("location", Text),  # path on the node's machine
    Column("state", Integer),
    Column("seen_ms", BigInteger),  # last change of this row
    Column("takeover", Text),  # who else may open it
    Column("recoverer", BigInteger),  # node that recovers it, or -1
    Column("recoverer_epoch", BigInteger),
)

topics = Table(
    "topics",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("topic_id", LargeBinary),
    Column("internal", Integer),
    Column("configs", Text),  # a JSON object of texts
    Column("changed", BigInteger),  # number of the last change of the row; 0: before changes were numbered
)

partitions = Table(
    "partitions",
    METADATA,
    Column("topic", Text, primary_key=True),
    Column("idx", Integer, primary_key=True),
    Column("stream_id", BigInteger),
)

streams = Table(
    "streams",
    METADATA,
    Column("stream_id", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger),
    Column("node_id", BigInteger),  # node that has it open, or -1
    Column("leader", BigInteger),  # node that serves it, or will
    Column("leader_epoch", BigInteger),
    Column("start_offset", BigInteger),
    Column("end_offset", BigInteger),
    Column("peak_timestamp_ms", BigInteger),
    Column("snapshot", LargeBinary),
    Column("wal_id", Text),  # log that may hold records past `end_offset`; empty: none, or the owner's of before
    Column("changed", BigInteger),  # number of the last change of owner, leader or order
    Column("preferred", BigInteger),  # preferred leader, or -1
    Column("deleted_offset", BigInteger),  # largest start that DeleteRecords asked for; 0: none
    Column("replicas", Text),  # node ids with commas between them, the preferred leader first; empty: one, the leader
)

moves = Table(
    "moves",
    METADATA,
    Column("stream_id", BigInteger, primary_key=True, autoincrement=False),
    Column("to_node", BigInteger),  # node that is to lead the stream
    Column("reason", Integer),
    Column("asked_ms", BigInteger),
    Column("failure", Text),  # why it is not carried out; empty: it is, or will be
    Column("replicas", Text),  # those of the stream once the node leads it, as in `streams`; empty: it alone
)

objects = Table(
    "objects",
    METADATA,
    Column("object_id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Integer),
    Column("state", Integer),
    Column("store", Text),
    Column("size_bytes", BigInteger),
    Column("node_id", BigInteger),
    Column("writer_id", Text),
    Column("deadline_ms", BigInteger),
    Column("committed_ms", BigInteger),  # 0: never committed
    Column("upload_id", Text),
    Column("oldest_data_ms", BigInteger),  # first commit of the oldest data in it; 0 until it is committed
    Column("cleaned", Integer),  # 1: written by log compaction
)

ranges = Table(
    "ranges",
    METADATA,
    Column("stream_id", BigInteger, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("object_id", BigInteger),
    Column("kind", Integer),  # of the object: lets stream objects be counted without a join
    Column("start_offset", BigInteger),
    Column("record_count", BigInteger),
    Column("size_bytes", BigInteger),
    Column("max_timestamp_ms", BigInteger),
    Column("peak_timestamp_ms", BigInteger),
    Column("source_stream_id", BigInteger),  # stream id in the object; 0: the same stream
)

configs = Table(
    "configs",
    METADATA,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("entries", Text),  # a JSON object of texts, never empty
)

acls = Table(
    "acls",
    METADATA,
    Column("acl_id", Text, primary_key=True),  # digest of the others, which may be long
    Column("resource_type", Integer),
    Column("resource_name", Text),
    Column("pattern_type", Integer),
    Column("principal", Text),
    Column("host", Text),
    Column("operation", Integer),
    Column("permission", Integer),
)

delegation_tokens = Table(
    "delegation_tokens",
    METADATA,
    Column("token_id", Text, primary_key=True),
    Column("owner", Text),  # principals in Kafka's notation
    Column("requester", Text),
    Column("renewers", Text),  # a JSON array of principals
    Column("issued_ms", BigInteger),
    Column("expires_ms", BigInteger),
    Column("max_ms", BigInteger),  # it expires at this time at the latest, however often it is renewed
)

detached_topics = Table(
    "detached_topics",
    METADATA,
    Column("topic_id", LargeBinary, primary_key=True),
    Column("name", Text),
    Column("internal", Integer),
    Column("configs", Text),
    Column("detached_ms", BigInteger),
)

detached_partitions = Table(
    "detached_partitions",
    METADATA,
    Column("topic_id", LargeBinary, primary_key=True),
    Column("idx", Integer, primary_key=True),
    Column("stream_id", BigInteger),
)

tables = Table(
    "tables",
    METADATA,
    Column("table_id", LargeBinary, primary_key=True),
    Column("topic_id", LargeBinary),
    Column("name", Text),
    Column("store", Text),
    Column("location", Text),  # prefix of the keys of its files
    Column("retention", Integer),
    Column("options", Text),  # a JSON object of texts
    Column("created_ms", BigInteger),
    Column("version", BigInteger),  # number of its commits
    Column("metadata_file", BigInteger),  # 0: none yet
    Column("snapshot_id", BigInteger),  # 0: none yet
)

table_schemas = Table(
    "table_schemas",
    METADATA,
    Column("table_id", LargeBinary, primary_key=True),
    Column("schema_id", Integer, primary_key=True, autoincrement=False),
    Column("content", Text),
)

table_partitions = Table(
    "table_partitions",
    METADATA,
    Column("table_id", LargeBinary, primary_key=True),
    Column("idx", Integer, primary_key=True, autoincrement=False),
    Column("start_offset", BigInteger),
    Column("end_offset", BigInteger),
)

table_snapshots = Table(
    "table_snapshots",
    METADATA,
    Column("table_id", LargeBinary, primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("snapshot_id", BigInteger),
    Column("committed_ms", BigInteger),
)

table_files = Table(
    "table_files",
    METADATA,
    Column("file_id", BigInteger, primary_key=True, autoincrement=False),
    Column("table_id", LargeBinary),  # its table may be dropped
    Column("kind", Integer),
    Column("state", Integer),
    Column("store", Text),
    Column("file_key", Text),
    Column("size_bytes", BigInteger),
    Column("crc32c", BigInteger),
    Column("idx", Integer),  # partition of its rows, or -1
    Column("start_offset", BigInteger),
    Column("end_offset", BigInteger),
    Column("record_count", BigInteger),
    Column("schema_id", Integer),
    Column("node_id", BigInteger),
    Column("writer_id", Text),
    Column("upload_id", Text),
    Column("deadline_ms", BigInteger),
    Column("committed_ms", BigInteger),  # 0: never committed
    Column("added", BigInteger),  # version of the table that has added it; 0: none yet
    Column("removed", BigInteger),  # version of the table that has removed it; 0: none yet
)

DIALECT_SQL: Final = {
    # Fragments in which the SQL of the two engines differs. SQLite: an INTEGER primary key is the row id itself, and a
    # table without row ids is clustered by its key.
    "sqlite": {
        "id": "INTEGER",
        "blob": "BLOB",
        "clustered": " WITHOUT ROWID",
        "has_age": "writer_id GLOB '*.born-[0-9]*' AND "
        "substr(writer_id, instr(writer_id, '.born-') + 6) NOT GLOB '*[^0-9]*'",
        "age": "CAST(substr(writer_id, instr(writer_id, '.born-') + 6) AS INTEGER)",
    },
    "postgresql": {
        "id": "BIGINT",
        "blob": "BYTEA",
        "clustered": "",
        "has_age": "writer_id ~ '[.]born-[0-9]+$'",
        "age": "CAST(substring(writer_id from '[0-9]+$') AS BIGINT)",
    },
}

MIGRATIONS: Final[Sequence[tuple[int, Sequence[str]]]] = (
    (
        1,
        (
            "CREATE TABLE cluster (name TEXT PRIMARY KEY)",
            "CREATE TABLE counters (name TEXT PRIMARY KEY, next BIGINT NOT NULL)",
            "INSERT INTO counters (name, next) VALUES ('stream', 1), ('object', 1), ('producer', 0)",
            """CREATE TABLE nodes (
                node_id {id} PRIMARY KEY, epoch BIGINT NOT NULL, host TEXT NOT NULL, port INTEGER NOT NULL,
                lease_until_ms BIGINT NOT NULL)""",
            """CREATE TABLE topics (
                name TEXT PRIMARY KEY, topic_id {blob} NOT NULL UNIQUE, internal INTEGER NOT NULL,
                configs TEXT NOT NULL)""",
            """CREATE TABLE streams (
                stream_id {id} PRIMARY KEY, epoch BIGINT NOT NULL, node_id BIGINT NOT NULL, leader BIGINT NOT NULL,
                leader_epoch BIGINT NOT NULL, start_offset BIGINT NOT NULL, end_offset BIGINT NOT NULL,
                peak_timestamp_ms BIGINT NOT NULL, snapshot {blob} NOT NULL,
                CHECK (0 <= start_offset AND start_offset <= end_offset))""",
            """CREATE TABLE partitions (
                topic TEXT NOT NULL REFERENCES topics (name), idx INTEGER NOT NULL,
                stream_id BIGINT NOT NULL UNIQUE REFERENCES streams (stream_id), PRIMARY KEY (topic, idx))""",
            """CREATE TABLE objects (
                object_id {id} PRIMARY KEY, kind INTEGER NOT NULL, state INTEGER NOT NULL, store TEXT NOT NULL,
                size_bytes BIGINT NOT NULL, node_id BIGINT NOT NULL, writer_id TEXT NOT NULL,
                deadline_ms BIGINT NOT NULL, committed_ms BIGINT NOT NULL, upload_id TEXT NOT NULL)""",
            "CREATE INDEX objects_due ON objects (state, deadline_ms)",
            "CREATE INDEX objects_of_node ON objects (node_id, kind, state, object_id)",
            """CREATE TABLE ranges (
                stream_id BIGINT NOT NULL REFERENCES streams (stream_id), end_offset BIGINT NOT NULL,
                object_id BIGINT NOT NULL REFERENCES objects (object_id), kind INTEGER NOT NULL,
                start_offset BIGINT NOT NULL, record_count BIGINT NOT NULL, size_bytes BIGINT NOT NULL,
                max_timestamp_ms BIGINT NOT NULL, peak_timestamp_ms BIGINT NOT NULL,
                PRIMARY KEY (stream_id, end_offset), CHECK (start_offset < end_offset)){clustered}""",
            "CREATE INDEX ranges_of_object ON ranges (object_id)",
            "CREATE INDEX ranges_by_peak ON ranges (stream_id, peak_timestamp_ms, end_offset)",
            "CREATE INDEX ranges_in_stream_objects ON ranges (stream_id, end_offset) WHERE kind = 2",
        ),
    ),
    (
        2,
        (
            """CREATE TABLE configs (
                kind TEXT NOT NULL, name TEXT NOT NULL, entries TEXT NOT NULL, PRIMARY KEY (kind, name))""",
        ),
    ),
    (
        3,
        (
            "ALTER TABLE ranges ADD COLUMN source_stream_id BIGINT NOT NULL DEFAULT 0",
            "CREATE INDEX ranges_of_clones ON ranges (object_id) WHERE source_stream_id <> 0",
            """CREATE TABLE detached_topics (
                topic_id {blob} PRIMARY KEY, name TEXT NOT NULL, internal INTEGER NOT NULL, configs TEXT NOT NULL,
                detached_ms BIGINT NOT NULL)""",
            """CREATE TABLE detached_partitions (
                topic_id {blob} NOT NULL REFERENCES detached_topics (topic_id), idx INTEGER NOT NULL,
                stream_id BIGINT NOT NULL UNIQUE REFERENCES streams (stream_id), PRIMARY KEY (topic_id, idx))""",
        ),
    ),
    (
        4,
        (
            "ALTER TABLE cluster ADD COLUMN catalog_id TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE nodes ADD COLUMN lease_ms BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE nodes ADD COLUMN host_name TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE nodes ADD COLUMN pid BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE nodes ADD COLUMN lock_id TEXT NOT NULL DEFAULT ''",
            """CREATE TABLE wals (
                wal_id TEXT PRIMARY KEY, node_id BIGINT NOT NULL, node_epoch BIGINT NOT NULL, kind TEXT NOT NULL,
                location TEXT NOT NULL, state INTEGER NOT NULL, seen_ms BIGINT NOT NULL)""",
        ),
    ),
    (
        5,
        (
            # Until now both facts were known by the suffix of the writer id alone: `.born-<ms>` and `.cleaned`.
            "ALTER TABLE objects ADD COLUMN oldest_data_ms BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE objects ADD COLUMN cleaned INTEGER NOT NULL DEFAULT 0",
            "UPDATE objects SET oldest_data_ms = committed_ms",
            "UPDATE objects SET oldest_data_ms = {age} WHERE {has_age}",
            "UPDATE objects SET cleaned = 1 WHERE substr(writer_id, length(writer_id) - 7) = '.cleaned'",
        ),
    ),
    (
        6,
        (
            "ALTER TABLE streams ADD COLUMN wal_id TEXT NOT NULL DEFAULT ''",
            # 1: open. A node whose logs are all drained or given up has no record past the end of a stream.
            """UPDATE streams SET wal_id = COALESCE((
                SELECT MAX(wals.wal_id) FROM wals WHERE wals.node_id = streams.node_id AND wals.state = 1), '')""",
            """UPDATE streams SET node_id = -1 WHERE wal_id = ''
                AND EXISTS (SELECT 1 FROM wals WHERE wals.node_id = streams.node_id)""",
        ),
    ),
    (
        7,
        (
            "ALTER TABLE cluster ADD COLUMN secret TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE nodes ADD COLUMN beat BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE nodes ADD COLUMN rack TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE nodes ADD COLUMN internal_host TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE nodes ADD COLUMN internal_port INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE topics ADD COLUMN changed BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE streams ADD COLUMN changed BIGINT NOT NULL DEFAULT 0",
            "CREATE INDEX topics_changed ON topics (changed)",
            "CREATE INDEX streams_changed ON streams (changed)",
            "INSERT INTO counters (name, next) VALUES ('change', 0), ('last_deletion', 0), ('last_config', 0)",
        ),
    ),
    (
        8,
        (
            "ALTER TABLE wals ADD COLUMN takeover TEXT NOT NULL DEFAULT 'none'",
            "ALTER TABLE wals ADD COLUMN recoverer BIGINT NOT NULL DEFAULT -1",
            "ALTER TABLE wals ADD COLUMN recoverer_epoch BIGINT NOT NULL DEFAULT 0",
        ),
    ),
    (
        9,
        (
            """CREATE TABLE moves (
                stream_id {id} PRIMARY KEY REFERENCES streams (stream_id), to_node BIGINT NOT NULL,
                reason INTEGER NOT NULL, asked_ms BIGINT NOT NULL, failure TEXT NOT NULL)""",
            "ALTER TABLE nodes ADD COLUMN draining INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE nodes ADD COLUMN beat_ms BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE nodes ADD COLUMN listeners TEXT NOT NULL DEFAULT ''",
            # Until now a node had one listener. The characters of a host's name need no escapes in JSON.
            """UPDATE nodes SET listeners = '[["PLAINTEXT", "' || host || '", ' || CAST(port AS TEXT) || ']]'
                WHERE host <> ''""",
            "ALTER TABLE streams ADD COLUMN preferred BIGINT NOT NULL DEFAULT -1",
            "UPDATE streams SET preferred = leader",
            """CREATE TABLE acls (
                acl_id TEXT PRIMARY KEY, resource_type INTEGER NOT NULL, resource_name TEXT NOT NULL,
                pattern_type INTEGER NOT NULL, principal TEXT NOT NULL, host TEXT NOT NULL, operation INTEGER NOT NULL,
                permission INTEGER NOT NULL)""",
            """CREATE TABLE delegation_tokens (
                token_id TEXT PRIMARY KEY, owner TEXT NOT NULL, requester TEXT NOT NULL, renewers TEXT NOT NULL,
                issued_ms BIGINT NOT NULL, expires_ms BIGINT NOT NULL, max_ms BIGINT NOT NULL)""",
            "INSERT INTO counters (name, next) VALUES ('last_acl', 0), ('last_token', 0), ('last_secret', 0)",
        ),
    ),
    (
        10,
        # Until now topics without a retention.ms of their own kept their records forever. The default deletes now.
        tuple(
            f"""UPDATE {table} SET configs = '{{{{"retention.ms": "-1"' ||
                CASE configs WHEN '{{{{}}}}' THEN '}}}}' ELSE ', ' || substr(configs, 2) END
                WHERE internal = 0 AND replace(configs, '"retention.ms"', '') = configs"""  # noqa: S608 - of ours
            for table in ("topics", "detached_topics")
        ),
    ),
    (
        11,
        (
            """CREATE TABLE tables (
                table_id {blob} PRIMARY KEY, topic_id {blob} NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE,
                store TEXT NOT NULL, location TEXT NOT NULL, retention INTEGER NOT NULL, options TEXT NOT NULL,
                created_ms BIGINT NOT NULL, version BIGINT NOT NULL, metadata_file BIGINT NOT NULL,
                snapshot_id BIGINT NOT NULL)""",
            """CREATE TABLE table_schemas (
                table_id {blob} NOT NULL REFERENCES tables (table_id), schema_id INTEGER NOT NULL,
                content TEXT NOT NULL, PRIMARY KEY (table_id, schema_id)){clustered}""",
            """CREATE TABLE table_partitions (
                table_id {blob} NOT NULL REFERENCES tables (table_id), idx INTEGER NOT NULL,
                start_offset BIGINT NOT NULL, end_offset BIGINT NOT NULL, PRIMARY KEY (table_id, idx),
                CHECK (0 <= start_offset AND start_offset <= end_offset)){clustered}""",
            """CREATE TABLE table_snapshots (
                table_id {blob} NOT NULL REFERENCES tables (table_id), version BIGINT NOT NULL,
                snapshot_id BIGINT NOT NULL, committed_ms BIGINT NOT NULL, PRIMARY KEY (table_id, version),
                UNIQUE (table_id, snapshot_id)){clustered}""",
            """CREATE TABLE table_files (
                file_id {id} PRIMARY KEY, table_id {blob} NOT NULL, kind INTEGER NOT NULL, state INTEGER NOT NULL,
                store TEXT NOT NULL, file_key TEXT NOT NULL, size_bytes BIGINT NOT NULL, crc32c BIGINT NOT NULL,
                idx INTEGER NOT NULL, start_offset BIGINT NOT NULL, end_offset BIGINT NOT NULL,
                record_count BIGINT NOT NULL, schema_id INTEGER NOT NULL, node_id BIGINT NOT NULL,
                writer_id TEXT NOT NULL, upload_id TEXT NOT NULL, deadline_ms BIGINT NOT NULL,
                committed_ms BIGINT NOT NULL, added BIGINT NOT NULL, removed BIGINT NOT NULL)""",
            "CREATE INDEX table_files_due ON table_files (deadline_ms) WHERE state <> 2",
            "CREATE INDEX table_files_removed ON table_files (table_id, removed) WHERE state = 2 AND removed <> 0",
            # A start that two live data files had would mean that rows are in the table twice.
            """CREATE UNIQUE INDEX table_files_live ON table_files (table_id, idx, start_offset)
                WHERE kind = 1 AND state = 2 AND removed = 0""",
            "INSERT INTO counters (name, next) VALUES ('table_file', 1)",
        ),
    ),
    (
        12,
        (
            "ALTER TABLE streams ADD COLUMN deleted_offset BIGINT NOT NULL DEFAULT 0",
            # Until now nobody noted who had moved a start. Rows before it leave their tables if it was DeleteRecords.
            "UPDATE streams SET deleted_offset = start_offset",
        ),
    ),
    (
        13,
        (
            "ALTER TABLE streams ADD COLUMN replicas TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE moves ADD COLUMN replicas TEXT NOT NULL DEFAULT ''",
        ),
    ),
    (
        14,
        (
            "ALTER TABLE nodes ADD COLUMN level INTEGER NOT NULL DEFAULT 0",
            "ALTER TABLE nodes ADD COLUMN level_epoch BIGINT NOT NULL DEFAULT 0",
        ),
    ),
)
NEWEST: Final = MIGRATIONS[-1][0]
"""Version of the schema that this program makes, and the highest level that it knows."""
FIRST_ADDITIVE: Final = 13
"""First step that nodes of the version before do not notice, as all later ones.

It adds tables, indexes, and columns with a constant default.
"""
REPLICAS_SINCE: Final = 13
"""Level from which streams get replicas."""
