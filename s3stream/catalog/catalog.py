"""The catalog: the metadata of a cluster in a SQL database.

It has the cluster's nodes, topics, streams and objects, their owners, and the object that holds each offset. Each
method is one transaction of `Database`; the modules of this package hold the bodies of the transactions.

Invariants:

- Commands are idempotent: repeating one that succeeded succeeds again.
- Commands that take a `NodeIdentity` or a stream's epoch refuse old ones (two fences).
- Queries have no side effects.

Times are ms since 1970 and are always passed in. Errors are those of `s3stream.errors`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection

from anabranch.s3stream.catalog import (
    acls,
    changes,
    configs,
    departure,
    detach,
    migration,
    nodes,
    objects,
    orders,
    replicas,
    rows,
    tokens,
    topics,
)
from anabranch.s3stream.catalog import manifest_rows as state_rows
from anabranch.s3stream.catalog import takeover as takeovers
from anabranch.s3stream.catalog import transfer as transfers
from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.catalog.deadline import Deadline
from anabranch.s3stream.catalog.manifest_state import CatalogState
from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.catalog.schema import REPLICAS_SINCE
from anabranch.s3stream.catalog.table_catalog import TableCatalog
from anabranch.s3stream.catalog.values import (
    DEFAULT_LISTENER,
    UNKNOWN_HOLDER,
    AclRow,
    CatalogChanges,
    CompactionCommit,
    DetachedTopic,
    MoveOrder,
    MoveReason,
    NewTopic,
    NodeBeat,
    NodeHolder,
    NodeInfo,
    NodeListener,
    OpenStream,
    Pulse,
    StreamReading,
    StreamTransfer,
    Takeover,
    TokenRow,
    TopicInfo,
    UploadCommit,
    WalInfo,
)
from anabranch.s3stream.errors import AlreadyExists, CatalogUnavailable, CatalogWentBack, StorageError
from anabranch.s3stream.model import NodeIdentity, ObjectInfo, RangeLocation, StreamInfo, StreamOwner

if TYPE_CHECKING:
    from anabranch.s3stream.catalog.backup import BackupHeader
    from anabranch.s3stream.catalog.restore import Advance, CatalogContents

Result = TypeVar("Result")


class Catalog:
    """A cluster's metadata on SQLite (`sqlite:///PATH`, one node) or PostgreSQL (`postgresql://...`, many nodes).

    Call `open` before any method but `is_blank`. With `read_only` commands are refused, nothing is migrated, and
    nothing is written, so that read access to the database is enough.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._database = Database(url, read_only=read_only, on_session=self._check_session)
        self._read_only = read_only
        self._level = 0
        self._node: NodeIdentity | None = None
        """Registration under which topics and configs are changed."""
        self._identity = nodes.UNKNOWN_ID
        self._watchers: list[Callable[[], None]] = []
        self.went_back = False
        """True once the catalog was found to lack what it had committed."""
        self._seen = CatalogProgress()
        self.tables = TableCatalog(self._database, self._change_as_node)

    @property
    def where(self) -> str:
        """The URL without the password, for messages."""
        return self._database.where

    async def is_blank(self) -> bool:
        """Return whether no node, topic or object was ever registered, or the database does not exist.

        Works before `open`, on a schema of any version. Creates, migrates and writes nothing.
        """
        return await self._database.read_unopened(nodes.is_blank, absent=True)

    async def open(self, *, cluster: str, new_id: bytes | None = None) -> None:
        """Connect, migrate the schema, and set the cluster's name, or check that it is `cluster`.

        A catalog without an identity gets `new_id`, 16 random bytes. A catalog opened with `read_only` is not changed:
        its schema and name must be as expected.
        """
        await self._database.open()
        self._level = await self._database.read(migration.current_level, is_single=True)
        if self._read_only:
            self._identity = await self._database.read(lambda c: nodes.check_cluster(c, cluster))
        else:
            self._identity = await self._database.write(lambda c: nodes.adopt_cluster(c, cluster, new_id))

    @property
    def level(self) -> int:
        """The cluster's level, once it is open: what a later step of the schema brings is not used yet.

        It only rises. Other nodes' changes of it are seen by `list_configs`.
        """
        return self._level

    async def raise_level(self, level: int, *, validate_only: bool = False) -> None:
        """Let the cluster use what all steps up to this one bring: no node can go back to an older version then.

        Raises CatalogError unless all nodes that may live know the level. `validate_only`: changes nothing.
        """
        if validate_only:
            await self._database.read(lambda c: migration.check_raise(c, level))
            return
        await self._change_as_node(lambda c: migration.raise_level(c, level))
        self._level = max(self._level, level)

    def identity(self) -> bytes:
        """Return the catalog's unique id, 16 bytes, once it is open. Zero: it was never given one."""
        return self._identity

    async def close(self) -> None:
        """Release connections and threads."""
        await self._database.close()

    def watch_metadata(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each command of this object that may have changed what manifests hold.

        That is: topics, stream owners, configs and access control lists.
        """
        self._watchers.append(callback)

    async def _read(self, query: Callable[[Connection], Result], *, settled: bool) -> Result:
        """Read; if `settled`, after changes that were not answered (`Database.read_settled`)."""
        return await (self._database.read_settled(query) if settled else self._database.read(query))

    async def _change(self, command: Callable[[Connection], Result]) -> Result:
        """Write, then call the watchers. A failed command may have taken effect, so they are called after it too."""

        def numbered(connection: Connection) -> tuple[Result, int]:
            connection.info.pop(rows.LAST_CHANGE, None)  # of an earlier command, which may have been rolled back
            answer, change = command(connection), connection.info.get(rows.LAST_CHANGE)
            # A repeated command changes nothing. What it did before, without an answer, is known from now on, too.
            return answer, changes.last_change(connection) if change is None else change

        try:
            result, change = await self._database.write(numbered)
        finally:
            for callback in self._watchers:
                callback()
        self._note(CatalogProgress(change))
        return result

    def act_for(self, node: NodeIdentity) -> None:
        """Change topics and configs for this registration of a node only: a later one fences this catalog's changes.

        The process of the later one serves what it has read. A change that it does not see would go past it: it would
        acknowledge records into a topic that is deleted.
        """
        self._node = node

    async def _change_as_node(self, command: Callable[[Connection], Result]) -> Result:
        """Change topics or configs. Raises NodeFenced."""

        def checked(connection: Connection) -> Result:
            if self._node is not None:
                rows.check_node(connection, self._node)
            return command(connection)

        return await self._change(checked)

    # nodes

    async def register_node(
        self,
        node_id: int,
        host: str,
        port: int,
        *,
        now_ms: int,
        lease_ms: int,
        holder: NodeHolder = UNKNOWN_HOLDER,
        after_epoch: int | None = None,
        rack: str = "",
        internal: tuple[str, int] = ("", 0),
        listeners: Sequence[NodeListener] = (),
    ) -> NodeInfo:
        """Claim a node id: its epoch grows by one, and every writer with an older one is fenced.

        With `after_epoch` the claim succeeds only if that is still the node's last epoch (0: never registered), so that
        one of several processes that found the id free gets it. Raises NodeFenced for the others. `internal` is the
        address for other nodes. Without `listeners` the node has one, of the default name, at `host` and `port`.
        """
        named = tuple(listeners) or (NodeListener(DEFAULT_LISTENER, host, port),)
        node = NodeInfo(node_id, 0, host, port, now_ms + lease_ms, lease_ms, holder, rack, *internal, listeners=named)
        return await self._change(lambda c: nodes.register_node(c, node, after_epoch))

    async def beat(self, node: NodeIdentity, *, now_ms: int, lease_ms: int, due_ms: int = 0) -> Pulse:
        """Show that the node lives, and extend its lease; the next beat is due within `due_ms` (0: unknown).

        Raises NodeFenced when the epoch is old, and CatalogWentBack when the catalog lacks what it was seen to have.
        """
        # What is known before the beat is sent: it sees at least that.
        known = CatalogProgress(self._seen.change, {node.node_id: self._seen.uploads.get(node.node_id, 0)})
        pulse = await self._database.beat(lambda c: nodes.beat(c, node, now_ms + lease_ms, due_ms))
        found = CatalogProgress(pulse.version, {node.node_id: pulse.uploads})
        self._check_not_behind(found, known)
        self._note(found)
        return pulse

    async def stop_node(
        self, node: NodeIdentity, *, drained_wal: str | None, successors: Sequence[int] = (), now_ms: int
    ) -> None:
        """End the lease of a node that stops, and mark its log, if named, as drained. Raises NodeFenced.

        The partitions of a node that is drained go to the successors, if there are any.
        """
        await self._database.write(lambda c: nodes.stop_node(c, node, drained_wal, successors, now_ms))

    async def take_over(
        self,
        node_id: int,
        seen: NodeBeat,
        *,
        wal_id: str | None,
        recoverer: NodeIdentity,
        leaders: Sequence[int],
        now_ms: int,
        even_if_alive: bool = False,
    ) -> int:
        """Fence a node that is dead: it has not beaten since `seen`. Returns the epoch in which the caller acts for it.

        The caller, `recoverer`, recovers its log `wal_id`, which it has open (None: there is none to recover). Its
        partitions are placed over `leaders`. `even_if_alive` fences a node that beats in the epoch of `seen`, too.
        Raises NodeInUse when it is alive or another node was faster, NodeFenced when the caller is fenced, CatalogError
        when the node has another log.
        """
        return await self._change(
            lambda c: takeovers.take_over(
                c, node_id, seen, wal_id, recoverer, leaders, now_ms, even_if_alive=even_if_alive
            )
        )

    async def release_recovered(self, node: NodeIdentity, wal_id: str, *, kept: Collection[int], now_ms: int) -> None:
        """Let others open the streams of a dead node, except `kept`: its log has nothing past their ends.

        If none is kept the log is drained. Raises NodeFenced.
        """
        await self._change(lambda c: takeovers.release_recovered(c, node, wal_id, kept, now_ms))

    async def return_streams(self, node: NodeIdentity) -> None:
        """Let a dead node lead what it still owns, and wait for its return. Raises NodeFenced."""
        await self._change(lambda c: takeovers.return_streams(c, node))

    async def remove_node(self, seen: NodeInfo, *, heir: int, now_ms: int) -> int:
        """Remove the registration of a dead node that leads nothing and whose log is not needed.

        `seen` is its registration when it was found to be dead. The node `heir` compacts its stream set objects (SSO)
        from now on; returns how many there are. Raises NodeInUse, NotFound.
        """
        return await self._database.write(lambda c: departure.remove_node(c, seen, heir, now_ms))

    async def drain_node(self, node_id: int, *, draining: bool) -> None:
        """Let a node get no partitions until its next start, or end that. Raises NotFound.

        Orders to a node that is drained fail; the end of a drain cancels its orders.
        """
        await self._change(lambda c: nodes.drain_node(c, node_id, draining=draining))

    async def list_nodes(self) -> Sequence[NodeInfo]:
        """Return all nodes that were registered and not removed, by id."""
        return await self._database.read(nodes.list_nodes)

    async def get_node(self, node_id: int) -> NodeInfo | None:
        """Return a node that was ever registered, removed or not."""
        return await self._database.read(lambda c: nodes.get_node(c, node_id))

    async def observe_node(self, node_id: int) -> tuple[NodeInfo, NodeBeat] | None:
        """Return a registered node with its last sign of life, as of one moment."""
        return await self._database.read(lambda c: nodes.observe_node(c, node_id))

    # write-ahead logs of nodes

    async def list_wals(self, node_id: int) -> Sequence[WalInfo]:
        """Return every log that the node has used, in the order of their last use."""
        return await self._database.read(lambda c: nodes.list_wals(c, node_id))

    async def open_wal(
        self,
        wal_id: str,
        *,
        node: NodeIdentity,
        kind: str = nodes.DEVICE,
        location: str,
        takeover: Takeover = Takeover.NONE,
        held: Collection[int] | None = None,
        now_ms: int,
    ) -> None:
        """Register the log that the node acknowledges into from now on.

        After a recovery that found records of the streams `held` past their ends, the node owns and leads no others.
        Raises NodeFenced; CatalogError when the log was given up, or another log may hold records of the node's
        streams.
        """
        await self._change(lambda c: nodes.open_wal(c, wal_id, node, kind, location, takeover, held, now_ms))

    async def reclaim_streams(self, wal_id: str, *, node: NodeIdentity, claimed_epoch: int) -> None:
        """Note before a recovery that the node's log may hold records of streams, which an older catalog may not know.

        `claimed_epoch` is the node epoch in the log's header. Nothing changes unless it is newer than the catalog's.
        Raises NodeFenced.
        """
        await self._change(lambda c: nodes.reclaim_streams(c, node, wal_id, claimed_epoch))

    async def give_up_wal(self, wal_id: str, *, seen: NodeInfo, leaders: Sequence[int] = (), now_ms: int) -> None:
        """Accept the loss of the records of a log that are in no object.

        `seen` is the registration of the log's node at the time its process was found to be dead. Its partitions are
        placed over `leaders`, if there are any. Raises NodeInUse when the registration has changed since, NotFound when
        the log is unknown or drained.
        """
        await self._change(lambda c: departure.give_up_wal(c, wal_id, seen, leaders, now_ms))

    async def give_up_streams(self, stream_ids: Collection[int], *, seen: NodeInfo, leaders: Sequence[int]) -> None:
        """As `give_up_wal`, for some of the node's streams: the log stays that of the others."""
        await self._change(lambda c: departure.give_up_streams(c, stream_ids, seen, leaders))

    async def list_all_wals(self) -> Sequence[WalInfo]:
        """Return every log that any node has used, in the order of their ids."""
        return await self._database.read(nodes.list_all_wals)

    async def count_open_streams(self, node_id: int) -> int:
        """Count the streams that the node opened last: records past their ends may be in its log."""
        return await self._database.read(lambda c: nodes.count_open_streams(c, node_id))

    # topics: changes name the topic by id, since a repeated command may meet a new topic of the same name

    async def create_topic(
        self, name: str, topic_id: bytes, *, partitions: int, configs: Mapping[str, str], leader: int, internal: bool
    ) -> TopicInfo:
        """Create a topic and its streams, led by `leader`.

        Raises AlreadyExists, unless the existing topic has this `topic_id`.
        """
        (created,) = await self.create_topics([NewTopic(name, topic_id, partitions, configs, internal)], leader=leader)
        if isinstance(created, AlreadyExists):
            raise created
        return created

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, leader: int, others: Sequence[int] = ()
    ) -> Sequence[TopicInfo | AlreadyExists]:
        """Create many topics in one transaction, led by `leader` and `others`; answers are in the order of `wanted`.

        A topic that cannot be created is answered with its error; the others are created.
        """
        if self._level < REPLICAS_SINCE:
            wanted = [replace(each, factor=1, replicas=None) for each in wanted]
        return await self._change_as_node(lambda c: topics.create_topics(c, wanted, (leader, *others)))

    async def add_partitions(
        self,
        topic_id: bytes,
        total: int,
        *,
        leader: int,
        others: Sequence[int] = (),
        leaders: Sequence[int] | None = None,
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> TopicInfo:
        """Grow the topic to `total` partitions, led by `leaders` in order, or else by `leader` and `others`.

        `replicas` go with `leaders`; without them the new partitions have as many as the first one.

        Raises CatalogError when it has more already, NotFound.
        """
        return await self._change_as_node(
            lambda c: topics.add_partitions(c, topic_id, total, (leader, *others), leaders, replicas)
        )

    async def delete_topics(self, topic_ids: Sequence[bytes], *, now_ms: int, delete_after_ms: int) -> None:
        """Delete the topics and their streams in one transaction; objects that are not needed become destroyed.

        Ignores topics that do not exist.
        """
        deadline = Deadline(now_ms, delete_after_ms)
        await self._change_as_node(lambda c: topics.delete_topics(c, topic_ids, deadline.ms))

    async def alter_topic(self, topic_id: bytes, change: Callable[[dict[str, str]], Mapping[str, str]]) -> TopicInfo:
        """Give the topic the configs that `change` makes of those that it has. Raises NotFound, and what `change` does.

        `change` is pure, and runs in another thread, so that it decides from what nobody changes meanwhile.
        """
        return await self._change_as_node(lambda c: topics.alter_topic(c, topic_id, change))

    # orders of moves: the leader of a stream carries them out

    async def request_moves(
        self,
        wanted: Mapping[int, int],
        *,
        reason: MoveReason,
        now_ms: int,
        replicas: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        """Order that streams are led by other nodes, given by stream; replaces earlier orders of these streams.

        A stream gets its `replicas` when the order is carried out. Without them a lasting order puts the node in front
        of the replicas, in place of one in its rack, or of the first one, unless it is one of them.

        If a node leads its stream already, the earlier order is only removed. Nothing is ordered unless all can be.
        A drain, a stop or an election replaces no lasting order; a drain orders nothing of leaders that are not, or no
        longer, drained, and an election nothing to nodes that are not, or no longer, preferred.
        Raises StreamNotFound; NodeUnavailable when a node is not registered or is being drained.
        """
        given = replicas if self._level >= REPLICAS_SINCE else {}
        await self._change_as_node(lambda c: orders.request_moves(c, wanted, reason, now_ms, given))

    async def cancel_moves(self, stream_ids: Collection[int]) -> None:
        """Remove the orders of streams, if there are any. One that is being carried out may still succeed."""
        await self._change_as_node(lambda c: orders.cancel_moves(c, stream_ids))

    async def fail_move(self, order: MoveOrder, failure: str) -> None:
        """Keep an order with the reason why it is not carried out. One that was replaced or removed is ignored."""
        await self._change_as_node(lambda c: orders.fail_move(c, order, failure))

    async def list_moves(self) -> Sequence[MoveOrder]:
        """Return all orders by stream, those that have failed included."""
        return await self._database.read(orders.list_moves)

    # changes by other nodes

    async def read_changes(self, seen: int) -> CatalogChanges | None:
        """Return what has changed since the change with the number `seen`; None if nothing has.

        Raises CatalogWentBack.
        """
        known = CatalogProgress(self._seen.change)
        # Most often nothing has changed, which takes one round trip. What is known to have changed is read at once.
        if known.change <= seen and await self.last_change() == seen:
            return None
        found = await self._database.read(lambda c: changes.read_changes(c, seen))
        if found is not None:
            self._check_not_behind(CatalogProgress(found.version), known)
            self._note(CatalogProgress(found.version))
        return found

    # progress: the catalog never loses a state while its database is the same

    @property
    def seen(self) -> CatalogProgress:
        """Lower bounds of the catalog's state, learned from its answers to this object."""
        return self._seen

    def _note(self, found: CatalogProgress) -> None:
        self._seen = self._seen.joined(found)

    def _check_session(self, connection: Connection) -> None:
        """Compare the state that a new connection finds with the state seen before: a failover breaks all connections.

        So no command changes a database that has gone back: it may still be read, but not written. Raises
        CatalogWentBack.
        """
        known = self._seen
        if known != CatalogProgress() and not self.went_back:
            self._check_not_behind(changes.read_progress(connection), known)

    def _check_not_behind(self, found: CatalogProgress, known: CatalogProgress) -> None:
        """Raise CatalogWentBack if the catalog lacks anything that was known when it was asked."""
        if lacks := found.lacks(known):
            self.went_back = True
            reason = went_back_text(self.where, lacks)
            self._database.refuse_writes(reason)
            raise CatalogWentBack(reason)

    async def check_has(self, known: CatalogProgress) -> None:
        """Raise CatalogWentBack if the catalog lacks a state that others have seen. Its present state is remembered.

        So a database that goes back between this and a command that relies on it is noticed by the command's
        connection.
        """
        found = await self.progress()
        self._check_not_behind(found, known)
        self._note(found)

    async def progress(self) -> CatalogProgress:
        """Return how far the catalog has come."""
        return await self._database.read(changes.read_progress)

    async def last_change(self) -> int:
        """Return the number of the last change."""
        found = await self._database.read(changes.last_change, is_single=True)
        self._note(CatalogProgress(found))
        return found

    async def wait_for_change(self, poll_s: float) -> None:
        """Return soon after a change by another node; may return without one.

        PostgreSQL notifies; SQLite's file is looked at every `poll_s`. Raises CatalogUnavailable.
        """
        await self._database.wait_for_change(poll_s)

    async def secret(self, new_secret: bytes) -> bytes:
        """Return the 32 bytes that only nodes of this catalog know: `new_secret` if there was none."""
        return await self._database.write(lambda c: nodes.adopt_secret(c, new_secret))

    async def current_secret(self) -> bytes:
        """Return these bytes; empty if no node has needed them yet."""
        return await self._database.read(nodes.current_secret)

    async def replace_secret(self, new_secret: bytes) -> None:
        """Let the nodes of this catalog know `new_secret` in place of these bytes."""
        await self._database.write(lambda c: nodes.replace_secret(c, new_secret))

    async def list_topics(self) -> Sequence[TopicInfo]:
        """Return all topics by name."""
        return await self._database.read(topics.list_topics)

    async def list_topics_and_detached(
        self, *, settled: bool = False
    ) -> tuple[Sequence[TopicInfo], Sequence[DetachedTopic]]:
        """Return `list_topics` and `list_detached` of one moment; a topic is in one of them until it is deleted.

        `settled`: after changes that were not answered, as `Database.read_settled`.
        """
        return await self._read(lambda c: (topics.list_topics(c), detach.list_detached(c)), settled=settled)

    async def list_topic_configs(
        self, topic_ids: Collection[bytes] | None = None, *, settled: bool = False
    ) -> Mapping[bytes, Mapping[str, str]]:
        """Return the configs of these topics, or all, by topic id, without topics that have none.

        `settled` as in `list_topics_and_detached`.
        """
        return await self._read(lambda c: topics.list_topic_configs(c, topic_ids), settled=settled)

    # detach, attach and clone: catalog changes only, no data is touched

    async def detach_topic(
        self, name: str, topic_id: bytes, *, ends: Mapping[int, int], node: NodeIdentity, now_ms: int
    ) -> None:
        """Take a topic out of the cluster; its objects are kept until it is attached and deleted.

        `ends` are the ends of its streams after all was uploaded. Writers to the streams are fenced. Raises EndMoved
        when the committed ends differ from `ends`, StreamFenced when another node has one of the streams open,
        NotFound.
        """
        await self._change(lambda c: detach.detach_topic(c, name, topic_id, ends=ends, node=node, now_ms=now_ms))

    async def attach_topic(self, topic_id: bytes, name: str, *, node: NodeIdentity) -> TopicInfo:
        """Bring a detached topic back as `name`, led by the node. Raises NotFound; AlreadyExists for a taken name."""
        return await self._change(lambda c: detach.attach_topic(c, topic_id, name, node))

    async def clone_topic(
        self, name: str, new_name: str, topic_id: bytes, *, ends: Mapping[int, int], node: NodeIdentity
    ) -> TopicInfo:
        """Create `new_name`, led by the node, with the records that `name` has up to `ends`.

        The new streams refer to the same objects; later changes of either topic do not affect the other. Raises
        EndMoved unless `ends` are the committed ends of all streams of `name`, NotFound, and AlreadyExists unless
        `new_name` has this `topic_id`.
        """
        return await self._change(lambda c: detach.clone_topic(c, name, new_name, topic_id, ends=ends, node=node))

    async def list_detached(self) -> Sequence[DetachedTopic]:
        """Return the detached topics by name, the most recently detached first."""
        return await self._database.read(detach.list_detached)

    # streams

    async def open_streams(self, stream_ids: Sequence[int], owner: StreamOwner) -> Sequence[OpenStream]:
        """Take streams over: epoch and leader epoch of each grow by one, and `owner` becomes theirs.

        One transaction; the answer is in the order of `stream_ids`. Raises StreamNotFound, and StreamHeld for a stream
        whose acknowledged records may be in another log, or which another node leads.
        """
        return await self._change(lambda c: topics.open_streams(c, stream_ids, owner))

    async def transfer_streams(self, wanted: Sequence[StreamTransfer]) -> Sequence[OpenStream | StorageError]:
        """Make the target of planned moves, the same of all, the streams' owner and leader: their epochs grow by one.

        One transaction; answers are in the order of `wanted`. A stream that is refused is answered with its error:
        StreamFenced when the source does not have the stream under these epochs any more, or is fenced itself;
        EndMoved, StreamNotFound, CatalogError without an order. Raises NodeFenced when the target is fenced. After
        CatalogUnavailable repeat it: only an answer shows the outcome.
        """
        return await self._change(lambda c: transfers.transfer(c, wanted))

    async def cancel_transfer(self, stream_id: int, epoch: int, source: StreamOwner) -> int:
        """Exclude transfers of a stream that its owner has sealed under `epoch`; return its new epoch.

        Raises StreamFenced when a transfer was first, StreamNotFound, and NodeFenced when the owner is fenced. After
        CatalogUnavailable repeat it.
        """
        return await self._database.write(lambda c: transfers.cancel(c, stream_id, epoch, source))

    async def get_streams(self, stream_ids: Sequence[int]) -> Mapping[int, StreamInfo]:
        """Return the streams that exist, by id."""
        return await self._database.read(lambda c: rows.find_streams(c, stream_ids))

    async def read_streams(
        self, node: NodeIdentity, known: Mapping[int, StreamReading | None]
    ) -> Mapping[int, StreamReading]:
        """Return streams, given by their ids with an earlier reading or None; those that do not exist are left out.

        Raises NodeFenced if `node` is.
        """
        return await self._database.read(lambda c: replicas.read_streams(c, node, known))

    async def list_streams(self, *, after: int, limit: int) -> Sequence[StreamInfo]:
        """Return the first `limit` streams with ids above `after`, by id."""
        return await self._database.read(lambda c: topics.list_streams(c, after, limit))

    async def next_stream_id(self) -> int:
        """Return the id that the next stream will get: ids from there on were never used."""
        return await self._database.read(nodes.next_stream_id)

    async def trim_stream(
        self, stream_id: int, epoch: int, new_start: int, *, now_ms: int, delete_after_ms: int, asked: bool = False
    ) -> StreamInfo:
        """Move the start forward (never back, never past the end); objects wholly before it become destroyed.

        `asked`: a client wants all before `new_start` deleted, so it leaves the topic's table at once, too.
        """
        deadline = Deadline(now_ms, delete_after_ms)
        return await self._database.write(
            lambda c: topics.trim_stream(c, stream_id, epoch, new_start, deadline.ms, asked=asked)
        )

    async def find_ranges(
        self, stream_id: int, start_offset: int, end_offset: int, *, limit: int
    ) -> Sequence[RangeLocation]:
        """Return at most `limit` committed ranges that overlap [start, end), in offset order; O(log n + answer)."""
        return await self._database.read(
            lambda c: objects.find_ranges(c, stream_id, start_offset, end_offset, limit), is_single=True
        )

    async def stream_bytes(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the bytes of the committed ranges of each stream."""
        return await self._database.read(lambda c: objects.stream_bytes(c, stream_ids))

    async def find_time(self, stream_id: int, timestamp_ms: int) -> RangeLocation | None:
        """Return the first live range whose largest timestamp is at or after `timestamp_ms`."""
        return await self._database.read(lambda c: objects.find_time(c, stream_id, timestamp_ms), is_single=True)

    # objects

    async def prepare_objects(
        self,
        count: int,
        *,
        node: NodeIdentity,
        writer_id: str,
        store: str,
        now_ms: int,
        deadline_ms: int,
        oldest_data_ms: int = 0,
        cleaned: bool = False,
    ) -> Sequence[int]:
        """Reserve object ids, never used before, for objects that are about to be written.

        `oldest_data_ms` is the commit time of the oldest data that goes into them (0: the time of their own commit);
        `cleaned` marks the output of log compaction.
        """
        deadline = Deadline(now_ms, deadline_ms)
        return await self._database.write(
            lambda c: objects.prepare_objects(
                c,
                count,
                node=node,
                writer_id=writer_id,
                store=store,
                deadline_ms=deadline.ms,
                oldest_data_ms=oldest_data_ms,
                cleaned=cleaned,
            )
        )

    async def note_multipart(self, object_id: int, upload_id: str) -> None:
        """Record the multipart upload of a prepared object, so that a later process can abort it. Raises NotFound."""
        await self._database.write(lambda c: objects.LIFE_CYCLE.note_multipart(c, object_id, upload_id))

    async def commit_upload(self, commit: UploadCommit) -> None:
        """Make an upload visible. Refuses stale epochs, and ranges that do not begin at their stream's end.

        Raises CatalogWentBack if it is refused because the catalog has forgotten what was there.
        """
        known = self._seen
        try:
            number = await self._database.write(lambda c: objects.commit_upload(c, commit))
        except CatalogUnavailable:
            raise
        except StorageError:
            self._check_not_behind(await self.progress(), known)
            raise
        self._note(CatalogProgress(0, {commit.node.node_id: number}))

    async def get_uploaded_streams(self, node_id: int, stream_ids: Sequence[int]) -> dict[int, StreamInfo]:
        """Return existing streams by id, and see how many uploads of the node are committed in the same state."""

        def read(connection: Connection) -> tuple[dict[int, StreamInfo], int]:
            return rows.find_streams(connection, stream_ids), rows.count_uploads(connection, node_id)

        found, number = await self._database.read(read)
        self._note(CatalogProgress(0, {node_id: number}))
        return found

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        """Replace inputs with outputs. Every live range of the inputs must be covered by exactly one output."""
        deadline = Deadline(commit.now_ms, commit.delete_after_ms)
        await self._database.write(lambda c: objects.commit_compaction(c, replace(commit, delete_after_ms=deadline.ms)))

    async def get_objects(self, object_ids: Sequence[int]) -> Mapping[int, ObjectInfo]:
        """Return the objects that exist, by id."""
        return await self._database.read(lambda c: rows.find_objects(c, object_ids))

    async def list_objects(self, *, after: int, limit: int) -> Sequence[ObjectInfo]:
        """Return the first `limit` objects, in any state, with ids above `after`, by id."""
        return await self._database.read(lambda c: objects.list_objects(c, after, limit))

    async def last_commits(self) -> Mapping[int, int]:
        """Return the time of the newest committed object of each node, by node id."""
        return await self._database.read(objects.last_commits)

    async def list_node_ssos(self, node_id: int, *, limit: int) -> Sequence[ObjectInfo]:
        """Return the node's newest committed stream set objects (SSO), oldest first."""
        return await self._database.read(lambda c: objects.list_node_ssos(c, node_id, limit))

    async def list_stream_objects(self, stream_id: int) -> Sequence[RangeLocation]:
        """Return the stream's committed stream objects (SO) in offset order."""
        return await self._database.read(lambda c: objects.list_stream_objects(c, stream_id))

    async def list_compactable_streams(self, node_id: int, *, objects_min: int, limit: int) -> Sequence[int]:
        """Return the streams the node has open with at least `objects_min` stream objects, most objects first."""
        return await self._database.read(lambda c: objects.list_compactable_streams(c, node_id, objects_min, limit))

    async def shared_objects(self) -> frozenset[int]:
        """Return the stream objects (SO) that several streams refer to because a topic was cloned."""
        return await self._database.read(objects.shared_objects)

    async def object_ranges(self, object_ids: Sequence[int]) -> Mapping[int, Sequence[RangeLocation]]:
        """Return the live ranges (past their stream's start, stream not deleted) of each object, in stream order."""
        return await self._database.read(lambda c: objects.object_ranges(c, object_ids))

    async def list_reapable(self, *, now_ms: int, limit: int) -> Sequence[tuple[ObjectInfo, str]]:
        """Return prepared or destroyed objects past their deadline, each with its multipart upload id or ''."""
        return await self._database.read(lambda c: objects.list_reapable(c, now_ms, limit))

    async def expire_objects(self, object_ids: Sequence[int], *, now_ms: int) -> Sequence[int]:
        """Make prepared objects past their deadline destroyed, so that their writers can no longer commit them.

        Returns which of the ids are destroyed and past their deadline: only those may be deleted from the store.
        """
        return await self._database.write(lambda c: objects.LIFE_CYCLE.expire(c, object_ids, now_ms))

    async def discard_objects(self, object_ids: Sequence[int], *, now_ms: int, delete_after_ms: int) -> None:
        """Make prepared objects destroyed: no commit can follow, and they are collected from `delete_after_ms` on.

        Objects in other states are not changed: a writer may call this after a commit whose outcome it does not know.
        """
        deadline = Deadline(now_ms, delete_after_ms)
        await self._database.write(lambda c: objects.LIFE_CYCLE.discard(c, object_ids, deadline.ms))

    async def forget_objects(self, object_ids: Sequence[int]) -> None:
        """Delete the rows of prepared and destroyed objects whose bytes are gone from the store."""
        await self._database.write(lambda c: objects.LIFE_CYCLE.forget(c, object_ids))

    async def count_committed(self) -> Mapping[str, int]:
        """Count the committed objects by the name of their store."""
        return await self._database.read(objects.count_committed)

    async def count_objects(self) -> Mapping[str, tuple[int, int]]:
        """Return (count, bytes) by kind and state, as in `"SSO committed"`."""
        return await self._database.read(objects.count_objects)

    # configs, access control lists, delegation tokens and producer ids

    async def alter_config(
        self, kind: str, name: str, *, set_configs: Mapping[str, str], unset: Sequence[str], token_owner: str = ""
    ) -> Mapping[str, str]:
        """Change the configs of something other than a topic (a group, a feature); returns all its configs.

        If none is left, the delegation tokens of `token_owner` are removed.
        """
        return await self._change_as_node(
            lambda c: configs.alter_config(c, kind, name, set_configs, unset, token_owner)
        )

    async def list_configs(self, *, settled: bool = False) -> Mapping[tuple[str, str], Mapping[str, str]]:
        """Return all configs by kind and name of their owners, without empty ones.

        `settled` as in `list_topics_and_detached`.
        """
        found, level = await self._read(
            lambda c: (configs.list_configs(c), migration.current_level(c)), settled=settled
        )
        self._level = max(self._level, level)
        return found

    async def alter_acls(self, added: Collection[AclRow], removed: Collection[AclRow]) -> Sequence[AclRow]:
        """Add access control lists that do not exist yet, and remove those that do; returns all there are then."""
        return await self._change_as_node(lambda c: acls.alter_acls(c, added, removed))

    async def list_acls(self, *, settled: bool = False) -> Sequence[AclRow]:
        """Return all access control lists. `settled` as in `list_topics_and_detached`."""
        return await self._read(acls.list_acls, settled=settled)

    async def create_token(self, token: TokenRow) -> None:
        """Add a delegation token."""
        await self._change_as_node(lambda c: tokens.create_token(c, token))

    async def expire_token(self, token_id: str, expires_ms: int) -> bool:
        """Change the time at which a delegation token expires; returns False if there is no such token."""
        return await self._change_as_node(lambda c: tokens.expire_token(c, token_id, expires_ms))

    async def remove_token(self, token_id: str) -> None:
        """Remove a delegation token."""
        await self._change_as_node(lambda c: tokens.remove_token(c, token_id))

    async def remove_expired_tokens(self, before_ms: int) -> None:
        """Remove the delegation tokens that have expired before that time."""
        await self._change_as_node(lambda c: tokens.remove_expired_tokens(c, before_ms))

    async def list_tokens(self, *, settled: bool = False) -> Sequence[TokenRow]:
        """Return all delegation tokens, by id. `settled` as in `list_topics_and_detached`."""
        return await self._read(tokens.list_tokens, settled=settled)

    async def next_producer_ids(self, count: int) -> int:
        """Reserve `count` producer ids; returns the first."""

        def take(connection: Connection) -> tuple[int, int]:
            # Counted as a change, so that a catalog that has forgotten them shows it.
            return rows.take_ids(connection, "producer", count), rows.take_ids(connection, rows.CHANGE, 1) + 1

        first, change = await self._database.write(take)
        self._note(CatalogProgress(change))
        return first

    # manifests: copies of the catalog's state in the object store

    async def read_state(self) -> tuple[int, CatalogState]:
        """Return the number of the last manifest begun (0: none) and the state that a manifest holds."""
        return await self._database.read(state_rows.read_state)

    async def last_manifest(self) -> int:
        """Return the number of the last manifest begun, 0 if there is none."""
        return await self._database.read(state_rows.last_manifest)

    async def next_manifest(self, above: int) -> int:
        """Return a new number for a manifest, higher than all before and than `above`."""
        return await self._database.write(lambda c: state_rows.next_number(c, above))

    async def back_up(
        self, target: Path, *, now_ms: int, overwrite: bool, on_progress: Callable[[int, int], None]
    ) -> "BackupHeader":
        """Write all rows, as of one moment, to a file. `on_progress` is called in a thread with rows done and in total.

        Raises CatalogError when the target exists (unless `overwrite`) or cannot be written.
        """
        from anabranch.s3stream.catalog.backup import write_backup  # late, as `restore`: of commands only

        return await self._database.read(
            lambda c: write_backup(c, target, now_ms=now_ms, overwrite=overwrite, on_progress=on_progress), is_long=True
        )

    async def restore(self, contents: "CatalogContents") -> None:
        """Insert the rows of a rebuilt catalog in one transaction. Raises CatalogError when it is not empty."""
        from anabranch.s3stream.catalog.restore import restore

        await self._database.write(lambda c: restore(c, contents))

    async def advance(self, wanted: "Advance") -> None:
        """Move counters and epochs of a restored catalog past all that were assigned since the copy was made."""
        from anabranch.s3stream.catalog.restore import advance

        await self._database.write(lambda c: advance(c, wanted))


def went_back_text(where: str, what: str) -> str:
    """Return the message of CatalogWentBack."""
    return (
        f"catalog {where}: it has gone back to an earlier state and lacks what it had committed ({what}): do not "
        "restart the nodes; stop all of them, and rebuild the catalog first: `anabranch catalog rebuild` "
        "(docs/operations.md)"
    )
