"""Bugs planted into the native part: each is built, and must be found by the tests of the native part.

python -m tests.native.planted                   plants each, and prints which test finds it
python -m tests.native.planted crc-unchecked     plants these
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.bootstrap import NATIVE, ROOT, find_cargo

TESTS: Final = (
    "tests/broker/api/handlers/test_produce_fuzz.py",
    "tests/broker/api/handlers/test_produce_lane.py",
    "tests/wal/test_block_lane.py",
    "tests/wal/test_native_block.py",
)
LIBRARY: Final = "libanabranch_native.so"
FOUND: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Planted:
    """A planted bug: in a file of `native/src`, `old`, which occurs once, becomes `new`."""

    name: str
    what: str
    """The bug, in one line."""
    file: str
    old: str
    new: str

    def changed(self, source: str) -> str:
        """Return the file's text with the bug. Raises AssertionError when it does not fit."""
        found = source.count(self.old)
        assert found == 1, f"{self.file}: {self.old!r} occurs {found} times"
        return source.replace(self.old, self.new)


PLANTED: Sequence[Planted] = (
    Planted(
        "offset-short",
        "a batch ends one offset too early, and the next one has its last offset",
        "lane.rs",
        "base_offset.checked_add(header.record_count.into())",
        "base_offset.checked_add(i64::from(header.record_count) - 1)",
    ),
    Planted(
        "crc-unchecked",
        "damaged batches are accepted",
        "batch.rs",
        "&& crc32c(&batch[CHECKED_POSITION..]) == self.crc",
        "",
    ),
    Planted(
        "sequence-unchecked",
        "a producer's batch behind a gap is accepted",
        "lane.rs",
        " && expected == Some(header.base_sequence);",
        " && expected.is_some();",
    ),
    Planted(
        "epoch-unchecked",
        "a fenced producer's batch is accepted",
        "lane.rs",
        "let is_next = epoch == i64::from(header.producer_epoch) && ",
        "let is_next = epoch >= 0 && ",
    ),
    Planted(
        "duplicate-new",
        "a batch that is sent again is appended again",
        "lane.rs",
        "return Ok(None); // it may be a duplicate",
        "return Ok(Some(entry));",
    ),
    Planted(
        "acks-0-answered",
        "a request with acks=0 is answered",
        "lane.rs",
        "Some(durable) if request.acks != 0 => {",
        "Some(durable) => {",
    ),
    Planted(
        "order-reversed",
        "responses are sent in the reverse order of requests",
        "lane.rs",
        'in_progress.call_method1(intern!(py, "append"), (&exchange,))?;',
        'in_progress.call_method1(intern!(py, "appendleft"), (&exchange,))?;',
    ),
    Planted(
        "results-reversed",
        "a partition gets the offset of another one in its answer",
        "lane.rs",
        "appended.push(result);",
        "appended.insert(0, result);",
    ),
    Planted(
        "base-offset-unpatched",
        "log and cache have the base offset that the client sent",
        "lane.rs",
        "patch(&mut memory.bytes_mut(py)[records.clone()], base_offset, leader_epoch);",
        "patch(&mut memory.bytes_mut(py)[records.clone()], 0, leader_epoch);",
    ),
    Planted(
        "leader-epoch-unpatched",
        "log and cache have the leader epoch that the client sent",
        "batch.rs",
        "batch[12..16].copy_from_slice(&leader_epoch.to_be_bytes());",
        "let _ = leader_epoch;",
    ),
    Planted(
        "memory-kept",
        "the memory of an answered frame is not given back",
        "acks.rs",
        'budget.setattr(intern!(py, "small_bytes"), small - freed)?;',
        'budget.setattr(intern!(py, "small_bytes"), small)?;',
    ),
    Planted(
        "request-uncounted",
        "the counter of requests leaves out those of the lane",
        "lane.rs",
        "requests.set_item(0, before + 1)?;",
        "requests.set_item(0, before)?;",
    ),
    Planted(
        "bucket-uncounted",
        "the histogram of durations leaves out requests of the lane",
        "acks.rs",
        "buckets.set_item(bucket, before + 1)",
        "buckets.set_item(bucket, before)",
    ),
    Planted(
        "ack-early",
        "a request is answered before its batches are written",
        "lane.rs",
        "self.answer_when(py, &durable, waiting)?;",
        "let fail = self.tools.fail.clone_ref(py);\nPy::new(py, Acks::new(waiting, fail))?.call1(py, (py.None(),))?;",
    ),
    Planted(
        "answer-overtakes",
        "a request is answered before one that Python has appended before it",
        "lane.rs",
        "callbacks.iter().next_back().map(",
        "callbacks.iter().find(|each| each.is_instance_of::<Acks>()).map(",
    ),
    Planted(
        "failure-acked",
        "a request is answered as if its batches were written, although the log has failed",
        "acks.rs",
        "if error.is_none() { answer(py, of_one) }",
        "if error.is_none() || !of_one.is_empty() { answer(py, of_one) }",
    ),
    Planted(
        "cache-unfed",
        "a batch is in the log, and not in the log cache",
        "lane.rs",
        'run.getattr(intern!(py, "_batches"))?.cast::<PyList>()?.append(batch)?;',
        "drop(batch);",
    ),
    Planted(
        "watermark-behind",
        "the high watermark stays at the beginning of the newest batch",
        "lane.rs",
        'journal.getattr(intern!(py, "pending"))?.cast::<PyDict>()?.set_item(stream, &end)?;',
        'journal.getattr(intern!(py, "pending"))?.cast::<PyDict>()?.set_item(stream, base_offset)?;',
    ),
    Planted(
        "stall-ignored",
        "batches are accepted while the log hangs",
        "lane.rs",
        '\n            && !admission.getattr(intern!(py, "is_stalled"))?.is_truthy()?)',
        ")",
    ),
    Planted(
        "later-timestamp",
        "of batches with the same newest timestamp, the last one is noted instead of the first",
        "lane.rs",
        "if header.max_timestamp > newest {",
        "if header.max_timestamp >= newest {",
    ),
    Planted(
        "future-accepted",
        "timestamps beyond the topic's limit are accepted",
        "batch.rs",
        "&& self.max_timestamp <= now_ms.saturating_add(limits.timestamp_after_max_ms)",
        "",
    ),
    Planted(
        "untimed-ignored",
        "a first record without a timestamp is not noted",
        "batch.rs",
        "self.max_timestamp < 0 || self.base_timestamp < 0",
        "self.max_timestamp < 0",
    ),
    Planted(
        "salt-ignored",
        "headers of the log's records have checksums that belong to no log",
        "wal_block.rs",
        "crc32c_append(salt, ",
        "crc32c_append(salt & 0, ",
    ),
    Planted(
        "writers-unlimited",
        "more writes are at the device than there are writers",
        "block_lane.rs",
        '            || in_flight.len() >= writer.getattr(intern!(py, "_writes_max"))?.extract()?\n',
        "",
    ),
    Planted(
        "waiting-overtaken",
        "a block is handed over before one that waits",
        "block_lane.rs",
        '            || writer.getattr(intern!(py, "_pending"))?.len()? > 0\n',
        "",
    ),
    Planted(
        "overdue-unseen",
        "a write that never ends is not found, because nobody looks",
        "block_lane.rs",
        '            || writer.getattr(intern!(py, "_timeout_timer"))?.is_none()\n',
        "",
    ),
    Planted(
        "window-passed",
        "bytes past the window are written, which a recovery does not look at",
        "block_lane.rs",
        '            || end - durable > number(&window, intern!(py, "bound"))?\n',
        "",
    ),
    Planted(
        "live-overwritten",
        "records are overwritten that are not uploaded yet",
        "block_lane.rs",
        '            || end > number(log, intern!(py, "_limit_offset"))?\n',
        "",
    ),
    Planted(
        "zeros-missing",
        "a part of a new file is written that has no zeros yet",
        "block_lane.rs",
        '            || end > number(&prewriter, intern!(py, "limit_offset"))?\n',
        "",
    ),
    Planted(
        "end-passed",
        "a block at the end of the ring is written past it",
        "block_lane.rs",
        "if length > capacity - position {",
        "if length > capacity {",
    ),
    Planted(
        "place-wrong",
        "blocks of a log that was resized are written to another place",
        "block_lane.rs",
        "RING_POSITION + (start + ring - base) % ring",
        "RING_POSITION + start % ring",
    ),
    Planted(
        "ack-out-of-order",
        "a block is acked before the blocks in front of it are written",
        "block_lane.rs",
        "            if end > start {\n                break;",
        "            if end > start + (1 << 40) {\n                break;",
    ),
    Planted(
        "start-jumps",
        "the window starts behind a write that is not complete",
        "block_lane.rs",
        'let is_next = window.getattr(intern!(py, "start"))?.extract::<u64>()? == start\n            && ',
        "let is_next = ",
    ),
    Planted(
        "start-forgets",
        "the window does not move over writes that were complete before",
        "block_lane.rs",
        '\n            && window.getattr(intern!(py, "_done"))?.len()? == 0;',
        ";",
    ),
    Planted(
        "failed-write-acked",
        "a block whose write failed is acked",
        "block_lane.rs",
        'if request.getattr(intern!(py, "error"))?.is_none() {',
        "if !request.is_none() {",
    ),
    Planted(
        "late-error",
        "a write that completes after the log has failed is an error of the event loop",
        "block_lane.rs",
        "if !in_flight.contains(blocks)? {",
        "if in_flight.contains(py.None())? {",
    ),
    Planted(
        "durable-offset-late",
        "the padding says that more is durable than is",
        "block_lane.rs",
        "block.seal(py, checked.durable)?;",
        "block.seal(py, checked.end)?;",
    ),
    Planted(
        "block-forgotten",
        "the log does not know a durable block, and frees its space",
        "block_lane.rs",
        'log.getattr(intern!(py, "_live"))?.call_method1(intern!(py, "append"), (span,))?;',
        "drop(span);",
    ),
    Planted(
        "padding-unwritten",
        "the last page of a block is not written",
        "block_lane.rs",
        "PySlice::new(py, 0, block.length as isize, 1)",
        "PySlice::new(py, 0, block.length as isize - 4096, 1)",
    ),
    Planted(
        "waiting-stuck",
        "what waits for a writer is not handed over when one is free",
        "block_lane.rs",
        'writer.call_method0(intern!(py, "pump"))?;',
        "",
    ),
    Planted(
        "writes-uncounted",
        "a block of more than 256 KiB counts as one write",
        "block_lane.rs",
        "(block.length as u64).div_ceil(IO_BYTES)",
        "1",
    ),
    Planted(
        "midst-ignored",
        "the log goes on after an error in the midst of a block",
        "block_lane.rs",
        "*changed = Some(checked.block.clone());",
        "let _ = changed;",
    ),
)


