"""State of the tables that a node commits, for operators, and counters of the work."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class PartitionStatus(NamedTuple):
    """Offsets of a partition in the table, and in the topic."""

    start_offset: int
    end_offset: int
    topic_end_offset: int
    """Last stable offset as of the committed end."""

    @property
    def lag(self) -> int:
        """Number of offsets that the table lacks."""
        return max(0, self.topic_end_offset - self.end_offset)


@dataclass(slots=True)
class UpkeepStats:
    """Counters of a node since its start."""

    rows: int = 0
    """Rows appended."""
    errors: int = 0
    """Those of them with an error."""
    files: int = 0
    """Data files written."""
    bytes: int = 0
    """Bytes of data files written."""
    commits: int = 0
    conflicts: int = 0
    """Commits that another one was before."""
    failed_rounds: int = 0
    joined_files: int = 0
    remade_files: int = 0
    cut_files: int = 0
    dropped_files: int = 0
    published: int = 0
    """Versions that other catalogs were given."""
    failed_publications: int = 0


@dataclass(slots=True)
class PublicationStatus:
    """State of a table in another catalog."""

    catalog: str
    """Its name in the settings."""
    version: int = 0
    """Version that it shows, as far as this node knows; 0: unknown."""
    lacking_since_ms: int = 0
    """Time since which it has lacked a version; 0: it lacks none."""
    error: str = ""
    """Reason why the last attempt failed, in one line; empty: it succeeded."""

    def lag_ms(self, now_ms: int) -> int:
        """Return for how long it has lacked a version."""
        return max(0, now_ms - self.lacking_since_ms) if self.lacking_since_ms else 0


@dataclass(slots=True)
class TableStatus:
    """A table that this node commits."""

    name: str
    topic: str
    table_id: str = ""
    """32 hexadecimal digits; empty: there is no table yet."""
    version: int = 0
    snapshot_id: int = 0
    metadata_location: str = ""
    """URI; empty before the first commit."""
    schema: str = ""
    """Newest schema, encoded."""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    snapshots: int = 0
    partitions: Mapping[int, PartitionStatus] = field(default_factory=dict)
    complete_ms: int = 0
    """Time up to which what was committed in the topic is in the table; 0: unknown."""
    errors: int = 0
    """Rows with an error since the node's start."""
    reasons: list[str] = field(default_factory=list)
    """Some of the errors, each once."""
    last_error: str = ""
    """Reason why the last round failed, in one line; empty: it succeeded."""
    publication: PublicationStatus | None = None
    """None: it is in no other catalog."""

    @property
    def lag(self) -> int:
        """Number of offsets that the table lacks."""
        return sum(each.lag for each in self.partitions.values())

    def lag_ms(self, now_ms: int) -> int:
        """Return for how long the oldest record has waited for the table, at most; -1: unknown."""
        if not self.lag:
            return 0
        return max(0, now_ms - self.complete_ms) if self.complete_ms else -1
