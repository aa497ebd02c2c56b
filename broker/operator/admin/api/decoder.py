"""Payloads of Avro and protobuf, decoded by a child process (`broker.operator.admin.api.decoder_worker`).

The process is started for the first payload, and kept. One that does not answer in time, or ends, is given up; the next
payload starts another. The libraries are optional parts of the package.
"""

import json
import re
import signal
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from anabranch import child
from anabranch.broker.operator.admin.api.decoder_worker import CPU_S
from anabranch.extras import install_command, is_installed

TIMEOUT_S: Final = 10.0
"""Time for the answer to one request, whatever the process waits for."""
SOURCE_CHARACTERS_MAX: Final = 512 << 10
"""Characters of a schema and those that it refers to."""
ANSWER_BYTES_MAX: Final = 1 << 20
CHARACTER_BYTES_MAX: Final = 12
"""Bytes of a character of a text in an answer: two escapes of six bytes."""
STOPPING: Final = "the node is stopping"
SchemaKind = Literal["AVRO", "PROTOBUF"]
_PROGRAM: Final = Path(__file__).with_name("decoder_worker.py")
_NAME: Final = re.compile(r"(?!\.)[\w.-]{1,100}(/(?!\.)[\w.-]{1,100}){0,20}", re.ASCII)


class DecodeError(Exception):
    """A schema is invalid, or a payload does not fit it. The text is the one line to show."""


class DecoderStopped(DecodeError):
    """The process was stopped over a payload: further ones are not worth the time."""


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """Source of a schema, and of those that it refers to by their names, each after those that it refers to itself."""

    kind: SchemaKind
    text: str
    references: Mapping[str, str]

    def __post_init__(self) -> None:
        """Check sizes and names. Raises DecodeError."""
        if len(self.text) + sum(map(len, self.references.values())) > SOURCE_CHARACTERS_MAX:
            raise DecodeError(f"with those that it refers to, it is longer than {SOURCE_CHARACTERS_MAX} characters")
        for name in self.references:
            if self.kind == "PROTOBUF" and not _NAME.fullmatch(name):
                raise DecodeError(f"it refers to {name[:100]!r}, which is no path of a file")


class DecodedText(NamedTuple):
    """A value as JSON."""

    text: str
    truncated: bool


class SchemaDecoder:
    """Decodes payloads. Used in one thread at a time; `close` may be called in any."""

    def __init__(self, characters_max: int) -> None:
        """Shorten texts to a number of characters."""
        self._answer_bytes_max = max(ANSWER_BYTES_MAX, CHARACTER_BYTES_MAX * characters_max)
        self._child = child.Child([sys.executable, "-I", str(_PROGRAM), str(characters_max)])
        self.cpu_s = 0.0
        """CPU time of all answers."""
        self._missing = {kind for kind in get_args(SchemaKind) if not is_installed(kind.lower())}

    def decode(self, schema_id: int, schema: SchemaSource, data: bytes) -> DecodedText:
        """Return what follows the id in a payload as JSON. Raises DecodeError."""
        if schema.kind in self._missing:
            extra = schema.kind.lower()
            raise DecodeError(f"{extra} is not decoded here: {install_command(extra)} on this node")
        request = {"id": schema_id, "data": b64encode(data).decode()}
        answer = self._ask(request)
        if "unknown" in answer:
            source = {"kind": schema.kind, "schema": schema.text, "references": dict(schema.references)}
            answer = self._ask({**request, **source})
        return DecodedText(answer["text"], answer["cut"])

    def compile(self, schema: SchemaSource) -> bytes:
        """Return the FileDescriptorSet of a schema of protobuf, its own file last. Raises DecodeError."""
        answer = self._ask({"compile": schema.text, "references": dict(schema.references)})
        return b64decode(answer["descriptors"])

    @property
    def process_id(self) -> int | None:
        """Id of the process; None if none runs."""
        return self._child.process_id

    def close(self) -> None:
        """End the process, and start no other one."""
        self._child.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._child.using:
            try:
                body = json.dumps(request).encode()
                answer: dict[str, Any] = exchange(self._child.running(), body, self._answer_bytes_max)
            except OSError as error:
                status = self._child.stop()
                if self._child.is_closed:
                    raise DecoderStopped(STOPPING) from None
                reason = f"it took longer than {CPU_S:g} s over this payload" if status == -signal.SIGPROF else error
                raise DecoderStopped(f"the decoder was stopped: {reason}") from None
            self.cpu_s += answer["seconds"]
            if answer["worn"]:
                self._child.stop()
        if "error" in answer:
            raise DecodeError(answer["error"])
        return answer


def exchange(process: subprocess.Popen[bytes], body: bytes, answer_bytes_max: int) -> Any:
    """Send a request, and return its answer. Raises OSError, also if there is none in time."""
    return json.loads(
        child.exchange(process, body, what="payload", timeout_s=TIMEOUT_S, answer_bytes_max=answer_bytes_max)
    )
