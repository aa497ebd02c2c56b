"""Credentials of a schema registry go to its host only, and answers that are not a registry's are errors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from anabranch.tables.errors import RegistryError
from anabranch.tables.registry import ANSWER_BYTES_MAX, REFERENCES_MAX, SchemaRegistry
from tests.spark.pipeline.registry_server import running_registry


@contextmanager
def redirecting_server(status: int, target: str) -> Iterator[str]:
    """A server that answers every request with a redirect to the same path elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """Quiet."""

    with running(Handler) as url:
        yield url


@contextmanager
def answering_server(body: bytes, status: int = 200) -> Iterator[str]:
    """A server that answers every request with the same body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            with suppress(ConnectionError):  # the client need not read all of it
                self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Quiet."""

    with running(Handler) as url:
        yield url


@contextmanager
def running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a free port: its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with running_registry() as other, redirecting_server(status, other.url) as url:
        other.add("s", "string")
        registry = SchemaRegistry(url, "me:secret")
        with pytest.raises(RegistryError, match=rf"answers {status} to .* points to {other.url}/.*: set the URL"):
            registry.latest("s")
        with pytest.raises(RegistryError, match=rf"answers {status}"):
            registry.by_id(1)
        assert other.requests == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"schema": "{}"}', "has no id at /subjects/s/versions/latest"),
        (b'{"schema": "{}", "id": "one"}', "has no id at /subjects/s/versions/latest"),
        (b'{"id": 1}', "has no schema at /subjects/s/versions/latest"),
        (b'{"id": 1, "schema": 5}', "has no schema at /subjects/s/versions/latest"),
        (b'{"id": 1, "schema": "{}", "references": [{"name": "a"}]}', "has no references at /subjects/s/versions/la"),
        (b'{"id": 1, "schema": "{}", "references": 7}', "has no references at /subjects/s/versions/latest"),
        (b"<html>", "is no schema registry: it has no JSON at /subjects/s/versions/latest"),
        (b"[" * 200_000, "is no schema registry: it has no JSON at /subjects/s/versions/latest"),
        (b" " * ANSWER_BYTES_MAX + b"{}", f"answers with more than {ANSWER_BYTES_MAX:,} bytes to /subjects/s/versions"),
    ],
    ids=["no id", "id", "no schema", "schema", "reference", "references", "html", "deep", "large"],
)
def test_answers_of_other_servers_are_errors_of_the_registry(body: bytes, said: str) -> None:
    with answering_server(body) as url, pytest.raises(RegistryError, match=said):
        SchemaRegistry(url).latest("s")


def test_a_deep_answer_of_a_server_without_the_path_is_an_error_of_the_registry() -> None:
    with answering_server(b"[" * 60_000, 404) as url, pytest.raises(RegistryError, match="answers 404"):
        SchemaRegistry(url).latest("s")


def test_references_in_a_circle_come_to_an_end() -> None:
    circle = {"name": "s", "subject": "s", "version": 1}
    with answering_server(json.dumps({"id": 1, "schema": "{}", "references": [circle]}).encode()) as url:
        assert SchemaRegistry(url).latest("s").references == (("s", "{}"),)


def test_references_have_a_limit() -> None:
    many = [{"name": str(each), "subject": "s", "version": 1} for each in range(REFERENCES_MAX + 1)]
    body = json.dumps({"id": 1, "schema": "{}", "references": many}).encode()
    with answering_server(body) as url, pytest.raises(RegistryError, match=f"more than {REFERENCES_MAX} others"):
        SchemaRegistry(url).latest("s")
