"""The program that decodes payloads of Avro and protobuf with their schemas: a child process of the node, a script.

Producers choose schemas and payloads, and a few bytes may encode more values than a machine can hold: too much memory
or time, or a crash, ends this process instead of the node. It may use `MEMORY_BYTES_MAX` of address space, and `CPU_S`
for a request, at which the kernel ends it. It writes no files: the compiler of protobuf reads and writes memory
(`memfd_create`).

Requests and answers are JSON, each after its length in 4 bytes (big endian), one after the other:

    {"id": 5, "data": "base64 of what follows the id in the payload"} -> {"text": "...", "cut": false}

A request with `compile` instead of an id asks for the FileDescriptorSet of source that no payload belongs to:

    {"compile": ".proto source", "references": {...}} -> {"descriptors": "base64, the source's own file last"}

An answer may also be `{"error": "one line"}`, or `{"unknown": true}` for a schema that has to be sent along: `"kind":
"PROTOBUF", "schema": ".proto source", "references": {"place.proto": ".proto source"}`. Each has the CPU time that it
took in `seconds`, and `worn` if this process holds so much memory that another should follow it. It imports nothing of
the node, so that it starts in some 50 ms.
"""

import io
import json
import os
import re
import resource
import signal
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

MEMORY_BYTES_MAX: Final = 512 << 20
WORN_BYTES: Final = 256 << 20
"""Memory that is not given back after an answer, at which the process is replaced."""
CPU_S: Final = 2.0
SCHEMAS_MAX: Final = 50
"""Schemas that are kept; the one that was not used for the longest time goes first."""
NAME_CHARACTERS_MAX: Final = 500
"""Characters of a name in a schema of protobuf. Names are repeated in each message's text."""
DESCRIPTOR_BYTES_MAX: Final = 4 << 20
ERROR_CHARACTERS_MAX: Final = 500
VARINT_BYTES_MAX: Final = 5
INDEXES_MAX: Final = 100
_NOISE: Final = re.compile(r"^WARNING: All log messages|^[IW]\d{4} |: warning: ")
"""Lines of the compiler that are no errors."""


class InvalidError(Exception):
    """The schema cannot be compiled, or the message does not fit it. The text is the one line to show."""


class Schema(Protocol):
    """A schema whose values can be decoded."""

    def decode(self, data: bytes) -> Iterable[str]:
        """Return the JSON text of a value in parts. Raises InvalidError."""


class AvroSchema:
    """A schema of Avro. Raises InvalidError."""

    def __init__(self, text: str, references: Iterable[str]) -> None:
        """Parse a schema, and those that it refers to, which come before it."""
        import fastavro

        self._read = fastavro.schemaless_reader
        named: dict[str, Any] = {}
        try:
            for each in (*references, text):
                self._schema = fastavro.parse_schema(_without_logical_types(json.loads(each)), named_schemas=named)
        except Exception as error:  # noqa: BLE001 - fastavro raises many kinds of errors
            raise InvalidError(f"invalid schema: {_reason(error)}") from None

    def decode(self, data: bytes) -> Iterable[str]:
        """Return the JSON text of a value, which must be all of the data."""
        stream = io.BytesIO(data)
        try:
            value = self._read(stream, self._schema, handle_unicode_errors="replace")
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            raise InvalidError(f"the payload does not fit: {_reason(error)}") from None
        if left := len(data) - stream.tell():
            raise InvalidError(f"the payload does not fit: {left} bytes after the value")
        return json.JSONEncoder(ensure_ascii=False, default=bytes.hex).iterencode(value)


def _without_logical_types(schema: Any) -> Any:
    """Return a schema that shows values as they are stored."""
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_logical_types(part) for name, part in schema.items() if name != "logicalType"}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


