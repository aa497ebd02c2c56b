"""A model of clusters that were stopped, lost their catalog, and got a rebuilt one: the catalog's own statements.

Three nodes stop in any order, cleanly or by a crash that leaves records in the log. The manifest may lack the last
stop, or a later start. One node may be lost with its log. The others start, and an operator does what refusals say.
In the end every partition is open at its leader, and no record in a log that exists was taken for void.
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import permutations, product
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine

from anabranch.s3stream.catalog import departure, table_rows, takeover, topics
from anabranch.s3stream.catalog import nodes as node_rows
from anabranch.s3stream.catalog.manifest_rows import read_state
from anabranch.s3stream.catalog.manifest_state import CatalogState
from anabranch.s3stream.catalog.migration import migrate
from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.catalog.restore import restore
from anabranch.s3stream.catalog.rows import find_streams
from anabranch.s3stream.catalog.table_rows import NewTableFiles
from anabranch.s3stream.catalog.table_values import NewTable, NewTableFile, TableCommit, TableFileKind
from anabranch.s3stream.catalog.values import NewTopic, NodeInfo, PartitionInfo, Takeover, WalInfo, WalState
from anabranch.s3stream.errors import NodeFenced, NodeInUse
from anabranch.s3stream.maintain.manifest import Manifest
from anabranch.s3stream.maintain.rebuild import TABLE_FILE_IDS_SKIPPED, LocalLog, StoreNumbers, assemble
from anabranch.s3stream.maintain.rebuild_plan import EPOCHS_SKIPPED, plan_rebuild
from anabranch.s3stream.maintain.rebuild_read import RebuildReader
from anabranch.s3stream.maintain.rebuild_scan import StoreContents
from anabranch.s3stream.model import NodeIdentity, StreamBatch, StreamOwner

IDS = (1, 2, 3)
STREAMS = range(1, 4)
ENGINE = create_engine("sqlite://")
"""One for all catalogs: it has compiled the statements."""
COMMAND = re.compile(r"`anabranch node ([a-z-]+) (\d)`")


class NoRecords:
    """The state of a stream without records in objects."""

    leader_epoch = producer_id = -1

    def add(self, batch: StreamBatch) -> None:
        raise AssertionError(batch)

    def encode(self, _start_offset: int) -> bytes:
        return b""


class Cluster:
    """Nodes on a catalog. A log is the set of the streams whose newest records are in it only."""

    def __init__(self) -> None:
        self.connection = _empty_catalog()
        self.running: dict[int, StreamOwner] = {}
        self.logs: dict[int, set[int]] = {node_id: set() for node_id in IDS}
        self.drained: dict[int, bool] = dict.fromkeys(IDS, False)
        for node_id in IDS:
            self.start(node_id)
        topics.create_topics(self.connection, [NewTopic("t", bytes(16), len(STREAMS), {})], IDS)
        self.settle()

    def owner(self, stream_id: int) -> int:
        return find_streams(self.connection, [stream_id])[stream_id].node_id

    def start(self, node_id: int) -> None:
        wanted = NodeInfo(node_id, 0, "h", 1, 10, 10)
        wal_id = f"{node_id:016x}"
        epoch = node_rows.register_node(self.connection, wanted, None).epoch
        node_rows.reclaim_streams(self.connection, NodeIdentity(node_id, epoch), wal_id, 0)
        held = {stream_id for stream_id in self.logs[node_id] if self.owner(stream_id) == node_id}
        assert held == self.logs[node_id], (
            f"records of {self.logs[node_id] - held} in the log of node {node_id} are void"
        )
        node_rows.open_wal(
            self.connection, wal_id, NodeIdentity(node_id, epoch), "device", "/wal", Takeover.NONE, held, 1
        )
        self.running[node_id], self.drained[node_id] = StreamOwner(node_id, epoch, wal_id), False

    def stop(self, node_id: int, *, cleanly: bool) -> None:
        owner = self.running.pop(node_id)
        if not cleanly:
            self.logs[node_id] = {stream_id for stream_id in STREAMS if self.owner(stream_id) == node_id}
            return
        self.logs[node_id], self.drained[node_id] = set(), True
        successors = sorted(self.running)
        node_rows.stop_node(self.connection, NodeIdentity(node_id, owner.node_epoch), owner.wal_id, successors, 1)
        self.settle()

    def settle(self) -> None:
        """Let each node that runs open what it leads, and take over nodes that have left no log."""
        if not self.running:
            return
        by = min(self.running)
        named = {node_id for each in self.partitions() for node_id in (each.leader, each.owner)}
        for gone in named.intersection(IDS) - self.running.keys():
            seen = node_rows.observe_node(self.connection, gone)
            if seen is not None and not self.live_logs(gone):
                caller, leaders = self.running[by].identity, sorted(self.running)
                takeover.take_over(self.connection, gone, seen[1], None, caller, leaders, 1, even_if_alive=False)
                assert not any(gone in (each.leader, each.owner) for each in self.partitions()), "once is enough"
        partitions = self.partitions()
        for node_id, owner in self.running.items():
            led = [each for each in partitions if each.leader == node_id != each.owner and each.owner not in IDS]
            if led:
                topics.open_streams(self.connection, [each.stream_id for each in led], owner)

    def partitions(self) -> Sequence[PartitionInfo]:
        found = topics.list_topics(self.connection)
        return found[0].partitions if found else ()

    def live_logs(self, node_id: int) -> Sequence[WalInfo]:
        return [wal for wal in node_rows.list_wals(self.connection, node_id) if wal.is_live]

    def replace(self, node_id: int) -> None:
        """Remove a node that is lost, by the commands that refusals name."""
        for _ in range(3):
            seen = node_rows.get_node(self.connection, node_id)
            assert seen is not None
            refusal = ""
            try:
                departure.remove_node(self.connection, seen, min(self.running), 1)
            except NodeInUse as error:
                refusal = str(error)
            if not refusal:
                return
            assert COMMAND.findall(refusal) == [("give-up", str(node_id))], refusal
            (log,) = self.live_logs(node_id)
            departure.give_up_wal(self.connection, log.wal_id, seen, sorted(self.running), 1)
        raise AssertionError("no command has removed it")


@cache
def _template() -> bytes:
    """Return an empty catalog of the cluster, as the bytes of a database."""
    with ENGINE.connect() as connection:
        migrate(connection, "sqlite", "memory")
        node_rows.adopt_cluster(connection, "c", bytes(16))
        connection.commit()
        bare: Any = connection.connection.dbapi_connection
        return bytes(bare.serialize())


def _empty_catalog() -> Connection:
    connection = ENGINE.connect()
    bare: Any = connection.connection.dbapi_connection
    bare.deserialize(_template())
    return connection


def rebuild(cluster: Cluster, manifest: Manifest) -> None:
    """Replace the catalog by one that node 1 rebuilds."""
    log = None
    if cluster.logs[1] or cluster.drained[1]:
        state = WalState.DRAINED if cluster.drained[1] else WalState.OPEN
        log = LocalLog(WalInfo(f"{1:016x}", 1, 1, "/wal", state, 1), frozenset(cluster.logs[1]))
    plan = plan_rebuild(manifest.state, ())
    reader = RebuildReader(stores={}, cluster="c", objects={}, new_replay=lambda _id: NoRecords(), accept_loss=False)
    for stream_id in plan.chains:
        reader.replays[stream_id], reader.spans[stream_id] = NoRecords(), []
    contents = assemble(
        manifest,
        plan,
        StoreContents({}, (), 0),
        reader,
        node_id=1,
        log=log,
        newest=StoreNumbers(1, CatalogProgress()),
        new_topic_id=lambda: bytes(16),
        now_ms=1,
        keep_ms=1,
    )
    cluster.connection.close()
    cluster.connection = _empty_catalog()
    restore(cluster.connection, contents)


@pytest.mark.slow
@pytest.mark.parametrize("lacks", ["nothing", "stop", "start"])
@pytest.mark.parametrize("lost", [None, *IDS])
def test_every_partition_has_a_leader_again(lacks: str, lost: int | None) -> None:
    for order, crashes in product(permutations(IDS), ("nobody", "first", "last")):
        cluster = Cluster()
        state = CatalogState()
        for number, node_id in enumerate(order):
            if lacks == "stop" and number == len(order) - 1:
                state = read_state(cluster.connection)[1]
            cluster.stop(node_id, cleanly=crashes != {0: "first", len(order) - 1: "last"}.get(number))
        if lacks != "stop":
            state = read_state(cluster.connection)[1]
        if lacks == "start":
            cluster.start(order[-1])
            cluster.settle()
            cluster.stop(order[-1], cleanly=False)
        if lost is not None:
            cluster.logs[lost], cluster.drained[lost] = set(), False
        rebuild(cluster, Manifest(1, "c", NodeIdentity(1, 1), 1, state))
        for node_id in order:
            if node_id != lost:
                cluster.start(node_id)
                cluster.settle()
        if lost is not None:
            cluster.replace(lost)
        cluster.settle()
        where = f"{order}, {crashes} crashes"
        assert all(each.leader == each.owner in cluster.running for each in cluster.partitions()), where
        cluster.connection.close()


def test_a_rebuilt_catalog_has_the_tables_of_the_manifest_and_gives_no_file_id_again() -> None:
    cluster = Cluster()
    table_id, life = b"T" * 16, cluster.running[1].identity
    table_rows.create_table(cluster.connection, NewTable(table_id, bytes(16), "t", "main", "tables/t", "schema"), 1)
    wanted = NewTableFiles([TableFileKind.METADATA], "w", 9)
    (file,) = table_rows.prepare_files(cluster.connection, table_id, wanted, life)
    commit = TableCommit(life, table_id, 0, [NewTableFile(file.file_id, 10, 1)], 1, 9)
    table_rows.commit_table(cluster.connection, commit)
    state = read_state(cluster.connection)[1]
    known = table_rows.read_table(cluster.connection, table_id)
    rebuild(cluster, Manifest(1, "c", NodeIdentity(1, 1), 1, state))
    assert table_rows.read_table(cluster.connection, table_id) == known
    assert table_rows.commit_table(cluster.connection, commit) == 1, "it is found there, too"
    with pytest.raises(NodeFenced):
        table_rows.prepare_files(cluster.connection, table_id, wanted, life)
    newer = NodeIdentity(1, state.nodes[1] + EPOCHS_SKIPPED)
    (next_file,) = table_rows.prepare_files(cluster.connection, table_id, wanted, newer)
    assert next_file.file_id > file.file_id + TABLE_FILE_IDS_SKIPPED
    cluster.connection.close()
