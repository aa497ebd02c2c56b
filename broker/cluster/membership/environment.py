"""Surroundings of a node: clocks, randomness, ports, and access to its directory, log, catalog, stores and other nodes.

In a running node only this module reads the wall clock and creates random numbers. Other modules receive both as
arguments. The simulator (`tests/simulation`) gives a node another environment, and runs the same code in it.
"""

import random
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from anabranch.broker.node.net.ports import ReservedPorts, reserve_ports
from anabranch.broker.node.net.vanished import open_connection
from anabranch.broker.node.peers.links import OpenConnection
from anabranch.broker.node.settings.data_dir import DataDirLock
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.stores import make_stores
from anabranch.protocol.ids import uuid_text
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.device import open_device
from anabranch.wal.requests import Device
from anabranch.wal.settings import WalSettings

UUID_BYTES = 16


class DirectoryLock(Protocol):
    """The lock of a node's data directory."""

    @property
    def lock_id(self) -> str:
        """Unique id of the lock; empty if it is unknown."""
        ...

    def release(self) -> None:
        """Release the directory. A second call does nothing."""
        ...

    def release_unused(self) -> None:
        """Release the directory, and remove it if it was created for this lock and has nothing else."""
        ...


class LogFiles(Protocol):
    """Files and devices of logs. Both methods block."""

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or device."""
        ...

    def open(self, path: Path, settings: WalSettings, *, create: bool, exclusive: bool = True) -> Device:
        """Open a device, or create its file. Raises WalRefused, if exclusive also when another process has it open."""
        ...


class DiskLogFiles:
    """Files and block devices of this machine."""

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or device."""
        return path.exists()

    def open(self, path: Path, settings: WalSettings, *, create: bool, exclusive: bool = True) -> Device:
        """Open a device, or create its file. Raises WalRefused, if exclusive also when another process has it open."""
        return open_device(path, settings, create=create, exclusive=exclusive)


def wall_ms() -> int:
    """Return the wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the monotonic clock in ms since an arbitrary moment."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The surroundings of one node; by default those of a real one."""

    now_ms: Callable[[], int] = wall_ms
    """Wall clock in ms since 1970."""
    now_ns: Callable[[], int] = time.time_ns
    """The same in ns, for traces."""
    steady_ms: Callable[[], int] = monotonic_ms
    """Clock in ms since an arbitrary moment, which never jumps."""
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    """That many unpredictable bytes."""
    lock_directory: Callable[[Path], DirectoryLock] = DataDirLock
    """Create and lock the data directory. Raises DataDirError."""
    reserve_ports: Callable[[Settings, AsyncExitStack], ReservedPorts] = reserve_ports
    """Bind the ports for Kafka clients and, if enabled, for other nodes and the admin port. Raises OSError."""
    open_connection: OpenConnection = open_connection
    """Connect to a host and port. Raises OSError."""
    logs: LogFiles = field(default_factory=DiskLogFiles)
    make_catalog: Callable[[str], Catalog] = Catalog
    """Return the catalog of a URL, not opened yet."""
    make_stores: Callable[[Settings, random.Random], Mapping[str, ObjectStore]] = make_stores
    """Return all object stores by name, the default one first, not opened yet."""
    wrap_handlers: Callable[[Mapping[int, Any]], Mapping[int, Any]] = dict
    """Return the handlers that serve clients, by API key, in place of the given ones: a test may let them fail."""

    siblings: frozenset[int] = frozenset()
    """Ids of the nodes that stop together with this one: those of the other processes of one start."""

    def random(self) -> random.Random:
        """Return a generator for what needs no secrecy: session ids, and retries spread in time."""
        return random.Random(self.random_bytes(UUID_BYTES))  # noqa: S311

    def new_uuid(self) -> uuid.UUID:
        """Return a random UUID."""
        return uuid.UUID(bytes=self.random_bytes(UUID_BYTES), version=4)

    def new_topic_id(self) -> bytes:
        """Return a random id of a topic. As text it begins with no dash, like Kafka's: commands would see an option."""
        while uuid_text(found := self.new_uuid().bytes).startswith("-"):
            pass
        return found
