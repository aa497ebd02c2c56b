"""Findings of a verification, and counts of what was checked."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from anabranch.s3stream.model import ObjectState

FINDINGS_MAX: Final = 1_000


class FindingKind(Enum):
    """Kind of a disagreement between catalog and stores."""

    MISSING = "a committed object is not in its store"
    CORRUPT = "bytes do not match their checksum or format"
    UNREADABLE = "the store could not read the object"
    RANGE = "the catalog's range is not in the object's index"
    UNACCOUNTED = "the catalog does not have the object"
    DISCONTINUOUS = "the stream's ranges leave a gap"
    UNKNOWN_STORE = "the object is in a store that is not configured"
    TABLE = "the catalog and the metadata of a table disagree"
    ROWS = "the rows of a table's file are not the records of its offsets"


class Finding(NamedTuple):
    """One disagreement: its kind, place, and what was expected and found."""

    kind: FindingKind
    where: str
    detail: str


@dataclass(slots=True)
class VerifyReport:
    """Counts of what was checked, and the findings. Findings beyond a limit are only counted."""

    deep: bool
    objects: Counter[ObjectState] = field(default_factory=Counter)
    object_bytes: int = 0
    """Bytes of committed objects."""
    stored_objects: int = 0
    """Objects listed in the stores, without those of other clusters."""
    stored_bytes: int = 0
    other_clusters: int = 0
    manifests: int = 0
    """Manifests of this cluster in any store; they are not objects of the catalog."""
    tables: int = 0
    table_files: Counter[ObjectState] = field(default_factory=Counter)
    table_bytes: int = 0
    """Bytes of committed files of tables."""
    kept_table_files: int = 0
    """Files of tables that the catalog no longer has, which stay when a table is dropped without them."""
    streams: int = 0
    ranges: int = 0
    blocks: int = 0
    """Data blocks named by the indexes; with `deep` each was read and checked."""
    block_bytes: int = 0
    table_rows: int = 0
    """Rows of tables that were compared with records."""
    not_checked: list[str] = field(default_factory=list)
    """Checks that were left out, and why, one line each."""
    findings: list[Finding] = field(default_factory=list)
    findings_dropped: int = 0

    @property
    def ok(self) -> bool:
        """True without findings."""
        return not self.findings

    def add(self, kind: FindingKind, where: str, detail: str) -> None:
        """Add a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, where, detail))
        else:
            self.findings_dropped += 1
