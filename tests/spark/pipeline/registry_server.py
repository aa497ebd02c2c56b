"""A small schema registry on loopback, with the part of Confluent's HTTP interface that decoding uses."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class RegistryServer:
    """Schemas by id, and subjects with their versions."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.serialized: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self.guids: dict[str, dict[str, Any]] = {}
        self.texts: dict[str, str] = {}
        """Answers that are a schema alone, as Apicurio's own interface has them, by path."""
        self.requests: list[str] = []
        self.credentials: str | None = None
        self.url = ""

    def add(
        self, subject: str, schema: object, kind: str = "AVRO", *, serialized: bytes = b"", references: object = ()
    ) -> int:
        """Register a new version; returns its id."""
        schema_id = len(self.schemas) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        # As Confluent's: no schemaType means Avro.
        self.schemas[schema_id] = {
            "schema": text,
            **({} if kind == "AVRO" else {"schemaType": kind}),
            **({"references": references} if references else {}),
        }
        self.serialized[schema_id] = base64.b64encode(serialized).decode()
        self.subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def answer(self, path: str) -> dict[str, Any] | None:
        """The response to a GET; None means not found."""
        self.requests.append(path)
        place, _, query = path.partition("?")
        match [unquote(part) for part in place.strip("/").split("/")]:
            case ["schemas", "ids", number] if int(number) in self.schemas:
                found = dict(self.schemas[int(number)])
                if query == "format=serialized":
                    found["schema"] = self.serialized[int(number)]
                return found
            case ["schemas", "guids", guid] if guid in self.guids:
                return self.guids[guid]
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                ids = self.subjects[subject]
                schema_id = ids[-1] if version == "latest" else ids[int(version) - 1]
                return {"subject": subject, "id": schema_id, "version": len(ids), **self.schemas[schema_id]}
        return None


@contextmanager
def running_registry() -> Iterator[RegistryServer]:
    """A registry on a free port."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = registry.credentials
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            allowed = wanted is None or base64.b64decode(given).decode() == wanted
            found = registry.answer(self.path) if allowed else {"error_code": 401}
            text = registry.texts.get(self.path)
            body = text.encode() if text else json.dumps(found or {"error_code": 40403}).encode()
            self.send_response((200 if found or text else 404) if allowed else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever, 0.05)
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield registry
        finally:
            server.shutdown()
