"""Time for which tables keep what they no longer need."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from anabranch.spark.pipeline.sections import MaintenanceSection
from anabranch.spark.pipeline.watermark import duration_us


@dataclass(frozen=True, slots=True)
class Retention:
    """Ages and numbers from the section `[maintenance]`."""

    snapshot_age: timedelta
    """Versions of the table that are older are dropped."""
    snapshots_min: int
    """Number of the newest versions that stay, whatever their age."""
    snapshots_max: int
    """Number of the newest versions beyond which none stays."""
    orphan_age: timedelta
    """Files without a reference that are younger may belong to a commit under way."""

    @classmethod
    def of(cls, section: MaintenanceSection) -> Self:
        """Return the retention settings of a pipeline."""
        snapshot_age, orphan_age = (
            timedelta(microseconds=duration_us(text)) for text in (section.snapshot_age, section.orphan_age)
        )
        return cls(snapshot_age, section.snapshots_min, section.snapshots_max, orphan_age)
