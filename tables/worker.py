"""The program that makes the columns of tables: a child process of a node, which keeps them off its interpreter.

Producers choose values, and whoever may register schemas chooses those: a crash, or too much memory, ends this process
instead of the node. It may have `memory_bytes_max` of private memory, its argument, and uses one thread of Arrow.

Requests and answers are JSON, each after its length in 4 bytes (big endian), one after the other:

    {"share": {...}} -> {"report": {...}}     see `requests.Share` and `requests.ShareReport`
    {"find": {...}} -> {"found": {...}}       see `requests.Question` and `requests.Finding`
    {"join": {...}} -> {"report": {...}}      see `snapshots.Join`
    {"snapshot": {...}} -> {"written": {...}} see `snapshots.SnapshotRequest` and `snapshots.SnapshotReport`
    {"publish": {...}} -> {"done": true}      see `publication.Publish`
    {"withdraw": {...}} -> {"done": true}     see `publication.Withdraw`

An answer may also be `{"error": KIND, "text": "one line"}`, with a KIND of `KINDS`, or `internal`: only what was
asked for is not done. Each has the CPU time that it took in `seconds`. Before the answer to a share there are frames
`{"at": [START, END]}` whenever it begins to decode the values of these offsets, and `{"at": null}` when it is done with
them: what it has said last shows which values it ended over. In between it has `DECODE_CPU_S`: over a value that
would take for ever, the signal PROF ends it, in the midst of a library's loop too.

It ends when its standard input does, also in the midst of a request: its node is gone then, and another one may make
the same files.
"""

import errno
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from threading import Thread  # noqa: TID251 - the main one may be in Arrow for long
from typing import Any, Final

import pyarrow as pa

from anabranch.s3stream.errors import StorageError
from anabranch.tables.errors import (
    ExternalCatalogError,
    ForeignTableError,
    JoinError,
    PublishError,
    RegistryError,
    SchemaError,
    SnapshotError,
    UnknownSchemaError,
)
from anabranch.tables.iceberg import write_snapshot
from anabranch.tables.joins import make_join
from anabranch.tables.parts import answer
from anabranch.tables.publication import Publish, Withdraw
from anabranch.tables.registry import RegisteredSchema, SchemaKey, SchemaRegistry
from anabranch.tables.requests import Question, Registry, Share
from anabranch.tables.share import make_share
from anabranch.tables.snapshots import Join, SnapshotRequest

NICENESS: Final = 10
"""Nodes answer clients first; a table still gets a tenth of a core that is otherwise full."""
DECODE_CPU_S: Final = 20.0
"""CPU time for records that become rows together: 8 MiB of the dearest values known take 4 s."""
SCHEMAS_MAX: Final = 1_000
"""Registered schemas that are kept for the next requests."""
ERROR_CHARS_MAX: Final = 1_000
KINDS: Final = {
    RegistryError: "registry",
    SchemaError: "schema",
    UnknownSchemaError: "schema",
    StorageError: "source",
    JoinError: "source",
    SnapshotError: "snapshot",
    ExternalCatalogError: "catalog",
    ForeignTableError: "foreign",
    PublishError: "publish",
    OSError: "file",
    MemoryError: "memory",
    pa.ArrowMemoryError: "memory",
}


class Worker:
    """Answers requests."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Tell what comes before an answer."""
        self._tell = tell
        self._schemas: dict[tuple[str, str | None], dict[tuple[SchemaKey, bool], RegisteredSchema]] = {}
        """Schemas by id, of each registry."""

    def answer(self, request: Any) -> dict[str, Any]:
        """Carry out one request."""
        try:
            if "share" in request:
                share = Share.from_json(request["share"])
                registries = self._registries((share.value.registry, share.key.registry))
                return {"report": asdict(make_share(share, registries, lambda at: self._tell({"at": at})))}
            if "join" in request:
                return {"report": asdict(make_join(Join.from_json(request["join"])))}
            if "snapshot" in request:
                return {"written": write_snapshot(SnapshotRequest.from_json(request["snapshot"])).to_json()}
            if "publish" in request or "withdraw" in request:
                _change_catalog(request)
                return {"done": True}
            question = Question.from_json(request["find"])
            asked = (question.value.registry, question.key.registry)
            return {"found": answer(question, self._registries(asked)).to_json()}
        except Exception as error:  # noqa: BLE001 - no request ends the others
            kind = next((name for each, name in KINDS.items() if isinstance(error, each)), "internal")
            if isinstance(error, OSError) and error.errno == errno.ENOMEM:  # of a mapping, and not of a file
                kind = "memory"
            return {"error": kind, "text": " ".join(str(error).split())[:ERROR_CHARS_MAX] or type(error).__name__}

    def _registries(self, places: Iterable[Registry | None]) -> dict[Registry, SchemaRegistry]:
        """Return clients of registries that know what they have answered before, but for what they did not have."""
        found = {}
        for place in filter(None, places):
            known = self._schemas.setdefault((place.url, place.credentials), {})
            if len(known) > SCHEMAS_MAX:
                known.clear()
            found[place] = SchemaRegistry(place.url, place.credentials, known)
        return found


def _change_catalog(request: Mapping[str, Any]) -> None:
    # Imported late: the process that makes columns has nothing to publish.
    from anabranch.tables.publishing import publish, withdraw

    if "publish" in request:
        publish(Publish.from_json(request["publish"]))
    else:
        withdraw(Withdraw.from_json(request["withdraw"]))


def main() -> None:
    """Answer the requests of standard input until it ends."""
    memory_bytes_max = int(sys.argv[1])
    for what, limit in ((resource.RLIMIT_DATA, memory_bytes_max), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (limit, limit))
    os.nice(NICENESS)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    read, write = sys.stdin.buffer.read, sys.stdout.buffer

    def tell(answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        write.write(len(body).to_bytes(4, "big") + body)
        write.flush()
        signal.setitimer(signal.ITIMER_PROF, DECODE_CPU_S if answer.get("at") else 0)

    Thread(target=_end_with_input, args=(sys.stdin.fileno(),), daemon=True).start()
    worker = Worker(tell)
    while head := read(4):
        begun = time.process_time()
        answer = worker.answer(json.loads(read(int.from_bytes(head, "big"))))
        answer["seconds"] = time.process_time() - begun
        tell(answer)


def _end_with_input(descriptor: int) -> None:
    """End this process once nothing can write to its standard input any more, also while it works."""
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is always reported
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
