"""A node's process that makes columns (`tables.worker`), and asks registries: never on the node's own interpreter.

It is started for the first request, and kept. One that ends, or that does not answer in time, is replaced, and the
request is made again: a share's file depends on the share alone. A request over which several processes have ended is
given up.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from anabranch import child
from anabranch.extras import is_installed, missing
from anabranch.tables.requests import Finding, Question, Share, ShareReport
from anabranch.tables.snapshots import Join, SnapshotReport, SnapshotRequest

MEMORY_BYTES_MAX: Final = 1 << 30
TIMEOUT_S: Final = 600.0
"""Time for the answer to one request: a share of 256 MiB takes some tens of seconds."""
ANSWER_BYTES_MAX: Final = 16 << 20
ATTEMPTS: Final = 3
"""Processes that may end over a request."""
_ENVIRONMENT: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
"""One thread, whose allocator returns memory, and reserves little in advance."""


class ColumnsError(Exception):
    """A request was not carried out. The text is the one line to show."""

    def __init__(self, kind: str, text: str) -> None:
        """`kind` is one of `worker.KINDS`, `ended` if processes ended over it, or `stopped`."""
        super().__init__(text)
        self.kind = kind


class ColumnProcess:
    """Makes the shares of tables. Used in one thread at a time; `close` may be called in any."""

    def __init__(self, *, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        """Raises MissingExtra."""
        if not is_installed("tables"):
            raise missing("a topic that is a table", "pyarrow", "tables")
        command = [sys.executable, "-m", "anabranch.tables.worker", str(memory_bytes_max)]
        self._child = child.Child(command, {**os.environ, **_ENVIRONMENT})
        self.cpu_s = 0.0
        """CPU time of all answers."""

    def make(self, share: Share) -> ShareReport:
        """Write the file of a share. Raises ColumnsError."""
        return ShareReport(**self._ask({"share": share.to_json()})["report"])

    def join(self, join: Join) -> ShareReport:
        """Write the file of a join. Raises ColumnsError."""
        return ShareReport(**self._ask({"join": join.to_json()})["report"])

    def find(self, question: Question) -> Finding:
        """Return what a table's next shares are made with. Raises ColumnsError."""
        return Finding.from_json(self._ask({"find": question.to_json()})["found"])

    def write_snapshot(self, request: SnapshotRequest) -> SnapshotReport:
        """Write manifest, manifest list and metadata.json of a table's next version. Raises ColumnsError."""
        return SnapshotReport.from_json(self._ask({"snapshot": request.to_json()})["written"])

    @property
    def process_id(self) -> int | None:
        """Id of the process; None if none runs."""
        return self._child.process_id

    def close(self) -> None:
        """End the process, and start no other one."""
        self._child.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        body = json.dumps(request).encode()
        (what,) = request
        with self._child.using:
            answer = self._answer(body, what)
        self.cpu_s += answer["seconds"]
        if "error" in answer:
            raise ColumnsError(answer["error"], answer["text"])
        return answer

    def _answer(self, body: bytes, what: str) -> dict[str, Any]:
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                answer = child.exchange(
                    self._child.running(), body, what=what, timeout_s=TIMEOUT_S, answer_bytes_max=ANSWER_BYTES_MAX
                )
            except OSError as error:
                status = self._child.stop()
                if self._child.is_closed:
                    break
                reason = f"{error}, with status {status}"
            else:
                found: dict[str, Any] = json.loads(answer)
                return found
        if self._child.is_closed:
            raise ColumnsError("stopped", "the node is stopping")
        raise ColumnsError("ended", f"{ATTEMPTS} processes ended over this {what}: the last one because {reason}")
