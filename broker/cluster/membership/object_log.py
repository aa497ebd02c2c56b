"""The node's log in an object store (`wal.kind = object`) at a start: the checks before earlier epochs are fenced."""

from collections.abc import Callable, Mapping
from typing import Final

from anabranch.broker.cluster.membership.log_store import ObjectLogStore
from anabranch.broker.cluster.membership.start_log import FoundLog
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import object_wal_settings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.interface import NodeWal, WalCorrupt, WalFenced, WalRefused
from anabranch.wal.object.format import HEADER_BYTES, Flags, LogName, Position, decode_header
from anabranch.wal.object.log import ObjectWal
from anabranch.wal.owner import Owner


class ObjectStartLog:
    """The log under the node's prefix. `attach` finds it; another process may still write it until the node joins."""

    kind: Final = "object"
    problem: Final = "holds no log"

    def __init__(self, settings: Settings, new_writer_id: Callable[[], str]) -> None:
        node = settings.node
        self._settings: Final = settings
        self._store_name: Final = settings.wal_store
        self._name = LogName(node.cluster, node.node_id, bytes(16))
        """Its catalog id is set when the catalog is known."""
        self._new_writer_id: Final = new_writer_id
        self._store: ObjectLogStore
        self._newest: Position | None = None
        self.found: FoundLog | None = None

    @property
    def location(self) -> str:
        """Store and prefix."""
        return f"{self._store_name}:{self._name.prefix}"

    async def attach(self, stores: Mapping[str, ObjectStore]) -> None:
        """List the log's objects. Raises WalRefused without such a store, StoreAway."""
        if self._store_name not in stores:
            raise WalRefused(f"wal.store: no object store {self._store_name!r}, expected one of {', '.join(stores)}")
        self._store = ObjectLogStore(stores[self._store_name], self._new_writer_id())
        async for each in self._store.list(self._name.prefix):
            self._newest = self._name.parse_key(each.key) or self._newest

    def why_not_blank_catalog(self) -> str:
        """Return a description of the log that contradicts a blank catalog; empty if none was found yet."""
        return "" if self._newest is None else f"{self.location} holds a log (up to node epoch {self._newest.epoch})"

    async def check_claim(self, owner: Owner, catalog: Catalog) -> None:  # noqa: ARG002 - the header names the catalog
        """Raise WalError unless the log is one of this catalog, and of an earlier epoch than the owner's."""
        self._name = LogName(owner.cluster, owner.node_id, owner.catalog_id)
        if self._newest is None:
            return
        if self._newest.epoch >= owner.node_epoch:
            raise WalFenced(
                f"{self.location}: claimed with node epoch {self._newest.epoch}, this node's is {owner.node_epoch}: "
                "the catalog is not the one of this log, or an older state of it: check catalog.url"
            )
        key = self._name.key(self._newest)
        data = await self._store.read(key, HEADER_BYTES)
        is_empty = False
        if data is not None:  # else a process that still has the node's id has trimmed it since
            header = decode_header(self._name, self._newest, data)
            if isinstance(header, str):
                raise WalCorrupt(f"{self._store_name}:{key}: object log: {header}")
            is_empty = bool(header.flags & Flags.CLOSED) and header.first_live == header.position
        self.found = FoundLog(self._name.wal_id(self._store_name), self._newest.epoch, not is_empty)

    async def open_wal(self, owner: Owner, now_ms: Callable[[], int]) -> NodeWal:  # noqa: ARG002 - objects have no time
        """Return the log, which is not recovered."""
        return ObjectWal(self._store, self._name, object_wal_settings(self._settings), node_epoch=owner.node_epoch)