class ProtobufSchema:
    """A compiled schema of protobuf. Raises InvalidError."""

    def __init__(self, descriptors: bytes) -> None:
        """Take a serialized FileDescriptorSet, the schema's own file last."""
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool

        files = FileDescriptorSet.FromString(descriptors).file
        self._file = files[-1]
        self._pool = DescriptorPool()
        for each in files:
            _check_names(each)
            try:
                self._pool.Add(each)
            except TypeError as error:
                raise InvalidError(f"invalid schema: {error}") from None

    def decode(self, data: bytes) -> Iterator[str]:
        """Return the JSON text of a message, after the indexes that name its type."""
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        path, start = read_indexes(data)
        name = self._name_at(path)
        try:
            message = GetMessageClass(self._pool.FindMessageTypeByName(name)).FromString(data[start:])
            value = json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=self._pool,
            )
        except DecodeError as error:
            raise InvalidError(f"the payload is no message {name}: {error}") from None
        except (json_format.Error, RecursionError, TypeError, ValueError) as error:
            raise InvalidError(f"a message {name} that has no JSON form: {error}") from None
        return json.JSONEncoder(ensure_ascii=False).iterencode(value)

    def _name_at(self, path: Sequence[int]) -> str:
        """Return the full name of the message at these indexes. As in Java's serialiser, map entries do not count."""
        name: str = self._file.package
        messages = list(self._file.message_type)
        for index in path:
            if not 0 <= index < len(messages):
                raise InvalidError(f"the schema has no message {list(path)}")
            found = messages[index]
            name = f"{name}.{found.name}" if name else found.name
            messages = [each for each in found.nested_type if not each.options.map_entry]
        return name


def _check_names(part: Any) -> None:
    """Refuse names that are too long, of messages, fields, enums and their values. Raises InvalidError."""
    for descriptor, value in part.ListFields():
        if descriptor.message_type is not None:
            for each in value if descriptor.is_repeated else [value]:
                _check_names(each)
        elif descriptor.name in {"name", "json_name"} and len(value) > NAME_CHARACTERS_MAX:
            raise InvalidError(f"invalid schema: a name is longer than {NAME_CHARACTERS_MAX} characters")


