"""A node's process that makes columns (`tables.worker`), and asks registries: never on the node's own interpreter.

It is started for the first request, and kept. One that ends, or that does not answer in time, is replaced, and the
request is made again: a share's file depends on the share alone. A request over which several processes have ended is
given up, but for shares: one hostile value must not stop a table. The process says which records it is about to decode.
If it ends over some of them, or has too little memory, they are decoded one by one, which finds the value, and that one
is left as it is, with an error. `VALUES_MAX` and `FALLBACKS_MAX` bound how often that is done: then a whole group, and
at last the whole share, has bytes and an error in each row. The tables of a node take turns: it lets some of these
attempts be made at a time, and later calls go on with what the earlier ones have found.

A value may also take for ever to be decoded: the process ends itself when its CPU time for some records is over
(`worker.DECODE_CPU_S`), and that counts as all there is for this turn.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from anabranch import child
from anabranch.extras import is_installed, missing
from anabranch.tables.publication import Publish, Withdraw
from anabranch.tables.requests import Finding, Question, Share, ShareReport
from anabranch.tables.snapshots import Join, SnapshotReport, SnapshotRequest

PROGRAM: Final = ("-m", "anabranch.tables.worker")
MEMORY_BYTES_MAX: Final = 1 << 30
TIMEOUT_S: Final = 300.0
"""Time without progress of a request: a join of 256 MiB takes some tens of seconds, and others may have the CPU."""
ANSWER_BYTES_MAX: Final = 16 << 20
ATTEMPTS: Final = 3
"""Processes that may end over a request."""
FALLBACKS_MAX: Final = 24
"""Attempts at one share, after the first ones, until none of its values is decoded. Each takes a new process."""
FALLBACKS_AT_ONCE: Final = 4
"""Those of them that a table makes in one turn; one that takes too long is the last one of its turn."""
VALUES_MAX: Final = 4
"""Values of a group that are found one by one until none of the group is decoded."""
_NOUNS: Final = {
    "share": "share",
    "join": "join",
    "find": "question",
    "snapshot": "snapshot",
    "publish": "publication",
    "withdraw": "withdrawal",
}
"""Names of requests in errors."""
_ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
"""One thread, whose allocator returns memory, and reserves little in advance."""


class ColumnsError(Exception):
    """A request was not carried out. The text is the one line to show."""

    def __init__(self, kind: str, text: str) -> None:
        """`kind` is one of `worker.KINDS`, `ended` if processes ended over it, `slow`, or `stopped`."""
        super().__init__(text)
        self.kind = kind


class Tried(NamedTuple):
    """A share that is to be made again, with what was found of it."""

    share: Share
    fallbacks: int
    """Attempts after the first ones that were made."""


class SlowShare(ColumnsError):
    """Some records of a share take too long for one turn: the next one goes on with what was `tried`."""

    def __init__(self, text: str, tried: Tried) -> None:
        super().__init__("slow", text)
        self.tried = tried


class ColumnProcess:
    """Makes the shares of tables. Used in one thread at a time; `close` may be called in any."""

    def __init__(self, *, memory_bytes_max: int = MEMORY_BYTES_MAX, program: Sequence[str] = PROGRAM) -> None:
        """Give the process a limit of memory. Raises MissingExtra."""
        if not is_installed("tables"):
            raise missing("a topic that is a table", "pyarrow", "tables")
        command = [sys.executable, *program, str(memory_bytes_max)]
        self._child = child.Child(command, {**os.environ, **_ENVIRONMENT})
        self._at: Sequence[int] | None = None
        """Offsets that the process decodes for a share."""
        self._is_late = False
        """True if the last process took too long."""
        self.cpu_s = 0.0
        """CPU time of all answers."""

    def make(self, share: Share, tried: Tried | None = None, *, fallbacks_max: int = FALLBACKS_MAX + 1) -> ShareReport:
        """Write the file of a share, of which an earlier turn has `tried` something. Raises ColumnsError.

        After `fallbacks_max` more attempts than the first ones, or one that takes too long if there may not be all of
        them, that is a SlowShare.
        """
        share, fallbacks = _continued(share, tried)
        end = fallbacks + fallbacks_max
        while True:
            try:
                return ShareReport(**self._ask({"share": share.to_json()}, 1 if fallbacks else ATTEMPTS)["report"])
            except ColumnsError as error:
                if error.kind not in {"ended", "memory"} or self._at is None or fallbacks > FALLBACKS_MAX:
                    raise
                fallbacks += 1
                share = _more_careful(share, self._at, is_last=fallbacks > FALLBACKS_MAX)
                if fallbacks_max <= FALLBACKS_MAX and (self._is_late or fallbacks >= end):
                    start, stop = self._at
                    raise SlowShare(
                        f"some of the offsets [{start}, {stop}) of partition {share.range.partition} take too long or "
                        "too much memory to be decoded: they are found in the next rounds, and become errors",
                        Tried(share, fallbacks),
                    ) from None

    def join(self, join: Join) -> ShareReport:
        """Write the file of a join. Raises ColumnsError."""
        return ShareReport(**self._ask({"join": join.to_json()})["report"])

    def find(self, question: Question) -> Finding:
        """Return what a table's next shares are made with. Raises ColumnsError."""
        return Finding.from_json(self._ask({"find": question.to_json()})["found"])

    def write_snapshot(self, request: SnapshotRequest) -> SnapshotReport:
        """Write manifest, manifest list and metadata.json of a table's next version. Raises ColumnsError."""
        return SnapshotReport.from_json(self._ask({"snapshot": request.to_json()})["written"])

    def rest(self) -> None:
        """End the process until the next request."""
        with self._child.using:
            self._child.stop()

    def publish(self, request: Publish) -> None:
        """Let another catalog show a version of a table. Raises ColumnsError."""
        self._ask({"publish": request.to_json()})

    def withdraw(self, request: Withdraw) -> None:
        """Take a table out of another catalog. Raises ColumnsError."""
        self._ask({"withdraw": request.to_json()})

    @property
    def process_id(self) -> int | None:
        """Id of the process; None if none runs."""
        return self._child.process_id

    def close(self) -> None:
        """End the process, and start no other one."""
        self._child.close()

    def _ask(self, request: Mapping[str, Any], attempts: int = ATTEMPTS) -> dict[str, Any]:
        ((what, _),) = request.items()
        body = json.dumps(request).encode()
        with self._child.using:
            answer = self._answer(body, _NOUNS[what], attempts)
            if answer.get("error") == "memory":
                self._child.stop()  # the next one has all of its memory
        self.cpu_s += answer["seconds"]
        if "error" in answer:
            raise ColumnsError(answer["error"], answer["text"])
        return answer

    def _answer(self, body: bytes, what: str, attempts: int) -> dict[str, Any]:
        ended = 0
        reason = ""
        self._is_late = False
        while ended < attempts:
            try:
                return self._exchange(body, what)
            except OSError as error:
                status = self._child.stop()
                if self._child.is_closed:
                    break
                line = self._child.last_line()
                reason = f"{error}, with status {status}{line and f': {line}'}"
                self._is_late = isinstance(error, TimeoutError) or status == -signal.SIGPROF
                ended = attempts if self._is_late and self._at else ended + 1
        if self._child.is_closed:
            raise ColumnsError("stopped", "the node is stopping")
        raise ColumnsError("ended", f"{ATTEMPTS} processes ended over this {what}: the last one because {reason}")

    def _exchange(self, body: bytes, what: str) -> dict[str, Any]:
        """Send a request, and return its answer. Raises OSError."""
        self._at = None
        process = self._child.running()
        child.send(process, body, what=what, timeout_s=TIMEOUT_S)
        while True:
            found: dict[str, Any] = json.loads(
                child.receive(process, what=what, timeout_s=TIMEOUT_S, answer_bytes_max=ANSWER_BYTES_MAX)
            )
            if "at" not in found:
                return found
            self._at = found["at"]


def _continued(share: Share, tried: Tried | None) -> tuple[Share, int]:
    """Return a share with what was found of it before, and the number of attempts after the first ones."""
    if tried is None:
        return share, 0
    before, fallbacks = tried
    is_same = before.range.start_offset == share.range.start_offset and before.schema == share.schema
    if not is_same or before.value != share.value or before.key != share.key:
        return share, 0
    return replace(share, careful=before.careful, raw=before.raw), fallbacks


def _more_careful(share: Share, at: Sequence[int], *, is_last: bool) -> Share:
    """Return a share for another attempt, after one over the records with the offsets [start, end)."""
    start, end = at
    if is_last:
        return replace(share, careful=(), raw=((share.range.start_offset, share.range.end_offset),))
    group = next((each for each in share.careful if each[0] <= start < each[1]), None)
    if group is None:
        return replace(share, careful=(*share.careful, (start, end)))
    in_group = sum(group[0] <= first < group[1] for first, _ in share.raw)
    return replace(share, raw=(*share.raw, group if in_group >= VALUES_MAX else (start, end)))