def run_cargo(folder: Path, *arguments: str, flags: str = "", **variables: str) -> None:
    """Run a command of cargo on the part in `folder/native`, unoptimized. It builds in `folder/target`."""
    cargo = find_cargo()
    assert cargo is not None, "there is no cargo"
    path = os.pathsep.join([str(Path(cargo).parent), os.environ.get("PATH", "")])
    flags = f"--cap-lints allow {flags}".strip()
    environment = {**os.environ, "PATH": path, "PYO3_PYTHON": sys.executable, "RUSTFLAGS": flags, **variables}
    command = [cargo, *arguments, "-q", "--target-dir", str(folder / "target")]
    subprocess.run(command, cwd=folder / "native", env=environment, check=True)


def install(folder: Path, built: Path) -> None:
    """Put the library in `built` where Python imports it from `folder/module`."""
    (folder / "module").mkdir(exist_ok=True)
    shutil.copy(built / LIBRARY, folder / "module" / "anabranch_native.abi3.so")


def build(folder: Path) -> None:
    """Build the part from `folder/native`, and put it where Python imports it from `folder/module`."""
    run_cargo(folder, "build")
    install(folder, folder / "target" / "debug")


def find(folder: Path) -> str | None:
    """Run the tests with the part in `folder/module`; return the first that fails, or None."""
    path = os.pathsep.join([str(folder / "module"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "ANABRANCH_NATIVE": "require"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--show-capture=no", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE, text=True)
    found = FOUND.search(done.stdout)
    assert found or not done.returncode, done.stdout
    return found[1] if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant bugs, one at a time; return 1 if one is not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="BUG", help="by default all")
    names = parser.parse_args(arguments).names
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(NATIVE, folder / "native", ignore=shutil.ignore_patterns("target"))
        build(folder)
        assert (failed := find(folder)) is None, f"without a planted bug, {failed} fails"
        for bug in PLANTED:
            if names and bug.name not in names:
                continue
            file = folder / "native" / "src" / bug.file
            source = file.read_text()
            file.write_text(bug.changed(source))
            build(folder)
            test = find(folder)
            file.write_text(source)
            missed += test is None
            print(f"{bug.name}: {'NOT FOUND' if test is None else f'found by {test}'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