def read_indexes(data: bytes) -> tuple[Sequence[int], int]:
    """Return the indexes of a message's type, and where they end. A count of 0 stands for the first type.

    A count and as many indexes, in zigzag varints, follow the id in Confluent's wire format. Raises InvalidError.
    """
    count, at = _varint(data, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise InvalidError(f"{count} message indexes")
    path = []
    for _ in range(count):
        index, at = _varint(data, at)
        path.append(index)
    return path or [0], at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for position, byte in enumerate(data[at : at + VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at + position + 1
    raise InvalidError("no message indexes after the id of the schema")


def compile_protobuf(schema_id: int, text: str, references: Mapping[str, str]) -> ProtobufSchema:
    """Compile .proto source with the sources that it imports by these names. Raises InvalidError."""
    from google.protobuf.message import DecodeError

    descriptors = compile_files(f"schema-{schema_id}.proto", text, references)
    try:
        return ProtobufSchema(descriptors)
    except (DecodeError, RecursionError) as error:  # options may be nested deeper than messages
        raise InvalidError(f"invalid schema: {error}") from None


def compile_files(own: str, text: str, references: Mapping[str, str]) -> bytes:
    """Return the FileDescriptorSet of .proto source of this name and the files that it imports. Raises InvalidError."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with _memory_files() as make:
        sources = {**references, own: text}
        places = {name: make(source.encode())[1] for name, source in sources.items()}
        out, out_path = make(b"")
        problems, _ = make(b"")
        arguments = [f"--proto_path={name}={place}" for name, place in places.items()]
        arguments += [f"--proto_path={well_known}", "--include_imports", f"--descriptor_set_out={out_path}", own]
        with _standard_error_to(problems):
            status = protoc.main(["protoc", *arguments])
        if status != 0:
            lines = os.pread(problems, 1 << 16, 0).decode(errors="replace").splitlines()
            first = next((line for line in lines if not _NOISE.search(line)), "the compiler gives no reason")
            for name, place in places.items():
                first = first.replace(f"{place}:", f"{name}:")
            raise InvalidError(f"invalid schema: {first}")
        descriptors = os.pread(out, DESCRIPTOR_BYTES_MAX + 1, 0)
    if len(descriptors) > DESCRIPTOR_BYTES_MAX:
        raise InvalidError("invalid schema: it is too large")
    return descriptors


@contextmanager
def _memory_files() -> Iterator[Any]:
    """Provide a function that creates a file in memory, and returns its descriptor and path, valid within the block."""
    made: list[int] = []

    def make(content: bytes) -> tuple[int, str]:
        made.append(os.memfd_create("protobuf"))
        with os.fdopen(os.dup(made[-1]), "wb") as file:
            file.write(content)
        os.lseek(made[-1], 0, os.SEEK_SET)
        return made[-1], f"/proc/self/fd/{made[-1]}"

    try:
        yield make
    finally:
        for each in made:
            os.close(each)


@contextmanager
def _standard_error_to(descriptor: int) -> Iterator[None]:
    """Send what the compiler prints to another file."""
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Worker:
    """Answers requests. `text_max`: characters of a text that is returned."""

    def __init__(self, text_max: int) -> None:
        self._text_max = text_max
        self._schemas: dict[int, Schema | str] = {}
        """Schemas, or the reasons why they are invalid, by id; the one used last comes last."""

    def answer(self, request: Any) -> dict[str, Any]:
        """Carry out one request."""
        if "compile" in request:
            return _compiled(request)
        schema_id = request["id"]
        known = self._schemas.pop(schema_id, None)
        try:
            if "schema" in request:
                known = _schema_of(request)
            if known is None:
                return {"unknown": True}
            if isinstance(known, str):
                return {"error": known}
            return self._decode(known, b64decode(request["data"]))
        except InvalidError as error:
            reason = " ".join(str(error).split())[:ERROR_CHARACTERS_MAX]
            known = known or reason
            return {"error": reason}
        except MemoryError:
            return {"error": f"decoding needs more than {MEMORY_BYTES_MAX >> 20} MiB of memory"}
        finally:
            if known is not None:
                self._schemas[schema_id] = known
            if len(self._schemas) > SCHEMAS_MAX:
                del self._schemas[next(iter(self._schemas))]

    def _decode(self, schema: Schema, data: bytes) -> dict[str, Any]:
        text = ""
        for part in schema.decode(data):
            text += part
            if len(text) > self._text_max:
                return {"text": text[: self._text_max], "cut": True}
        return {"text": text, "cut": False}


def _compiled(request: Any) -> dict[str, Any]:
    try:
        found = compile_files("schema.proto", request["compile"], request["references"])
    except (InvalidError, UnicodeError) as error:
        return {"error": " ".join(str(error).split())[:ERROR_CHARACTERS_MAX]}
    except MemoryError:
        return {"error": f"compiling needs more than {MEMORY_BYTES_MAX >> 20} MiB of memory"}
    return {"descriptors": b64encode(found).decode()}


def _schema_of(request: Any) -> Schema:
    text, references = request["schema"], request["references"]
    if request["kind"] == "AVRO":
        return AvroSchema(text, references.values())
    try:
        return compile_protobuf(request["id"], text, references)
    except UnicodeError as error:
        raise InvalidError(f"invalid schema: {error}") from None


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def main() -> None:
    """Answer the requests of standard input until it ends."""
    for what, limit in ((resource.RLIMIT_AS, MEMORY_BYTES_MAX), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (limit, limit))
    worker = Worker(int(sys.argv[1]))
    read, write = sys.stdin.buffer.read, sys.stdout.buffer
    while head := read(4):
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # SIGPROF ends the process
        answer = worker.answer(json.loads(read(int.from_bytes(head, "big"))))
        answer["seconds"] = time.process_time() - begun
        answer["worn"] = _resident_bytes() > WORN_BYTES
        body = json.dumps(answer).encode()
        write.write(len(body).to_bytes(4, "big") + body)
        write.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
