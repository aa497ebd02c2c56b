"""A node's log at a start, whatever its kind: examined first, and claimed only when that is known to be safe."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import UnknownStreams
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.interface import NodeWal
from anabranch.wal.owner import Owner


class FoundLog(NamedTuple):
    """A log that was found where the settings say."""

    wal_id: str
    node_epoch: int
    """Epoch in which it was last claimed."""
    may_hold_records: bool


class StartLog(Protocol):
    """The log that the settings name. Nothing is created or written before `open_wal`."""

    @property
    def kind(self) -> str:
        """Kind of the log in the catalog."""
        ...

    @property
    def location(self) -> str:
        """Place of the log in the catalog: a path, or store and prefix."""
        ...

    @property
    def found(self) -> FoundLog | None:
        """The log that was found, after `check_claim`; None if there is none yet."""
        ...

    @property
    def problem(self) -> str:
        """State of its place while nothing is found, as in `LogFacts`."""
        ...

    async def attach(self, stores: Mapping[str, ObjectStore]) -> None:
        """Look for the log in the open stores, if it is kept there. Raises WalError."""
        ...

    def why_not_blank_catalog(self) -> str:
        """Return a description of the log that contradicts a blank catalog; empty if none was found yet."""
        ...

    async def check_claim(self, owner: Owner, catalog: Catalog) -> None:
        """Raise WalError or UnknownStreams unless `owner`, in the next epoch of its node, may claim the log."""
        ...

    async def open_wal(self, owner: Owner, now_ms: Callable[[], int]) -> NodeWal:
        """Return the log, which is not recovered. Raises WalError."""
        ...


@contextmanager
def errors_at(location: str) -> Iterator[None]:
    """Add the place of a log to the error of its recovery."""
    try:
        yield
    except UnknownStreams as error:
        raise UnknownStreams(f"{location}: {error}") from None
