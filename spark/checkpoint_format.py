"""Offsets in a checkpoint as Spark writes them, and what the direct source adds. Standard library only.

`offsets/N` is written before the records of micro-batch N are read, and `commits/N` when the table has them
(`org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog`): a version, the micro-batch's metadata, and a
line for each source.
"""

import json
from collections.abc import Sequence
from typing import Final

JsonOffsets = dict[str, dict[str, int | str]]
"""Offsets by topic and partition, with the topic's id under `TOPIC_ID` where the direct source has written them."""
OFFSETS: Final = "offsets"
"""Folder with the offsets of each micro-batch that was planned."""
COMMITS: Final = "commits"
"""Folder with a file for each micro-batch that is done."""
HEADER_LINES: Final = 2
"""Lines of a file of offsets before those of the sources."""
TOPIC_ID: Final = "id"


def source_offsets(lines: Sequence[str]) -> JsonOffsets | None:
    """Return the offsets of the first source in the lines of a file; None if there are none."""
    found = json.loads(lines[HEADER_LINES]) if len(lines) > HEADER_LINES and lines[HEADER_LINES] != "-" else None
    return found if isinstance(found, dict) else None
