"""Reads a query's checkpoint in a local folder, without Spark: the micro-batches that are done or only planned."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from anabranch.spark.checkpoint_format import COMMITS, HEADER_LINES, OFFSETS, source_offsets
from anabranch.spark.freshness import Offsets, parse_offsets
from anabranch.spark.pipeline.errors import PipelineError, SettingError

VERSION: Final = "v1"
METADATA: Final = "metadata"


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The newest micro-batch that was planned, and is not done."""

    number: int
    planned_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Progress of a query."""

    query_id: str
    batch_id: int | None
    """Number of the newest micro-batch that is done; None before the first one is."""
    committed_ms: int | None
    """Time at which Spark noted that it is done: the time of that file."""
    offsets: Offsets
    """Next offset of each partition. Empty before the first micro-batch is done."""
    planned: PlannedBatch | None


def local_folder(checkpoint: str) -> Path:
    """Return the folder of a checkpoint. Raises SettingError for a URL of a file system that needs Hadoop."""
    url = urlsplit(checkpoint)
    if not url.scheme or checkpoint.startswith("/"):
        return Path(checkpoint)
    if url.scheme == "file":
        return Path(unquote(url.path))
    raise SettingError(
        "checkpoint",
        f"a checkpoint on {url.scheme}: cannot be read without Spark, only a folder of this machine; "
        f"a running pipeline shows its lag with operations.metrics_port",
    )


def read_checkpoint(folder: Path) -> CheckpointState | None:
    """Return the progress of a query; None if it has not been started yet. Raises PipelineError."""
    try:
        metadata = (folder / METADATA).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(folder / METADATA, error) from None
    query_id = _parse(folder / METADATA, metadata).get("id")
    # The newest of each exists as long as the checkpoint: Spark only removes older ones.
    planned, committed = _numbers(folder / OFFSETS), _numbers(folder / COMMITS)
    done = max(planned & committed, default=None)
    newest = max(planned, default=None)
    lines = [] if done is None else _read_lines(folder / OFFSETS / str(done))
    return CheckpointState(
        query_id=str(query_id),
        batch_id=done,
        committed_ms=None if done is None else _modified_ms(folder / COMMITS / str(done)),
        offsets=_offsets(folder / OFFSETS / str(done), lines) if lines else {},
        planned=None if newest is None or newest == done else _planned(folder / OFFSETS / str(newest), newest),
    )


def _numbers(folder: Path) -> set[int]:
    try:
        return {int(each.name) for each in folder.iterdir() if each.name.isdigit()}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise _unreadable(folder, error) from None


def _read_lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from None
    if lines[0] != VERSION:
        raise PipelineError(f"{file}: expected offsets of version {VERSION}, found {lines[0][:20]!r}")
    return lines


def _offsets(file: Path, lines: Sequence[str]) -> Offsets:
    try:
        return parse_offsets(source_offsets(lines))
    except ValueError as error:
        raise PipelineError(f"{file}: not JSON: {error}") from None


def _planned(file: Path, number: int) -> PlannedBatch:
    lines = _read_lines(file)
    metadata = _parse(file, lines[1]) if len(lines) >= HEADER_LINES else {}
    planned_ms = metadata.get("batchTimestampMs")
    return PlannedBatch(number, planned_ms if isinstance(planned_ms, int) and planned_ms > 0 else _modified_ms(file))


def _parse(file: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"{file}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise PipelineError(f"{file}: expected a JSON object, found {text[:20]!r}")
    return found


def _modified_ms(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns // 1_000_000
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: Exception) -> PipelineError:
    return PipelineError(f"{file}: {getattr(error, 'strerror', None) or 'not valid UTF-8'}")
